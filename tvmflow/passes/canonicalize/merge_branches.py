"""Merge convolutions of one image whose outputs are added into one convolution.

Networks that are trained with parallel branches (RepVGG, MobileOne, ACNet) compute a sum of convolutions with different
kernels, and of the image itself times a scale per channel. The sum is one convolution with the largest of the kernels,
into which the others fit. Weights are added in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from tvmflow.ir.relax.emit import constant, convolution
from tvmflow.ir.relax.graph import Graph, Ref, Step, read_graph
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.passes.layout.layout_rewriter import LayoutRewriter

_ADD = "relax.add"
Weight = NDArray[np.float64]


@tvm.transform.module_pass(opt_level=0, name="MergeBranches")
class MergeBranches:
    """IRModule -> IRModule; unchanged if there are no such sums."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        merger = _BranchMerger(read_graph(mod))
        return merger.rewrite() if merger.sums else mod


class _BranchMerger(LayoutRewriter):
    """sums: name of an addition -> the convolution with the largest kernel, its new weight, and what else is added."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._steps, self._readers = {step.name: step for step in graph.steps}, graph.users()
        self.sums: dict[str, tuple[Step, Weight, list[Any]]] = {}
        for step in graph.steps:
            if self._is_sum(step) and not self._is_inner(step):
                found = self._merge(list(self._terms(step)))
                if found:
                    self.sums[step.name] = found

    def _is_sum(self, step: Step) -> bool:
        return step.op == _ADD and len(step.shape) == 4 and step.dtype == "float32"

    def _is_inner(self, step: Step) -> bool:
        """Whether only another addition of the same shape reads an addition."""
        reader = self._only_reader(step)
        return reader is not None and self._is_sum(reader) and reader.shape == step.shape

    def _only_reader(self, step: Step) -> Step | None:
        readers = self._readers[step.name]
        alone = len(readers) == 1 and step.name not in self.graph.outputs and readers[0].refs.count(step.name) == 1
        return readers[0] if alone else None

    def _terms(self, total: Step) -> Iterator[Any]:
        """Return the terms of a sum: steps that nothing else reads, names of other values, and constants."""
        for argument in total.args:
            step = self._steps.get(argument.name) if isinstance(argument, Ref) else None
            if step is None or step.shape != total.shape or self._only_reader(step) is None:
                yield argument.name if isinstance(argument, Ref) else argument
            elif self._is_sum(step):
                yield from self._terms(step)
            else:
                yield step

    def _merge(self, terms: list[Any]) -> tuple[Step, Weight, list[Any]] | None:
        """Return the convolution with the largest kernel, the sum of all weights that fit into its, and the rest."""
        convolutions = [term for term in terms if isinstance(term, Step) and is_convolution(term)]
        if not convolutions:
            return None
        largest = max(convolutions, key=lambda step: np.asarray(step.args[1]).size)
        total, rest = np.asarray(largest.args[1], np.float64), []
        for term in terms:
            if term is largest:
                continue
            part = self._as_part_of(largest, term) if isinstance(term, Step) else None
            if part is None:
                rest.append(term)
            else:
                total = total + part
        return (largest, total, rest) if len(rest) < len(terms) - 1 else None

    def _as_part_of(self, largest: Step, term: Step) -> Weight | None:
        """Return the weight of a term in the kernel of another convolution of the same image, None if it is none."""
        whole: Weight = np.zeros(np.shape(largest.args[1]))  # type: ignore[arg-type]
        attrs, (height, width) = largest.call.attrs, whole.shape[2:]
        top, left = int(attrs.padding[0]), int(attrs.padding[1])
        if is_convolution(term) and term.refs == largest.refs:
            other = term.call.attrs
            weight: Weight = np.asarray(term.args[1], np.float64)
            first, start = top - int(other.padding[0]), left - int(other.padding[1])
            end = first + weight.shape[2], start + weight.shape[3]
            same = list(other.strides) == list(attrs.strides) and int(other.groups) == int(attrs.groups)
            if not same or min(first, start) < 0 or end[0] > height or end[1] > width:
                return None
            whole[:, :, first : end[0], start : end[1]] = weight
            return whole
        scale = _scale_of(term, largest.refs[0])
        unit = all(int(stride) == 1 for stride in attrs.strides)
        if scale is None or not unit or self.shapes[largest.refs[0]] != term.shape or top >= height or left >= width:
            return None
        channels = np.arange(len(whole))
        whole[channels, channels % whole.shape[1], top, left] = scale
        return whole

    def _rewrite_step(self, step: Step) -> None:
        if step.name not in self.sums:
            self._emit_plain(step)
            return
        largest, weight, rest = self.sums[step.name]
        data = self._get_plain(largest.refs[0])
        total = self.builder.emit(convolution(largest, data, constant(weight, "float32"), largest.call.attrs.out_dtype))
        offsets = [term for term in rest if isinstance(term, np.ndarray) and is_per_channel(term, step.shape[1])]
        if offsets:
            offset = sum(np.broadcast_to(np.asarray(term, np.float64), (1, step.shape[1], 1, 1)) for term in offsets)
            total = self.builder.emit(relax.op.add(total, constant(offset, "float32")))
        for term in rest:
            if not any(term is offset for offset in offsets):
                total = self.builder.emit(relax.op.add(total, self._value_of(term)))
        self.plain[step.name] = total

    def _value_of(self, term: Any) -> Any:
        if isinstance(term, np.ndarray):
            return constant(term, "float32")
        return self._get_plain(term.name if isinstance(term, Step) else term)

    def _get_plain(self, name: str) -> Any:
        return self.plain[name]


def is_per_channel(values: Any, channels: int) -> bool:
    """Whether a constant adds one number to each channel, or to all."""
    return values.size == 1 or values.shape in ((1, channels, 1, 1), (channels, 1, 1))


def is_convolution(step: Step) -> bool:
    """Whether a step is a convolution of float32 with constant weights, without a dilation."""
    if step.op != "relax.nn.conv2d" or step.dtype != "float32" or not isinstance(step.args[1], np.ndarray):
        return False
    attrs = step.call.attrs
    plain = str(attrs.data_layout) == "NCHW" and str(attrs.kernel_layout) == "OIHW" and isinstance(step.args[0], Ref)
    return plain and all(int(value) == 1 for value in attrs.dilation)


def _scale_of(step: Step, image: str) -> Weight | None:
    """Return the factors of channels if a step multiplies an image by them, else None."""
    if step.op != "relax.multiply" or step.refs != (image,):
        return None
    factors = next((one for one in step.args if isinstance(one, np.ndarray)), None)
    if factors is None or factors.shape not in ((1, step.shape[1], 1, 1), (step.shape[1], 1, 1)):
        return None
    return np.asarray(factors, np.float64).reshape(-1)
