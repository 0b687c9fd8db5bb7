"""Channel shuffles on packed channels: what only moves channels is computed where it is read, from packed channels to
packed channels.

As they are written, shuffles unpack channels, move them in planes and pack them again, three passes over the image.
Here each reader gets one kernel of its own that does all of it; parts that the next shuffle takes as they are stay
packed in between. Parts of a split and concatenations whose channels fill no blocks are such moves, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import call_again
from tvmflow.ir.relax.graph import Array, Graph, Step, joins
from tvmflow.ir.relax.views import sliced
from tvmflow.ir.tvm_compat import type_of
from tvmflow.passes.layout.channel_permute import moved_channels


class ChannelMoves:
    """steps: those of the network that only move channels, by name, as far as they were seen; they are not computed by
    themselves.

    block: of packed channels. Any choice of channels is moved where that is cheap (`lane_moves`), else only shuffles
    are.
    """

    def __init__(self, graph: Graph, block: int, any_choice: bool) -> None:
        self.steps: dict[str, Step] = {}
        self._block, self._any_choice = block, any_choice
        self._readers, self._outputs = graph.users(), set(graph.outputs)
        self._shapes = {name: kind.shape for name, kind in graph.kinds().items()}

    def take(self, step: Step, packed: Container[str]) -> bool:
        """Remember a step that belongs to a shuffle of packed channels; return whether it does."""
        if not step.refs or not any(name in packed or name in self.steps for name in step.refs):
            return False
        moves = (
            self._begins(step)
            or self._groups(step)
            or (step.refs[0] in self.steps and self._goes_on(step))
            or (self._any_choice and self._chooses(step, packed))
        )
        if moves:
            self.steps[step.name] = step
        return moves

    def again(self, name: str, value_of: Callable[[str], Any]) -> Any:
        """Return a step's expression of its values; a part of a split is a slice, so that it is computed alone."""
        step = self.steps[name]
        whole = self.steps.get(step.refs[0])
        if not step.op.startswith("get_item.") or whole is None:
            return call_again(step, value_of)
        begin = self._begin(step, whole)
        return relax.op.strided_slice(
            value_of(whole.refs[0]), axes=[1], begin=[begin], end=[begin + self._shapes[name][1]]
        )

    def _begins(self, step: Step) -> bool:
        """Whether parts are joined to be shuffled, and for nothing else."""
        readers = self._readers[step.name]
        begins = len(step.shape) == 4 and joins(step, axis=1)
        return begins and step.name not in self._outputs and bool(readers) and all(self._groups(one) for one in readers)

    def _chooses(self, step: Step, packed: Container[str]) -> bool:
        """Whether a step takes channels of a packed image, or joins several whose channels fill no blocks."""
        shapes = [self._shapes[name] for name in step.refs]
        if not all(
            len(shape) == 4 and (name in packed or name in self.steps)
            for name, shape in zip(step.refs, shapes, strict=True)
        ):
            return False
        if step.op == "relax.concat":
            return joins(step, axis=1) and any(shape[1] % self._block for shape in shapes)
        if step.op == "relax.split":
            return int(step.call.attrs.axis) % 4 == 1
        return step.op == "relax.strided_slice" and [
            int(getattr(axis, "value", axis)) for axis in step.call.args[1].fields
        ] == [1]

    def packed(self, builder: Any, name: str, packed: Mapping[str, Any]) -> Any:
        """Return a moved image packed, by one kernel that reads the packed images which it consists of."""
        images: list[str] = []
        places = self._places(name, packed, images).tolist()
        return moved_channels(builder, [packed[one] for one in images], list(zip(*places, strict=True)))

    def _places(self, name: str, packed: Container[str], images: list[str]) -> Array:
        """Return for each channel which image has it, and where, (2, C), or (2, G, C / G) of channels in groups; new
        images are added to the list.
        """
        if name in packed:
            if name not in images:
                images.append(name)
            channels = np.arange(self._shapes[name][1])
            return np.stack([np.full_like(channels, images.index(name)), channels])
        step = self.steps[name]
        whole = self.steps.get(step.refs[0])
        if step.op.startswith("get_item.") and whole is not None:
            begin, size = self._begin(step, whole), self._shapes[name][1]
            return self._places(whole.refs[0], packed, images)[:, begin : begin + size]
        parts = [self._places(one, packed, images) for one in step.refs]
        if step.op == "relax.concat":
            return np.concatenate(parts, axis=1)
        if step.op == "relax.reshape":
            return parts[0].reshape(2, *step.shape[1:-2])
        if step.op == "relax.strided_slice":
            return sliced(parts[0], step.call)
        return parts[0].swapaxes(1, 2)  # groups exchanged with the channels of a group

    @staticmethod
    def _begin(step: Step, whole: Step) -> int:
        parts = type_of(whole.call).fields
        return sum(int(parts[at].shape[1]) for at in range(int(step.op.split(".")[1])))

    def _groups(self, step: Step) -> bool:
        """Whether an image's channels are put into groups, which are then exchanged with the channels of a group."""
        before, readers = self._shapes.get(step.refs[0], ()), self._readers[step.name]
        return (
            step.op == "relax.reshape"
            and len(before) == 4
            and len(step.shape) == 5
            and (step.shape[0], *step.shape[3:]) == (before[0], *before[2:])
            and bool(readers)
            and all(self._exchanges(one) for one in readers)
        )

    @staticmethod
    def _exchanges(step: Step) -> bool:
        axes = step.call.attrs.axes if step.op == "relax.permute_dims" else None
        return axes is not None and [int(axis) for axis in axes] == [0, 2, 1, 3, 4]

    def _goes_on(self, step: Step) -> bool:
        """Whether a step moves what is moved already."""
        before = self._shapes.get(step.refs[0], ())
        if step.op == "relax.reshape" and len(before) == 5:
            return len(step.shape) == 4 and (step.shape[0], *step.shape[2:]) == (before[0], *before[3:])
        if step.op == "relax.split":
            return len(before) == 4 and int(step.call.attrs.axis) % 4 == 1
        return self._exchanges(step) or step.op.startswith("get_item.")
