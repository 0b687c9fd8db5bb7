"""Average an image before a 1x1 convolution instead of after it: the same numbers from fewer products.

The transitions of DenseNet average windows of 2x2 pixels of a convolution. Both are linear, and the windows lie inside
the image, so that a bias is the same before and after.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm

from tvmflow.ir.relax.emit import rebuild_call
from tvmflow.ir.relax.graph import Graph, Step, read_graph
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.passes.canonicalize.merge_branches import is_convolution, is_per_channel
from tvmflow.passes.layout.layout_rewriter import LayoutRewriter


@tvm.transform.module_pass(opt_level=0, name="AverageFirst")
class AverageFirst:
    """IRModule -> IRModule; unchanged if no 1x1 convolution is averaged."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        rewriter = _AverageMover(read_graph(mod))
        return rewriter.rewrite() if rewriter.chains else mod


class _AverageMover(LayoutRewriter):
    """chains: name of an average -> the convolution before it, and what is added to that."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._steps, self._readers = {step.name: step for step in graph.steps}, graph.users()
        found = {step.name: self._chain(step) for step in graph.steps if self._divides(step)}
        self.chains = {name: chain for name, chain in found.items() if chain}

    def _divides(self, step: Step) -> bool:
        """Whether a step averages windows of several pixels, all of them inside the image."""
        if step.op != "relax.nn.avg_pool2d" or step.dtype != "float32" or str(step.call.attrs.layout) != "NCHW":
            return False
        attrs, before, after = step.call.attrs, self.shapes[step.refs[0]][2:], step.shape[2:]
        inside = all(
            (size - 1) * int(stride) + int(window) <= given
            for given, size, stride, window in zip(before, after, attrs.strides, attrs.pool_size, strict=True)
        )
        plain = not any(int(p) for p in attrs.padding) and all(int(d) == 1 for d in attrs.dilation)
        return plain and inside and math.prod(after) < math.prod(before)

    def _chain(self, pool: Step) -> list[Step]:
        """Return the 1x1 convolution that a pool averages, and the bias between them, nothing for anything else."""
        chain: list[Step] = []
        step = self._hidden(pool)
        if step is not None and step.op == "relax.add" and _adds_per_channel(step):
            chain, step = [step], self._hidden(step)
        if step is None or not is_convolution(step) or np.shape(step.args[1])[2:] != (1, 1):  # type: ignore[arg-type]
            return []
        attrs = step.call.attrs
        plain = not any(int(p) for p in attrs.padding) and all(int(s) == 1 for s in attrs.strides)
        return [step, *chain] if plain else []

    def _hidden(self, step: Step) -> Step | None:
        """Return the step that computes a step's first operand, None if something else reads that, too."""
        source = self._steps.get(step.refs[0])
        alone = source is not None and len(self._readers[source.name]) == 1 and source.name not in self.graph.outputs
        return source if alone else None

    def _rewrite_step(self, step: Step) -> None:
        if step.name not in self.chains:
            self._emit_plain(step)  # without a reader it is dropped
            return
        value = self.plain[self.chains[step.name][0].refs[0]]
        for one in (step, *self.chains[step.name]):
            value = self.builder.emit(rebuild_call(one, lambda _name, value=value: value))  # type: ignore[misc]
        self.plain[step.name] = value

    def _get_plain(self, name: str) -> Any:
        return self.plain[name]


def _adds_per_channel(step: Step) -> bool:
    """Whether an addition adds a constant to each channel of its only other operand."""
    constants = [one for one in step.args if isinstance(one, np.ndarray)]
    return len(constants) == len(step.refs) == 1 and is_per_channel(constants[0], step.shape[1])
