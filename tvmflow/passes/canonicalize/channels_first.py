"""Convert a channels-last network (NHWC) to channels-first (NCHW).

Importers leave two forms: convolutions in NHWC (TFLite), or in NCHW between pairs of transpositions (Keras).
ChannelsFirst gives each 4-D value in NHWC a counterpart in NCHW. Operators that work in either layout are computed on
the counterpart, and the NHWC value is computed only for readers that need it. Transpositions remain at most at the
input and in front of a flatten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.elementwise import BROADCASTING, UNARY
from tvmflow.ir.relax.emit import constant, rebuild_call
from tvmflow.ir.relax.graph import Argument, Array, Graph, Ref, Step, axes_of_permutation, is_concat, read_graph
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.passes.layout.layout_rewriter import LayoutRewriter

_TO_FIRST, _TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]
_QUANTIZE = {"relax.quantize", "relax.dequantize"}


@tvm.transform.module_pass(opt_level=0, name="ChannelsFirst")
class ChannelsFirst:
    """IRModule -> IRModule; unchanged if no operator is channels-last."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        graph = read_graph(mod)
        if not any(_is_channels_last(step) for step in graph.steps):
            return mod
        return _Rewriter(graph).rewrite()


def _is_channels_last(step: Step) -> bool:
    if step.op == "relax.permute_dims":
        return axes_of_permutation(step) in (_TO_FIRST, _TO_LAST)
    layout = getattr(step.call.attrs, "data_layout", None) if step.op == "relax.nn.conv2d" else None
    return str(layout) == "NHWC"


