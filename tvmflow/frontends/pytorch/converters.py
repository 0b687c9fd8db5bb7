"""Convert operators of PyTorch that TVM's importer lacks or converts incorrectly.

Each converter takes a node of a torch.export program and TVM's importer, and returns the Relax value. Sizes are
numbers; programs with dynamic sizes use TVM's own converter, through `_default`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

Converter = Callable[[Any, Any], Any]

_BINARY = (
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "remainder",
    "fmod",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "maximum",
    "minimum",
    "rsub",
)
_OVERLOADS = ("Tensor", "Scalar", "Tensor_Scalar", "Tensor_Tensor", "default")


@functools.cache
def operators_of_tvm() -> frozenset[str]:
    """Return the names, with overloads, of the operators that TVM's importer converts."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return frozenset(name for name in ExportedProgramImporter().create_convert_map() if isinstance(name, str))


def converters() -> dict[str, Converter]:
    """Return the converters by the names of operators."""
    binary = {f"{name}.{overload}" for name in _BINARY for overload in _OVERLOADS} & operators_of_tvm()
    return {**dict.fromkeys(binary, _convert_promoted), **_OWN}


def _default(node: Any, importer: Any) -> Any:
    """Convert a node as TVM does."""
    return importer.create_convert_map()[node.target.__name__](node)


