"""Fuse channel shuffles on packed channels: compute a permutation of channels where it is read.

As exported, a shuffle unpacks the channels, moves planes and packs them again: three passes over the image. Here each
reader gets one kernel that does all of it. Parts that the next shuffle reads unchanged stay packed in between. Splits
and concats whose channels do not fill whole blocks are handled in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import rebuild_call
from tvmflow.ir.relax.graph import Array, Graph, Step, is_concat
from tvmflow.ir.relax.views import slice_array
from tvmflow.ir.tvm_compat import type_of
from tvmflow.passes.layout.channel_permute import permute_channels


class ChannelPermutations:
    """The steps of a network that only permute channels; they are not computed on their own.

    steps: the permutation steps seen so far, by name; block: channels of a block; any_choice: also handle splits,
    slices and concats, where lane permutations are cheap (`lane_moves`).
    """

    def __init__(self, graph: Graph, block: int, any_choice: bool) -> None:
        self.steps: dict[str, Step] = {}
        self._block, self._any_choice = block, any_choice
        self._readers, self._outputs = graph.users(), set(graph.outputs)
        self._shapes = {name: kind.shape for name, kind in graph.kinds().items()}

    def add_step(self, step: Step, packed: Container[str]) -> bool:
        """Record a step that permutes packed channels; return whether it does."""
        if not step.refs or not any(name in packed or name in self.steps for name in step.refs):
            return False
        moves = (
            self._starts_shuffle(step)
            or self._splits_groups(step)
            or (step.refs[0] in self.steps and self._continues_shuffle(step))
            or (self._any_choice and self._selects_channels(step, packed))
        )
        if moves:
            self.steps[step.name] = step
        return moves

    def emit_step(self, name: str, value_of: Callable[[str], Any]) -> Any:
        """Emit a step again for its values; a part of a split is emitted as a slice of its own."""
        step = self.steps[name]
        whole = self.steps.get(step.refs[0])
        if not step.op.startswith("get_item.") or whole is None:
            return rebuild_call(step, value_of)
        begin = self._split_offset(step, whole)
        return relax.op.strided_slice(
            value_of(whole.refs[0]), axes=[1], begin=[begin], end=[begin + self._shapes[name][1]]
        )

    def _starts_shuffle(self, step: Step) -> bool:
        """Whether a step is a concat that only shuffles read."""
        readers = self._readers[step.name]
        joins_parts = len(step.shape) == 4 and is_concat(step, axis=1)
        return (
            joins_parts
            and step.name not in self._outputs
            and bool(readers)
            and all(self._splits_groups(one) for one in readers)
        )

    def _selects_channels(self, step: Step, packed: Container[str]) -> bool:
        """Whether a step selects channels of a packed image, or concatenates images with partial blocks."""
        shapes = [self._shapes[name] for name in step.refs]
        if not all(
            len(shape) == 4 and (name in packed or name in self.steps)
            for name, shape in zip(step.refs, shapes, strict=True)
        ):
            return False
        if step.op == "relax.concat":
            return is_concat(step, axis=1) and any(shape[1] % self._block for shape in shapes)
        if step.op == "relax.split":
            return int(step.call.attrs.axis) % 4 == 1
        return step.op == "relax.strided_slice" and [
            int(getattr(axis, "value", axis)) for axis in step.call.args[1].fields
        ] == [1]

    def emit_packed(self, builder: Any, name: str, packed: Mapping[str, Any]) -> Any:
        """Emit a permuted image packed, by one kernel that reads its packed sources."""
        images: list[str] = []
        places = self._source_channels(name, packed, images).tolist()
        return permute_channels(builder, [packed[one] for one in images], list(zip(*places, strict=True)))

    def _source_channels(self, name: str, packed: Container[str], images: list[str]) -> Array:
        """Return the image and the channel there of each channel, (2, C), or (2, G, C / G) if grouped.

        New images are appended to `images`.
        """
        if name in packed:
            if name not in images:
                images.append(name)
            channels = np.arange(self._shapes[name][1])
            return np.stack([np.full_like(channels, images.index(name)), channels])
        step = self.steps[name]
        whole = self.steps.get(step.refs[0])
        if step.op.startswith("get_item.") and whole is not None:
            begin, size = self._split_offset(step, whole), self._shapes[name][1]
            return self._source_channels(whole.refs[0], packed, images)[:, begin : begin + size]
        parts = [self._source_channels(one, packed, images) for one in step.refs]
        if step.op == "relax.concat":
            return np.concatenate(parts, axis=1)
        if step.op == "relax.reshape":
            return parts[0].reshape(2, *step.shape[1:-2])
        if step.op == "relax.strided_slice":
            return slice_array(parts[0], step.call)
        return parts[0].swapaxes(1, 2)  # the transpose of groups and channels

    @staticmethod
    def _split_offset(step: Step, whole: Step) -> int:
        parts = type_of(whole.call).fields
        return sum(int(parts[at].shape[1]) for at in range(int(step.op.split(".")[1])))

    def _splits_groups(self, step: Step) -> bool:
        """Whether a step reshapes channels to groups, which a transpose then swaps with the channels of a group."""
        before, readers = self._shapes.get(step.refs[0], ()), self._readers[step.name]
        return (
            step.op == "relax.reshape"
            and len(before) == 4
            and len(step.shape) == 5
            and (step.shape[0], *step.shape[3:]) == (before[0], *before[2:])
            and bool(readers)
            and all(self._swaps_groups(one) for one in readers)
        )

    @staticmethod
    def _swaps_groups(step: Step) -> bool:
        axes = step.call.attrs.axes if step.op == "relax.permute_dims" else None
        return axes is not None and [int(axis) for axis in axes] == [0, 2, 1, 3, 4]

    def _continues_shuffle(self, step: Step) -> bool:
        """Whether a step continues the permutation of its input."""
        before = self._shapes.get(step.refs[0], ())
        if step.op == "relax.reshape" and len(before) == 5:
            return len(step.shape) == 4 and (step.shape[0], *step.shape[2:]) == (before[0], *before[3:])
        if step.op == "relax.split":
            return len(before) == 4 and int(step.call.attrs.axis) % 4 == 1
        return self._swaps_groups(step) or step.op.startswith("get_item.")