class _Rewriter(LayoutRewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.first: dict[str, Any] = {}

    def _get_plain(self, name: str) -> Any:
        if name not in self.plain:
            self.plain[name] = self.builder.emit(self._permute(name, self.first[name], _TO_LAST), f"{name}_last")
        return self.plain[name]

    def _get_first(self, name: str) -> Any:
        """Return a value in NCHW, transposed on first use."""
        if name not in self.first:
            self.first[name] = self.builder.emit(self._permute(name, self.plain[name], _TO_FIRST), f"{name}_first")
        return self.first[name]

    def _permute(self, name: str, value: Any, axes: list[int]) -> Any:
        """Return the permutation of a value, a reshape if it moves nothing in memory."""
        if self._is_pixel(name):
            last = self.shapes[name]
            return relax.op.reshape(value, [last[axis] for axis in _TO_FIRST] if axes == _TO_FIRST else last)
        return relax.op.permute_dims(value, axes)

    def _rewrite_step(self, step: Step) -> None:
        if step.op == "relax.permute_dims" and axes_of_permutation(step) == _TO_FIRST:
            self.plain[step.name] = self._get_first(step.refs[0])
            return
        if step.op == "relax.permute_dims" and axes_of_permutation(step) == _TO_LAST:
            self.first[step.name] = self._get_plain(step.refs[0])
            return
        converted = self._convert(step)
        if converted is not None:
            result = self.builder.emit(converted(), step.name)
            if len(step.shape) == 4:
                self.first[step.name] = result
            else:
                self.plain[step.name] = result
            return
        self._emit_plain(step)

    def _convert(self, step: Step) -> Callable[[], Any] | None:
        """Return a function that emits the step in NCHW, None if the step must stay as it is."""
        if step.op == "relax.nn.conv2d" and str(step.call.attrs.data_layout) == "NHWC":
            return lambda: self._convert_convolution(step)
        if step.op in ("relax.nn.max_pool2d", "relax.nn.avg_pool2d") and str(step.call.attrs.layout) == "NHWC":
            return lambda: self._convert_pool(step)
        if not any(name in self.first for name in step.refs):
            return None
        if step.op in UNARY or (step.op in _QUANTIZE and all(_is_scalar(a) for a in step.args[1:])):
            return lambda: rebuild_call(step, self._get_first)
        if step.op in BROADCASTING:
            return self._convert_binary(step)
        if step.op in ("relax.mean", "relax.sum", "relax.max", "relax.min"):
            return self._convert_reduction(step)
        if len(step.shape) == 4 and is_concat(step):
            if self._is_cheaper_last(step):
                return None
            axis = {0: 0, 1: 2, 2: 3, 3: 1}[int(step.call.attrs.axis) % 4]
            return lambda: relax.op.concat([self._get_first(name) for name in step.refs], axis=axis)
        if step.op == "relax.nn.pad" and len(step.shape) == 4:
            return lambda: self._convert_pad(step)
        if step.op == "relax.reshape" and len(step.shape) == 2 and self._is_pixel(step.refs[0]):
            return lambda: relax.op.reshape(self._get_first(step.refs[0]), step.shape)
        return None

    def _is_cheaper_last(self, step: Step) -> bool:
        """Whether only pixels of a concat are in NCHW: the state of a streaming network and what is appended to it."""
        in_first = [name for name in step.refs if name in self.first]
        return len(in_first) < len(step.refs) and all(self._is_pixel(name) for name in in_first)

    def _is_pixel(self, name: str) -> bool:
        return len(self.shapes[name]) == 4 and math.prod(self.shapes[name][1:3]) == 1

    def _convert_convolution(self, step: Step) -> Any:
        attrs, weight = step.call.attrs, step.args[1]
        order = {"HWIO": (3, 2, 0, 1), "OHWI": (0, 3, 1, 2), "OIHW": (0, 1, 2, 3), "HWOI": (2, 3, 0, 1)}[
            str(attrs.kernel_layout)
        ]
        if isinstance(weight, np.ndarray):
            kernel = constant(np.transpose(weight, order), str(weight.dtype))
        else:
            kernel = relax.op.permute_dims(self._get_plain(step.refs[1]), list(order))
        return relax.op.nn.conv2d(
            self._get_first(step.refs[0]),
            kernel,
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            dilation=list(attrs.dilation),
            groups=attrs.groups,
            out_dtype=step.dtype,
        )

    def _convert_pool(self, step: Step) -> Any:
        attrs = step.call.attrs
        options: dict[str, Any] = {
            "pool_size": list(attrs.pool_size),
            "strides": list(attrs.strides),
            "dilation": list(attrs.dilation),
            "padding": list(attrs.padding),
            "ceil_mode": bool(attrs.ceil_mode),
            "count_include_pad": bool(attrs.count_include_pad),
        }
        operator = relax.op.nn.max_pool2d if "max" in step.op else relax.op.nn.avg_pool2d
        return operator(self._get_first(step.refs[0]), **options)

    def _convert_binary(self, step: Step) -> Callable[[], Any] | None:
        if len(step.shape) != 4:
            return None
        for argument in step.args:
            if isinstance(argument, Ref) and len(self.shapes[argument.name]) != 4:
                return None
        moved = tuple(_first_constant(argument) for argument in step.args)
        again = Step(step.name, step.op, moved, step.call, step.shape, step.dtype)
        return lambda: rebuild_call(again, self._get_first)

    def _convert_reduction(self, step: Step) -> Callable[[], Any] | None:
        attrs = step.call.attrs
        if attrs.axis is None or len(self.shapes[step.refs[0]]) != 4:
            return None
        axes = sorted(int(a) % 4 for a in attrs.axis)
        if axes not in ([1, 2], [1, 2, 3]) and not attrs.keepdims:
            return None
        operator, moved = getattr(relax.op, step.op.split(".")[-1]), sorted(_TO_LAST[axis] for axis in axes)
        return lambda: operator(self._get_first(step.refs[0]), axis=moved, keepdims=bool(attrs.keepdims))

    def _convert_pad(self, step: Step) -> Any:
        attrs = step.call.attrs
        widths = np.reshape([int(w) for w in attrs.pad_width], (4, 2))[_TO_FIRST].reshape(-1).tolist()
        return relax.op.nn.pad(
            self._get_first(step.refs[0]), widths, pad_mode=str(attrs.pad_mode), pad_value=float(attrs.pad_value)
        )


def _is_scalar(argument: Argument) -> bool:
    return isinstance(argument, np.ndarray) and argument.size == 1


def _first_constant(argument: Argument) -> Argument:
    """Return a constant that broadcasts against NHWC as one that broadcasts against NCHW."""
    if not isinstance(argument, np.ndarray) or argument.size == 1:
        return argument
    full: Array = argument.reshape((1,) * (4 - argument.ndim) + argument.shape)
    return full.transpose(_TO_FIRST)
