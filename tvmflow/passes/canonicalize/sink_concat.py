"""SinkConcat: what follows a concatenation of convolutions, element by element, is computed of each of them, and joined
behind it.

Batch norms fold into the convolutions then, and activations are computed while outputs are in registers: convolutions
with kernels of several sizes (MixNet) are normalized after they are joined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.elementwise import BROADCASTING, UNARY
from tvmflow.ir.relax.emit import call_again
from tvmflow.ir.relax.graph import Argument, Graph, Step, joins, read_graph
from tvmflow.passes.layout.layout_rewriter import TwoLayouts

_NORM = "relax.nn.batch_norm"
_CONVOLUTIONS = ("relax.nn.conv2d", "relax.nn.conv2d_transpose")


@tvm.transform.module_pass(opt_level=0, name="SinkConcat")
class SinkConcat:
    """IRModule -> IRModule; unchanged where no convolutions are joined."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        graph = read_graph(mod)
        divider = _Divider(graph)
        return divider.module() if any(divider.divides(step) for step in graph.steps) else mod


class _Divider(TwoLayouts):
    """parts: of values that are not joined yet, by name; sizes: the channels of each."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.parts: dict[str, list[Any]] = {}
        self.sizes: dict[str, list[int]] = {}
        self._steps, self._readers = {step.name: step for step in graph.steps}, graph.users()

    def divides(self, step: Step) -> bool:
        """Whether a step joins convolutions along their channels, and is read by operators on single elements alone."""
        if len(step.shape) != 4 or not joins(step, axis=1):
            return False
        readers = self._readers[step.name]
        return (
            bool(readers)
            and step.name not in self.graph.outputs
            and all(self._each(reader) for reader in readers)
            and all(self._is_convolution(name) and len(self._readers[name]) == 1 for name in step.refs)
        )

    def _is_convolution(self, name: str) -> bool:
        """Whether a value is made by a convolution, perhaps with a bias."""
        step = self._steps.get(name)
        if step is not None and step.op == "relax.add" and isinstance(step.args[1], np.ndarray) and step.refs:
            step = self._steps.get(step.refs[0])
        return step is not None and step.op in _CONVOLUTIONS

    def _each(self, step: Step) -> bool:
        """Whether a step computes each channel by itself from those of its operands."""
        if step.op == _NORM:
            only = all(reader.op == "get_item.0" for reader in self._readers[step.name])
            return only and int(step.call.attrs.axis) == 1 and len(step.refs) == 1
        return step.op in UNARY or (step.op in BROADCASTING and len(step.shape) == 4)

    def _step(self, step: Step) -> None:
        if self.divides(step):
            self.parts[step.name] = [self._as_plain(name) for name in step.refs]
            self.sizes[step.name] = [self.shapes[name][1] for name in step.refs]
            return
        sizes = [self.sizes[name] for name in step.refs if name in self.parts]
        same = len(sizes) == len(step.refs) and all(one == sizes[0] for one in sizes)
        if not same or not (step.op == "get_item.0" or self._each(step)):
            self._emit_plain(step)
            return
        self.sizes[step.name] = sizes[0]
        ends = np.cumsum(sizes[0])
        self.parts[step.name] = [
            self.builder.emit(self._part(step, at, slice(int(end) - size, int(end))))
            for at, (size, end) in enumerate(zip(sizes[0], ends, strict=True))
        ]

    def _part(self, step: Step, at: int, channels: slice) -> Any:
        def cut(argument: Argument) -> Argument:
            if not isinstance(argument, np.ndarray):
                return argument
            axis = 0 if step.op == _NORM else argument.ndim - 3  # of the channels, from the last axis
            if axis < 0 or argument.shape[axis] == 1:
                return argument
            return np.asarray(argument[(*[slice(None)] * axis, channels)])

        moved = Step(step.name, step.op, tuple(map(cut, step.args)), step.call, step.shape, step.dtype)
        return call_again(moved, lambda name: self.parts[name][at])

    def _as_plain(self, name: str) -> Any:
        if name not in self.plain:
            self.plain[name] = self.builder.emit(relax.op.concat(self.parts[name], axis=1), name)
        return self.plain[name]
