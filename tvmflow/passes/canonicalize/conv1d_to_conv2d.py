"""Rewrite 1-D convolutions and pools, (N, C, L), as 2-D ones over images of one row, (N, C, 1, L).

Later passes and templates handle images only: batch norms, packed channels, integers. Elementwise operators, concats
and means between the convolutions are computed on the image, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.elementwise import BROADCASTING, UNARY
from tvmflow.ir.relax.emit import constant, rebuild_call
from tvmflow.ir.relax.graph import Argument, Graph, Step, is_concat, read_graph
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.passes.layout.layout_rewriter import LayoutRewriter


@tvm.transform.module_pass(opt_level=0, name="Conv1dToConv2d")
class Conv1dToConv2d:
    """IRModule -> IRModule; unchanged if there is no 1-D convolution or pool."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        graph = read_graph(mod)
        if not any(step.op in _CONVERTERS for step in graph.steps):
            return mod
        return _Rewriter(graph).rewrite()


class _Rewriter(LayoutRewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.images: dict[str, Any] = {}

    def _rewrite_step(self, step: Step) -> None:
        converted = self._convert(step)
        if converted is None:
            self._emit_plain(step)
        else:
            self.images[step.name] = self.builder.emit(converted, step.name)

    def _get_plain(self, name: str) -> Any:
        if name not in self.plain:
            sequence = relax.op.reshape(self.images[name], self.shapes[name])
            self.plain[name] = self.builder.emit(sequence, f"{name}_signal")
        return self.plain[name]

    def _get_image(self, name: str) -> Any:
        if name not in self.images:
            n, c, length = self.shapes[name]
            image = relax.op.reshape(self.plain[name], (n, c, 1, length))
            self.images[name] = self.builder.emit(image, f"{name}_image")
        return self.images[name]

    def _convert(self, step: Step) -> Any:
        """Return the step computed on images, None if it stays as it is."""
        if step.op in _CONVERTERS:
            return _CONVERTERS[step.op](step, self._get_image)
        if not any(name in self.images for name in step.refs):
            return None
        if step.op in UNARY or step.op in ("relax.nn.batch_norm", "get_item.0"):
            return rebuild_call(step, self._get_image)
        if step.op in BROADCASTING and len(step.shape) == 3 and all(len(self.shapes[name]) == 3 for name in step.refs):
            moved = tuple(_as_image_constant(argument) for argument in step.args)
            return rebuild_call(Step(step.name, step.op, moved, step.call, step.shape, step.dtype), self._get_image)
        if step.op == "relax.mean" and self._reduces_length(step):
            return relax.op.mean(self._get_image(step.refs[0]), axis=[2, 3], keepdims=True)
        if len(step.shape) == 3 and is_concat(step, axis=1):
            return relax.op.concat([self._get_image(name) for name in step.refs], axis=1)
        return None

    def _reduces_length(self, step: Step) -> bool:
        """Whether a mean is over L and keeps its dimensions."""
        axes = step.call.attrs.axis
        return (
            len(step.shape) == len(self.shapes[step.refs[0]]) == 3
            and axes is not None
            and [int(axis) % 3 for axis in axes] == [2]
        )


def _as_image_constant(argument: Argument) -> Argument:
    """Return a constant that broadcasts against (N, C, L) as one that broadcasts against (N, C, 1, L)."""
    if not isinstance(argument, np.ndarray) or argument.size == 1:
        return argument
    return np.expand_dims(argument.reshape((1,) * (3 - argument.ndim) + argument.shape), 2)


def _add_row(values: Any, other: int) -> list[int]:
    """Return 1-D attributes as 2-D ones; `other` is the attribute of the rows."""
    return [part for value in values for part in (other, int(value))]


def _padding_2d(values: Any) -> list[int]:
    before, behind = (int(value) for value in (*values, *values)[:2])
    return [0, before, 0, behind]


def _convert_convolution(step: Step, image: Callable[[str], Any]) -> Any:
    attrs, weight = step.call.attrs, step.args[1]
    if (
        not isinstance(weight, np.ndarray)
        or str(attrs.data_layout) != "NCW"
        or str(attrs.kernel_layout) not in ("OIW", "IOW")
    ):
        return None
    options = {
        "strides": _add_row(attrs.strides, 1),
        "padding": _padding_2d(attrs.padding),
        "dilation": _add_row(attrs.dilation, 1),
        "groups": int(attrs.groups),
        "out_dtype": step.dtype,
    }
    kernel = constant(weight[:, :, None], str(weight.dtype))
    if step.op == "relax.nn.conv1d_transpose":
        behind = _add_row(attrs.output_padding, 0)
        return relax.op.nn.conv2d_transpose(image(step.refs[0]), kernel, output_padding=behind, **options)
    return relax.op.nn.conv2d(image(step.refs[0]), kernel, **options)


def _convert_pool(step: Step, image: Callable[[str], Any]) -> Any:
    attrs = step.call.attrs
    if str(attrs.layout) != "NCW":
        return None
    operator = relax.op.nn.max_pool2d if step.op == "relax.nn.max_pool1d" else relax.op.nn.avg_pool2d
    return operator(
        image(step.refs[0]),
        pool_size=_add_row(attrs.pool_size, 1),
        strides=_add_row(attrs.strides, 1),
        padding=_padding_2d(attrs.padding),
        dilation=_add_row(attrs.dilation, 1),
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
    )


_CONVERTERS: dict[str, Callable[[Step, Callable[[str], Any]], Any]] = {
    "relax.nn.conv1d": _convert_convolution,
    "relax.nn.conv1d_transpose": _convert_convolution,
    "relax.nn.max_pool1d": _convert_pool,
    "relax.nn.avg_pool1d": _convert_pool,
}
