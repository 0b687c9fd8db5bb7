"""Move a concat of convolutions below the elementwise operators that follow it.

Batch norms can then be folded into the convolutions, and activations are computed in their epilogues. Blocks of
convolutions with different kernel sizes (MixNet) are normalized behind the concat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.elementwise import BROADCASTING, UNARY
from tvmflow.ir.relax.emit import rebuild_call
from tvmflow.ir.relax.graph import Argument, Graph, Step, is_concat, read_graph
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.passes.layout.layout_rewriter import LayoutRewriter

_NORM = "relax.nn.batch_norm"
_CONVOLUTIONS = ("relax.nn.conv2d", "relax.nn.conv2d_transpose")


@tvm.transform.module_pass(opt_level=0, name="SinkConcat")
class SinkConcat:
    """IRModule -> IRModule; unchanged if no convolutions are concatenated."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        graph = read_graph(mod)
        sinker = _ConcatSinker(graph)
        return sinker.rewrite() if any(sinker.can_sink(step) for step in graph.steps) else mod


class _ConcatSinker(LayoutRewriter):
    """Rewrite each value behind a concat as one value for each of its inputs.

    parts: the values before their concat, by the name of the concat; sizes: the channels of each part.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.parts: dict[str, list[Any]] = {}
        self.sizes: dict[str, list[int]] = {}
        self._steps, self._readers = {step.name: step for step in graph.steps}, graph.users()

    def can_sink(self, step: Step) -> bool:
        """Whether a step concatenates convolutions along channels, and only elementwise operators read it."""
        if len(step.shape) != 4 or not is_concat(step, axis=1):
            return False
        readers = self._readers[step.name]
        return (
            bool(readers)
            and step.name not in self.graph.outputs
            and all(self._is_elementwise(reader) for reader in readers)
            and all(self._is_convolution(name) and len(self._readers[name]) == 1 for name in step.refs)
        )

    def _is_convolution(self, name: str) -> bool:
        """Whether a value is the output of a convolution, with or without a bias."""
        step = self._steps.get(name)
        if step is not None and step.op == "relax.add" and isinstance(step.args[1], np.ndarray) and step.refs:
            step = self._steps.get(step.refs[0])
        return step is not None and step.op in _CONVOLUTIONS

    def _is_elementwise(self, step: Step) -> bool:
        """Whether a step computes each channel from the same channel of its operands."""
        if step.op == _NORM:
            only = all(reader.op == "get_item.0" for reader in self._readers[step.name])
            return only and int(step.call.attrs.axis) == 1 and len(step.refs) == 1
        return step.op in UNARY or (step.op in BROADCASTING and len(step.shape) == 4)

    def _rewrite_step(self, step: Step) -> None:
        if self.can_sink(step):
            self.parts[step.name] = [self._get_plain(name) for name in step.refs]
            self.sizes[step.name] = [self.shapes[name][1] for name in step.refs]
            return
        sizes = [self.sizes[name] for name in step.refs if name in self.parts]
        same = len(sizes) == len(step.refs) and all(one == sizes[0] for one in sizes)
        if not same or not (step.op == "get_item.0" or self._is_elementwise(step)):
            self._emit_plain(step)
            return
        self.sizes[step.name] = sizes[0]
        ends = np.cumsum(sizes[0])
        self.parts[step.name] = [
            self.builder.emit(self._compute_part(step, at, slice(int(end) - size, int(end))))
            for at, (size, end) in enumerate(zip(sizes[0], ends, strict=True))
        ]

    def _compute_part(self, step: Step, at: int, channels: slice) -> Any:
        def slice_constant(argument: Argument) -> Argument:
            if not isinstance(argument, np.ndarray):
                return argument
            axis = 0 if step.op == _NORM else argument.ndim - 3  # of the channels, from the last axis
            if axis < 0 or argument.shape[axis] == 1:
                return argument
            return np.asarray(argument[(*[slice(None)] * axis, channels)])

        moved = Step(step.name, step.op, tuple(map(slice_constant, step.args)), step.call, step.shape, step.dtype)
        return rebuild_call(moved, lambda name: self.parts[name][at])

    def _get_plain(self, name: str) -> Any:
        if name not in self.plain:
            self.plain[name] = self.builder.emit(relax.op.concat(self.parts[name], axis=1), name)
        return self.plain[name]
