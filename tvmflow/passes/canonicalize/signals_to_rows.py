"""Rewrite convolutions and pools of signals, (N, C, L) or (N, C, L, 1), as those of images of one row, (N, C, 1, L).

Later passes and templates handle images only: batch norms, packed channels, integers. They tile and vectorize along
rows, so that an image of one column, as exporters write signals, would be computed pixel by pixel. Elementwise
operators, concats and means between the convolutions are computed on the rows, too.
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
from tvmflow.ir.tvm_compat import IRModule, shape_of
from tvmflow.passes.layout.layout_rewriter import LayoutRewriter


@tvm.transform.module_pass(opt_level=0, name="SignalsToRows")
class SignalsToRows:
    """IRModule -> IRModule; unchanged if there is no convolution or pool of signals."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        graph = read_graph(mod)
        shapes = {name: kind.shape for name, kind in graph.kinds().items()}
        if not any(step.op in _CONVERTERS and is_signal(shapes[step.refs[0]]) for step in graph.steps if step.refs):
            return mod
        return _Rewriter(graph).rewrite()


def is_signal(shape: tuple[int, ...]) -> bool:
    """Whether a value is (N, C, L), or an image of one column."""
    return len(shape) == 3 or (len(shape) == 4 and shape[3] == 1 and shape[2] > 1)


