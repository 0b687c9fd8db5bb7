"""Conv1dToConv2d: convolutions and pools over (N, C, L), as networks for speech have them, become those of images of
one row, (N, C, 1, L).

Everything that follows knows images: batch norms, packed channels, integers, templates. Operators between them that do
not care are computed on the image, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.elementwise import BROADCASTING, UNARY
from tvmflow.ir.relax.emit import call_again, constant
from tvmflow.ir.relax.graph import Argument, Graph, Step, joins, read_graph
from tvmflow.passes.layout.layout_rewriter import TwoLayouts


@tvm.transform.module_pass(opt_level=0, name="Conv1dToConv2d")
class Conv1dToConv2d:
    """IRModule -> IRModule; unchanged where nothing is a signal."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        graph = read_graph(mod)
        if not any(step.op in _ON_SIGNALS for step in graph.steps):
            return mod
        return _Rewriter(graph).module()


class _Rewriter(TwoLayouts):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.images: dict[str, Any] = {}

    def _step(self, step: Step) -> None:
        twin = self._twin(step)
        if twin is None:
            self._emit_plain(step)
        else:
            self.images[step.name] = self.builder.emit(twin, step.name)

    def _as_plain(self, name: str) -> Any:
        if name not in self.plain:
            signal = relax.op.reshape(self.images[name], self.shapes[name])
            self.plain[name] = self.builder.emit(signal, f"{name}_signal")
        return self.plain[name]

    def _as_image(self, name: str) -> Any:
        if name not in self.images:
            n, c, length = self.shapes[name]
            image = relax.op.reshape(self.plain[name], (n, c, 1, length))
            self.images[name] = self.builder.emit(image, f"{name}_image")
        return self.images[name]

    def _twin(self, step: Step) -> Any:
        """Return the step computed on images, None where it stays as it is."""
        if step.op in _ON_SIGNALS:
            return _ON_SIGNALS[step.op](step, self._as_image)
        if not any(name in self.images for name in step.refs):
            return None
        if step.op in UNARY or step.op in ("relax.nn.batch_norm", "get_item.0"):
            return call_again(step, self._as_image)
        if step.op in BROADCASTING and len(step.shape) == 3 and all(len(self.shapes[name]) == 3 for name in step.refs):
            moved = tuple(_as_image_constant(argument) for argument in step.args)
            return call_again(Step(step.name, step.op, moved, step.call, step.shape, step.dtype), self._as_image)
        if step.op == "relax.mean" and self._is_along(step):
            return relax.op.mean(self._as_image(step.refs[0]), axis=[2, 3], keepdims=True)
        if len(step.shape) == 3 and joins(step, axis=1):
            return relax.op.concat([self._as_image(name) for name in step.refs], axis=1)
        return None

    def _is_along(self, step: Step) -> bool:
        """Whether a mean is along signals, and has as many axes."""
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


def _widened(values: Any, other: int) -> list[int]:
    """Return attributes along a signal, one before and one behind where there are two, as those of rows and columns."""
    return [part for value in values for part in (other, int(value))]


def _padding(values: Any) -> list[int]:
    before, behind = (int(value) for value in (*values, *values)[:2])
    return [0, before, 0, behind]


def _convolution(step: Step, image: Callable[[str], Any]) -> Any:
    attrs, weight = step.call.attrs, step.args[1]
    if (
        not isinstance(weight, np.ndarray)
        or str(attrs.data_layout) != "NCW"
        or str(attrs.kernel_layout) not in ("OIW", "IOW")
    ):
        return None
    options = {
        "strides": _widened(attrs.strides, 1),
        "padding": _padding(attrs.padding),
        "dilation": _widened(attrs.dilation, 1),
        "groups": int(attrs.groups),
        "out_dtype": step.dtype,
    }
    kernel = constant(weight[:, :, None], str(weight.dtype))
    if step.op == "relax.nn.conv1d_transpose":
        behind = _widened(attrs.output_padding, 0)
        return relax.op.nn.conv2d_transpose(image(step.refs[0]), kernel, output_padding=behind, **options)
    return relax.op.nn.conv2d(image(step.refs[0]), kernel, **options)


def _pool(step: Step, image: Callable[[str], Any]) -> Any:
    attrs = step.call.attrs
    if str(attrs.layout) != "NCW":
        return None
    operator = relax.op.nn.max_pool2d if step.op == "relax.nn.max_pool1d" else relax.op.nn.avg_pool2d
    return operator(
        image(step.refs[0]),
        pool_size=_widened(attrs.pool_size, 1),
        strides=_widened(attrs.strides, 1),
        padding=_padding(attrs.padding),
        dilation=_widened(attrs.dilation, 1),
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
    )


_ON_SIGNALS: dict[str, Callable[[Step, Callable[[str], Any]], Any]] = {
    "relax.nn.conv1d": _convolution,
    "relax.nn.conv1d_transpose": _convolution,
    "relax.nn.max_pool1d": _pool,
    "relax.nn.avg_pool1d": _pool,
}