def _shape(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's value. Raises NotImplementedError for a dynamic size."""
    shape = tuple(node.meta["val"].shape)
    if not all(isinstance(extent, int) for extent in shape):
        raise NotImplementedError(f"{node.target} with dynamic sizes")
    return shape


def _dtype(node: Any) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _argument(node: Any, place: int, name: str, otherwise: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, otherwise)


class _Builder:
    """Emits operators of Relax, by their names."""

    def __init__(self, importer: Any) -> None:
        self._builder = importer.block_builder

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from tvm import relax

        operator = relax.op
        for part in name.split("__"):
            operator = getattr(operator, part)
        return lambda *args, **options: self._builder.emit(operator(*args, **options))


def _constant(value: Any, dtype: str) -> Any:
    from tvm import relax

    return relax.const(np.asarray(value, dtype), dtype)


@contextmanager
def _in_type(node: Any, importer: Any, dtype: str) -> Iterator[list[Any]]:
    """Cast the first two arguments of a node to a type within a context; yield both values."""
    import torch

    parts = [part for part in node.args[:2] if isinstance(part, torch.fx.Node)]
    before = {part: importer.env[part] for part in parts}
    try:
        for part in before:
            if _dtype(part) != dtype:
                importer.env[part] = _Builder(importer).astype(before[part], dtype)
        yield [importer.env[part] if part in before else _constant(part, dtype) for part in node.args[:2]]
    finally:
        importer.env.update(before)


def _convert_promoted(node: Any, importer: Any) -> Any:
    """Convert a binary operator in PyTorch's promoted type; TVM uses the type of the left operand."""
    import torch

    values = [part.meta["val"] if isinstance(part, torch.fx.Node) else part for part in node.args[:2]]
    if len(values) < 2 or not any(isinstance(value, torch.Tensor) for value in values):
        return _default(node, importer)
    dtype = str(torch.result_type(*values)).removeprefix("torch.")
    if node.target.__name__.startswith("div.") and not node.meta["val"].dtype.is_complex:
        dtype = _dtype(node)  # a quotient of integers is none
    with _in_type(node, importer, dtype):
        return _default(node, importer)


def _convert_quotient(node: Any, importer: Any) -> Any:
    """Convert div with a rounding mode, and floor_divide."""
    r, dtype, mode = _Builder(importer), _dtype(node), node.kwargs.get("rounding_mode", "floor")
    with _in_type(node, importer, dtype) as (a, b):
        if mode is None:
            return r.divide(a, b)
        if node.meta["val"].dtype.is_floating_point:
            return (r.floor if mode == "floor" else r.trunc)(r.divide(a, b))
        if mode == "floor":
            return r.floor_divide(a, b)
        quotient = r.floor_divide(r.abs(a), r.abs(b))
        return r.where(r.less(r.multiply(a, b), _constant(0, dtype)), r.negative(quotient), quotient)


def _convert_select(node: Any, importer: Any) -> Any:
    """Convert select; for negative indices TVM reads before the tensor."""
    axis, index = node.args[1], node.args[2]
    extent = node.args[0].meta["val"].shape[axis]
    if not isinstance(index, int) or not isinstance(extent, int):
        return _default(node, importer)
    return _Builder(importer).take(importer.env[node.args[0]], _constant(index % extent, "int64"), axis=axis)


def _convert_index(node: Any, importer: Any) -> Any:
    """Convert indexing by integer tensors of broadcastable shapes, along any axes."""
    import torch

    data, indices = node.args[0], [(axis, one) for axis, one in enumerate(node.args[1]) if one is not None]
    if any(one.meta["val"].dtype in (torch.bool, torch.uint8) for _, one in indices):
        raise NotImplementedError("aten.index.Tensor with a mask: its shape depends on values")
    if not all(isinstance(extent, int) for extent in data.meta["val"].shape):
        return _default(node, importer)
    r, shape = _Builder(importer), _shape(data)
    axes = [axis for axis, _ in indices]
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    first = axes[0] if together else 0
    value = importer.env[data]
    if not together:
        value = r.permute_dims(value, [*axes, *(axis for axis in range(len(shape)) if axis not in axes)])
        shape = (*(shape[axis] for axis in axes), *(extent for axis, extent in enumerate(shape) if axis not in axes))
    extents = shape[first : first + len(axes)]
    place = None
    for extent, stride, (_, one) in zip(extents, _strides(extents), indices, strict=True):
        index = r.astype(importer.env[one], "int64")
        from_end = r.less(index, _constant(0, "int64"))
        index = r.where(from_end, r.add(index, _constant(extent, "int64")), index)
        term = index if stride == 1 else r.multiply(index, _constant(stride, "int64"))
        place = term if place is None else r.add(place, term)
    if len(axes) > 1:
        value = r.reshape(value, [*shape[:first], math.prod(extents), *shape[first + len(axes) :]])
    return r.take(value, place, axis=first)


def _strides(extents: Sequence[int]) -> list[int]:
    return [math.prod(extents[place + 1 :]) for place in range(len(extents))]


def _convert_cumsum(node: Any, importer: Any) -> Any:
    """Convert cumsum; PyTorch sums booleans and small integers in int64, TVM in their own type."""
    r, dtype = _Builder(importer), _dtype(node)
    return r.cumsum(r.astype(importer.env[node.args[0]], dtype), int(node.args[1]), dtype)


def _axes_of(node: Any) -> tuple[list[int] | None, bool]:
    """Return the reduced axes of a node, None for all, and whether they are kept with extent 1."""
    axes = _argument(node, 1, "dim", None)
    return [axes] if isinstance(axes, int) else list(axes or []) or None, bool(_argument(node, 2, "keepdim", False))


def _make_reduction(name: str) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        return getattr(_Builder(importer), name)(importer.env[node.args[0]], *_axes_of(node))

    return convert


def _make_any_or_all(name: str) -> Converter:
    """Return a converter of any (`max`) or all (`min`) of the values that differ from zero."""

    def convert(node: Any, importer: Any) -> Any:
        r, data = _Builder(importer), node.args[0]
        value = importer.env[data]
        if _dtype(data) != "bool":
            value = r.not_equal(value, _constant(0, _dtype(data)))
        return r.astype(getattr(r, name)(r.astype(value, "int8"), *_axes_of(node)), "bool")

    return convert


def _convert_elu(node: Any, importer: Any) -> Any:
    """Convert elu, also for selu and celu, with its factors, which TVM ignores."""
    r, dtype, x = _Builder(importer), _dtype(node), importer.env[node.args[0]]
    alpha, scale, inner = (
        _constant(_argument(node, 1 + place, name, 1.0), dtype)
        for place, name in enumerate(("alpha", "scale", "input_scale"))
    )
    below = r.multiply(r.subtract(r.exp(r.multiply(x, inner)), _constant(1.0, dtype)), alpha)
    return r.multiply(r.where(r.greater(x, _constant(0.0, dtype)), x, below), scale)


def _convert_group_norm(node: Any, importer: Any) -> Any:
    """Convert native_group_norm, whose scale and bias are optional."""
    r, x = _Builder(importer), node.args[0]
    shape, dtype = x.meta["val"].shape, _dtype(x)
    factor, offset = (
        _constant(np.full(int(shape[1]), otherwise), dtype) if part is None else importer.env[part]
        for part, otherwise in zip(node.args[1:3], (1.0, 0.0), strict=True)
    )
    return r.nn__group_norm(
        importer.env[x],
        factor,
        offset,
        num_groups=node.args[6],
        channel_axis=1,
        axes=list(range(2, len(shape))),
        epsilon=node.args[7],
    )


def _convert_hypot(node: Any, importer: Any) -> Any:
    r = _Builder(importer)
    with _in_type(node, importer, _dtype(node)) as (a, b):
        return r.sqrt(r.add(r.multiply(a, a), r.multiply(b, b)))


def _convert_erfc(node: Any, importer: Any) -> Any:
    r = _Builder(importer)
    return r.subtract(_constant(1.0, _dtype(node)), r.erf(importer.env[node.args[0]]))


def _make_shift(name: str) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        with _in_type(node, importer, _dtype(node)) as (a, b):
            return getattr(_Builder(importer), name)(a, b)

    return convert


def _make_antialiased_resize(mode: str) -> Converter:
    """Return a converter of resizing with antialiasing, a matmul with a constant matrix along each axis."""

    def convert(node: Any, importer: Any) -> Any:
        import torch

        r, align = _Builder(importer), bool(_argument(node, 2, "align_corners", False))
        batch, channels, height, width = _shape(node.args[0])
        rows, columns = _shape(node)[2:]

        def matrix(extent: int, wanted: int) -> Any:
            unit = torch.eye(extent, dtype=torch.float64)[None, None]
            resized = torch.nn.functional.interpolate(
                unit, (extent, wanted), mode=mode, align_corners=align, antialias=True
            )
            return _constant(resized[0, 0].numpy(), "float32")

        value = r.reshape(importer.env[node.args[0]], (batch * channels, height, width))
        value = r.matmul(value, matrix(width, columns))
        value = r.matmul(r.permute_dims(value, [0, 2, 1]), matrix(height, rows))
        return r.reshape(r.permute_dims(value, [0, 2, 1]), (batch, channels, rows, columns))

    return convert


def _convert_grid_sample(node: Any, importer: Any) -> Any:
    """Convert grid_sampler_2d; PyTorch's grid has its coordinates last, TVM's first."""
    r = _Builder(importer)
    data, grid, mode, padding, align = node.args
    grid = r.permute_dims(importer.env[grid], [0, 3, 1, 2])
    return r.image__grid_sample(
        importer.env[data],
        grid,
        method=("bilinear", "nearest", "bicubic")[mode],
        layout="NCHW",
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=bool(align),
    )


def _convert_affine_grid(node: Any, importer: Any) -> Any:
    """Convert affine_grid_generator: a matmul with the constant coordinates of pixels."""
    r = _Builder(importer)
    theta, (batch, _, height, width), align = node.args

    def along(extent: int) -> Any:
        edge = 1.0 if align else 1.0 - 1.0 / extent
        return np.linspace(-edge, edge, extent) if extent > 1 else np.zeros(1)

    y, x = np.meshgrid(along(height), along(width), indexing="ij")
    pixels = np.stack([x.ravel(), y.ravel(), np.ones(height * width)])
    placed = r.matmul(importer.env[theta], _constant(pixels, _dtype(theta)))  # (N, 2, H * W)
    return r.reshape(r.permute_dims(placed, [0, 2, 1]), (batch, height, width, 2))


def _convert_adaptive_max_pool(node: Any, importer: Any) -> Any:
    """Convert adaptive_max_pool2d: the maximum over the rows of each output, then over its columns."""
    r, value = _Builder(importer), importer.env[node.args[0]]
    for axis, (extent, wanted) in enumerate(zip(_shape(node.args[0])[-2:], node.args[1], strict=True)):
        axis -= 2
        parts = []
        for place in range(wanted):
            begin, end = place * extent // wanted, -(-(place + 1) * extent // wanted)
            part = r.strided_slice(value, axes=[len(_shape(node.args[0])) + axis], begin=[begin], end=[end])
            parts.append(r.max(part, [axis], True))
        value = r.concat(parts, axis=axis) if wanted > 1 else parts[0]
    return value


def _convert_unfold(node: Any, importer: Any) -> Any:
    """Convert unfold: windows along an axis, with the window positions as the last axis."""
    r, (data, axis, size, step) = _Builder(importer), node.args
    shape = _shape(data)
    axis %= len(shape)
    places = np.arange((shape[axis] - size) // step + 1)[:, None] * step + np.arange(size)
    value = r.take(importer.env[data], _constant(places, "int64"), axis=axis)
    return r.permute_dims(value, [at for at in range(len(shape) + 1) if at != axis + 1] + [axis + 1])


def _convert_nearest(node: Any, importer: Any) -> Any:
    """Convert upsample_nearest2d; TVM selects the pixel nearest to the center, PyTorch the one to the upper left."""
    return _Builder(importer).image__resize2d(
        importer.env[node.args[0]],
        tuple(int(extent) for extent in node.meta["val"].shape[2:]),
        layout="NCHW",
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    )


_OWN: dict[str, Converter] = {
    "upsample_nearest2d.vec": _convert_nearest,
    "_upsample_bilinear2d_aa.default": _make_antialiased_resize("bilinear"),
    "_upsample_bicubic2d_aa.default": _make_antialiased_resize("bicubic"),
    "grid_sampler_2d.default": _convert_grid_sample,
    "affine_grid_generator.default": _convert_affine_grid,
    "adaptive_max_pool2d.default": _convert_adaptive_max_pool,
    "select.int": _convert_select,
    "index.Tensor": _convert_index,
    "cumsum.default": _convert_cumsum,
    "unfold.default": _convert_unfold,
    "div.Tensor_mode": _convert_quotient,
    "div.Scalar_mode": _convert_quotient,
    "floor_divide.default": _convert_quotient,
    "amax.default": _make_reduction("max"),
    "amin.default": _make_reduction("min"),
    "prod.dim_int": _make_reduction("prod"),
    "prod.default": _make_reduction("prod"),
    "any.default": _make_any_or_all("max"),
    "any.dim": _make_any_or_all("max"),
    "any.dims": _make_any_or_all("max"),
    "all.default": _make_any_or_all("min"),
    "all.dim": _make_any_or_all("min"),
    "all.dims": _make_any_or_all("min"),
    "elu.default": _convert_elu,
    "native_group_norm.default": _convert_group_norm,
    "hypot.default": _convert_hypot,
    "erfc.default": _convert_erfc,
    "__lshift__.Scalar": _make_shift("left_shift"),
    "__rshift__.Scalar": _make_shift("right_shift"),
}