class _Rewriter(LayoutRewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.images: dict[str, Any] = {}
        self.readers = graph.users()

    def _rewrite_step(self, step: Step) -> None:
        converted = self._convert(step)
        if converted is None:
            self._emit_plain(step)
        else:
            self.images[step.name] = self.builder.emit(converted, step.name)

    def _get_plain(self, name: str) -> Any:
        if name not in self.plain:
            self.plain[name] = self._in_shape(self.images[name], self.shapes[name], f"{name}_signal")
        return self.plain[name]

    def _get_image(self, name: str) -> Any:
        if name not in self.images:
            n, c, length = self.shapes[name][:3]
            self.images[name] = self._in_shape(self.plain[name], (n, c, 1, length), f"{name}_image")
        return self.images[name]

    def _in_shape(self, value: Any, shape: tuple[int, ...], name: str) -> Any:
        """Return a value in a shape: itself for one pixel, so that a bias behind it is found."""
        return value if shape_of(value) == shape else self.builder.emit(relax.op.reshape(value, shape), name)

    def _convert(self, step: Step) -> Any:
        """Return the step computed on images, None if it stays as it is."""
        if step.op in _CONVERTERS:
            source = self.shapes[step.refs[0]]
            return _CONVERTERS[step.op](step, self._get_image) if is_signal(source) else None
        if step.op == "relax.nn.pad" and any(reader.op in _CONVERTERS for reader in self.readers[step.name]):
            return self._convert_pad(step)
        if not any(name in self.images for name in step.refs):
            return None
        if step.op in UNARY or step.op in ("relax.nn.batch_norm", "get_item.0"):
            return rebuild_call(step, self._get_image)
        axes = len(step.shape)
        if (
            step.op in BROADCASTING
            and all(is_signal(self.shapes[name]) for name in step.refs)
            and is_signal(step.shape)
        ):
            if any(len(self.shapes[name]) != axes for name in step.refs):
                return None
            moved = tuple(_as_image_constant(argument, axes) for argument in step.args)
            return rebuild_call(Step(step.name, step.op, moved, step.call, step.shape, step.dtype), self._get_image)
        if step.op == "relax.mean" and self._reduces_length(step):
            return relax.op.mean(self._get_image(step.refs[0]), axis=[2, 3], keepdims=True)
        if is_signal(step.shape) and is_concat(step, axis=1):
            return relax.op.concat([self._get_image(name) for name in step.refs], axis=1)
        return None

    def _convert_pad(self, step: Step) -> Any:
        """Return a padded row, None if the batch, the channels or the single column are padded."""
        attrs = step.call.attrs
        widths = [int(width) for width in attrs.pad_width]
        if not is_signal(self.shapes[step.refs[0]]) or any([*widths[:4], *widths[6:]]):
            return None
        return relax.op.nn.pad(
            self._get_image(step.refs[0]),
            [0] * 6 + widths[4:6],
            pad_mode=str(attrs.pad_mode),
            pad_value=float(attrs.pad_value),
        )

    def _reduces_length(self, step: Step) -> bool:
        """Whether a mean is over L and keeps its dimensions."""
        source, axes = self.shapes[step.refs[0]], step.call.attrs.axis
        if not is_signal(source) or len(step.shape) != len(source) or axes is None:
            return False
        reduced = sorted(int(axis) % len(source) for axis in axes)
        return reduced in ([2], [2, 3])


def _as_image_constant(argument: Argument, axes: int) -> Argument:
    """Return a constant that broadcasts against a signal of so many axes as one for rows, (N, C, 1, L)."""
    if not isinstance(argument, np.ndarray) or argument.size == 1:
        return argument
    filled = argument.reshape((1,) * (axes - argument.ndim) + argument.shape)
    return np.expand_dims(filled, 2) if axes == 3 else filled.swapaxes(2, 3)


def _by_axis(values: Any, other: int) -> list[int]:
    """Return attributes of a signal's axes as those of a row, (1, L); `other`: of the axis that a signal lacks."""
    return [other, int(values[0])] if len(values) == 1 else [int(values[1]), int(values[0])]


def _padding(values: Any) -> list[int]:
    """Return the padding of a signal, one axis or two, as top, left, bottom, right of a row."""
    given = [int(value) for value in values]
    if len(given) <= 2:
        before, behind = (*given, *given)[:2]
        return [0, before, 0, behind]
    top, left, bottom, right = given
    return [left, top, right, bottom]


def _convert_convolution(step: Step, image: Callable[[str], Any]) -> Any:
    attrs, weight = step.call.attrs, step.args[1]
    if not isinstance(weight, np.ndarray) or str(attrs.data_layout) not in ("NCW", "NCHW"):
        return None
    if str(attrs.kernel_layout) not in ("OIW", "IOW", "OIHW", "IOHW") or weight.shape[3:] not in ((), (1,)):
        return None
    padding = _padding(attrs.padding)
    if padding[0] or padding[2] or step.shape[3:] not in ((), (1,)):
        return None
    options = {
        "strides": _by_axis(attrs.strides, 1),
        "padding": padding,
        "dilation": _by_axis(attrs.dilation, 1),
        "groups": int(attrs.groups),
        "out_dtype": step.dtype,
    }
    kernel = constant(weight.reshape(*weight.shape[:2], 1, weight.shape[2]), str(weight.dtype))
    if step.op.endswith("_transpose"):
        behind = _by_axis(attrs.output_padding, 0)
        return relax.op.nn.conv2d_transpose(image(step.refs[0]), kernel, output_padding=behind, **options)
    return relax.op.nn.conv2d(image(step.refs[0]), kernel, **options)


def _convert_pool(step: Step, image: Callable[[str], Any]) -> Any:
    attrs = step.call.attrs
    if str(attrs.layout) not in ("NCW", "NCHW") or step.shape[3:] not in ((), (1,)):
        return None
    operator = relax.op.nn.max_pool2d if "max" in step.op else relax.op.nn.avg_pool2d
    return operator(
        image(step.refs[0]),
        pool_size=_by_axis(attrs.pool_size, 1),
        strides=_by_axis(attrs.strides, 1),
        padding=_padding(attrs.padding),
        dilation=_by_axis(attrs.dilation, 1),
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
    )


_CONVERTERS: dict[str, Callable[[Step, Callable[[str], Any]], Any]] = {
    "relax.nn.conv1d": _convert_convolution,
    "relax.nn.conv1d_transpose": _convert_convolution,
    "relax.nn.max_pool1d": _convert_pool,
    "relax.nn.avg_pool1d": _convert_pool,
    "relax.nn.conv2d": _convert_convolution,
    "relax.nn.conv2d_transpose": _convert_convolution,
    "relax.nn.max_pool2d": _convert_pool,
    "relax.nn.avg_pool2d": _convert_pool,
}
