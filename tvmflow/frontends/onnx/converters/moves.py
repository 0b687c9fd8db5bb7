"""Convert operators that move, select or scatter values: Pad, OneHot, ReverseSequence, TensorScatter, Col2Im and
others.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
from tvm import te, tirx

from tvmflow.frontends.einsum import einsum
from tvmflow.frontends.onnx import tvm_converters
from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of, expression

_PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}  # of ONNX, of Relax


def take(node: Node, x: Value, places: np.ndarray[Any, Any], axis: int) -> Value:
    """Return the values of constant places along an axis; as slices where they are few runs."""
    if list(places) == list(range(dims(x)[axis])):
        return x
    steps = np.diff(places)
    if len(places) and (steps == 1).all():
        return node.emitter.slice_axis(x, axis, int(places[0]), int(places[-1]) + 1)
    return node.emitter.take(x, np.asarray(places, np.int64), axis)


def _pad(node: Node) -> Value:
    x, rank = node.inputs[0], len(dims(node.inputs[0]))
    widths = _pad_widths(node, rank)
    mode = node.text("mode", "constant")
    if any(width < 0 for pair in widths for width in pair):
        x = _crop(node, x, widths)
        widths = [(max(before, 0), max(after, 0)) for before, after in widths]
    if not any(width for pair in widths for width in pair):
        return x
    if mode == "constant":
        return _pad_constant(node, x, widths)
    flat = [width for pair in widths for width in pair]
    inside = all(max(pair) < size for pair, size in zip(widths, dims(x), strict=True))
    if rank == 4 and not any(flat[:4]) and inside and dtype_of(x) == "float32":
        return node.emitter.nn__pad(x, flat, _PAD_MODES[mode])
    numpy_mode: Any = mode
    for axis, (before, after) in enumerate(widths):
        if before or after:
            places = np.pad(np.arange(dims(x)[axis]), (before, after), numpy_mode)
            x = take(node, x, places, axis)
    return x


def _pad_widths(node: Node, rank: int) -> list[tuple[int, int]]:
    numbers = node.numbers(1, "pads") or []
    given = node.input(3)
    axes = list(range(rank)) if given is None else [int(axis) % rank for axis in node.constant(3, "its input axes")]
    count = len(numbers) // 2
    widths = [(0, 0)] * rank
    for axis, before, after in zip(axes, numbers[:count], numbers[count:], strict=True):
        widths[axis] = (before, after)
    return widths


def _crop(node: Node, x: Value, widths: list[tuple[int, int]]) -> Value:
    axes = [axis for axis, pair in enumerate(widths) if min(pair) < 0]
    begins = [max(-widths[axis][0], 0) for axis in axes]
    ends = [dims(x)[axis] - max(-widths[axis][1], 0) for axis in axes]
    return node.emitter.strided_slice(x, axes, begins, ends)


def _pad_constant(node: Node, x: Value, widths: list[tuple[int, int]]) -> Value:
    given = node.input(2)
    flat = [width for pair in widths for width in pair]
    dtype, r = dtype_of(x), node.emitter
    if dtype == "bool":
        inner = Node(
            **{**vars(node), "inputs": (r.cast(x, "uint8"), None, given if given is None else r.cast(given, "uint8"))}
        )
        return r.not_equal(_pad_constant(inner, inner.inputs[0], widths), np.uint8(0))
    if given is None or isinstance(given, np.ndarray):
        value = float(node.attributes.get("value", 0.0)) if given is None else float(given.reshape(-1)[0])
        if float(np.asarray(value).astype(np.float64)) == value and abs(value) < 2**53:
            return r.nn__pad(x, flat, "constant", value)
    zeros = r.nn__pad(x, flat, "constant", 0.0)
    inside = np.pad(np.ones(dims(x), bool), widths)
    return r.where(inside, zeros, r.reshape_to(given, ()))


def _eye_like(node: Node) -> Value:
    x = node.inputs[0]
    number = node.attributes.get("dtype")
    dtype = dtype_of(x) if number is None else str(onnx.helper.tensor_dtype_to_np_dtype(number))
    rows, columns = dims(x)
    return np.eye(rows, columns, node.attributes["k"], np.dtype(dtype))


def _constant_of_shape(node: Node) -> Value:
    """A constant too large to be folded."""
    shape = [int(size) for size in node.constant(0, "its shape")]
    given = node.attributes.get("value")
    value = np.zeros(1, np.float32) if given is None else onnx.numpy_helper.to_array(given)
    return node.emitter.full(tuple(shape), value.reshape(()), str(value.dtype))


def _unsqueeze(node: Node) -> Value:
    x, axes = node.inputs[0], node.numbers(1, "axes") or []
    rank = len(dims(x)) + len(axes)
    rest = iter(dims(x))
    places = {axis % rank for axis in axes}
    return node.emitter.reshape_to(x, [1 if axis in places else next(rest) for axis in range(rank)])


def _squeeze(node: Node) -> Value:
    x, axes = node.inputs[0], node.numbers(1, "axes")
    shape = dims(x)
    places = [axis % len(shape) for axis in axes] if axes is not None else [a for a, n in enumerate(shape) if n == 1]
    if any(shape[place] != 1 for place in places):
        raise RefusedNodeError(f"axes {places} of a tensor of shape {list(shape)}")
    return node.emitter.reshape_to(x, [size for axis, size in enumerate(shape) if axis not in places])


def _one_hot(node: Node) -> Value:
    indices, values = node.inputs[0], node.inputs[2]
    r = node.emitter
    depth = int(node.constant(1, "depth").reshape(-1)[0])
    rank = len(dims(indices)) + 1
    axis = node.attributes["axis"] % rank
    found = r.cast(indices, "int64")
    found = r.where(r.less(found, np.int64(0)), r.add(found, np.int64(depth)), found)
    shape = [1] * rank
    shape[axis] = depth
    hit = r.equal(r.expand_dims(found, axis), np.arange(depth, dtype=np.int64).reshape(shape))
    if isinstance(values, np.ndarray):
        off, on = values.reshape(-1)[0], values.reshape(-1)[1]
        return r.where(hit, np.asarray(on), np.asarray(off))
    parts = [r.reshape_to(r.slice_axis(values, 0, place, place + 1), ()) for place in (0, 1)]
    return r.where(hit, parts[1], parts[0])


def _reverse_sequence(node: Node) -> Value:
    x, lengths = node.inputs
    batch, time = node.attributes["batch_axis"], node.attributes["time_axis"]

    def reverse(value: Any, count: Any) -> Any:
        def at(*index: Any) -> Any:
            length = count[index[batch]].astype("int64")
            here = index[time].astype("int64") if hasattr(index[time], "astype") else index[time]
            place = tirx.Select(here < length, length - 1 - here, here)
            return value[(*index[:time], place, *index[time + 1 :])]

        return te.compute(value.shape, at, name="reverse")

    return node.emitter.te(reverse, x, lengths, name="reverse_sequence")


def _tensor_scatter(node: Node) -> Value:
    past, update = node.inputs[:2]
    starts = node.input(2)
    rank, r = len(dims(past)), node.emitter
    axis = node.attributes["axis"] % rank
    circular = node.text("mode", "linear") == "circular"
    starts = np.zeros(dims(past)[0], np.int64) if starts is None else starts
    length, size = dims(update)[axis], dims(past)[axis]

    def scatter(cache: Any, new: Any, begin: Any) -> Any:
        def at(*index: Any) -> Any:
            place = index[axis].astype("int64") - begin[index[0]].astype("int64")
            place = tirx.floormod(place, tirx.const(size, "int64")) if circular else place
            inside = tirx.all(place >= 0, place < length)
            chosen = new[(*index[:axis], tirx.Select(inside, place, tirx.const(0, "int64")), *index[axis + 1 :])]
            return tirx.Select(inside, chosen, cache[index])

        return te.compute(cache.shape, at, name="scatter")

    return r.te(scatter, past, update, starts, name="tensor_scatter")


def _cumulative(node: Node, operator: str) -> Value:
    x, r = node.inputs[0], node.emitter
    axis = int(node.constant(1, "axis").reshape(-1)[0]) % len(dims(x))
    order = np.arange(dims(x)[axis])[::-1]
    x = r.take(x, order.astype(np.int64), axis) if node.attributes["reverse"] else x
    found = getattr(r, operator)(x, axis, dtype_of(x), bool(node.attributes["exclusive"]))
    return r.take(found, order.astype(np.int64), axis) if node.attributes["reverse"] else found


def _col2im(node: Node) -> Value:
    x = node.inputs[0]
    image = [int(size) for size in node.constant(1, "image_shape")]
    kernel = [int(size) for size in node.constant(2, "block_shape")]
    rank = len(image)
    dilations = node.attributes.get("dilations") or [1] * rank
    pads, strides = node.attributes.get("pads") or [0] * (2 * rank), node.attributes.get("strides") or [1] * rank
    turns = [
        (size + pads[d] + pads[d + rank] - dilations[d] * (kernel[d] - 1) - 1) // strides[d] + 1
        for d, size in enumerate(image)
    ]
    batch, columns, _ = dims(x)
    channels = columns // int(np.prod(kernel))
    blocks = node.emitter.reshape_to(x, [batch, channels, *kernel, *turns])

    def gather(value: Any) -> Any:
        taps = [te.reduce_axis((0, size), name=f"k{d}") for d, size in enumerate(kernel)]

        def at(n: Any, c: Any, *place: Any) -> Any:
            offsets = [place[d] + pads[d] - taps[d] * dilations[d] for d in range(rank)]
            inside = [tirx.floormod(o, strides[d]) == 0 for d, o in enumerate(offsets)]
            turn = [tirx.floordiv(o, strides[d]) for d, o in enumerate(offsets)]
            inside += [t >= 0 for t in turn] + [t < turns[d] for d, t in enumerate(turn)]
            kept = [tirx.max(tirx.min(t, turns[d] - 1), 0) for d, t in enumerate(turn)]
            chosen = tirx.if_then_else(tirx.all(*inside), value[(n, c, *taps, *kept)], tirx.const(0, value.dtype))
            return te.sum(chosen, axis=taps)

        return te.compute((batch, channels, *image), at, name="col2im")

    return node.emitter.te(gather, blocks, name="col2im")


def _det(node: Node) -> Value:
    """The determinant of small matrices, by minors of growing size."""
    x, r = node.inputs[0], node.emitter
    *outer, size, _ = dims(x)
    if size > 6:
        raise RefusedNodeError(f"matrices of {size} rows (at most 6)")

    def cell(row: int, column: int) -> Value:
        return r.strided_slice(x, [len(outer), len(outer) + 1], [row, column], [row + 1, column + 1])

    minors: dict[tuple[int, ...], Value] = {(column,): cell(size - 1, column) for column in range(size)}
    for count in range(2, size + 1):
        row = size - count
        cells = [cell(row, column) for column in range(size)]
        larger = {}
        for columns in itertools.combinations(range(size), count):
            total = None
            for place, column in enumerate(columns):
                rest = tuple(other for other in columns if other != column)
                term = r.multiply(cells[column], minors[rest])
                total = term if total is None else (r.subtract if place % 2 else r.add)(total, term)
            larger[columns] = total
        minors = larger
    return r.reshape_to(minors[tuple(range(size))], outer)


def _space_to_depth(node: Node) -> Value:
    x, block = node.inputs[0], node.attributes["blocksize"]
    n, c, h, w = dims(x)
    r = node.emitter
    split = r.reshape_to(x, [n, c, h // block, block, w // block, block])
    if node.text("mode", "DCR") == "CRD":
        moved = r.transpose(split, [0, 1, 3, 5, 2, 4])
    else:
        moved = r.transpose(split, [0, 3, 5, 1, 2, 4])
    return r.reshape_to(moved, [n, c * block * block, h // block, w // block])


def _scatter_elements(node: Node) -> Value:
    x, indices, updates = node.inputs[:3]
    r, rank = node.emitter, len(dims(node.inputs[0]))
    axis = node.attributes["axis"] % rank
    reduction = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}[
        node.text("reduction", "none")
    ]
    places = r.cast(indices, "int64")
    places = r.where(r.less(places, np.int64(0)), r.add(places, np.int64(dims(x)[axis])), places)
    return r.scatter_elements(x, places, updates, axis, reduction)


def _max_unpool(node: Node) -> Value:
    """Values go to their places in the flattened output."""
    x, places, r = node.inputs[0], node.inputs[1], node.emitter
    kernel, rank = node.attributes["kernel_shape"], len(dims(x)) - 2
    strides = node.attributes.get("strides") or [1] * rank
    pads = node.attributes.get("pads") or [0] * (2 * rank)
    sizes = [(size - 1) * strides[d] + kernel[d] - pads[d] - pads[d + rank] for d, size in enumerate(dims(x)[2:])]
    inferred = [*dims(x)[:2], *sizes]
    shape = inferred
    if node.input(2) is not None:
        shape = [int(size) for size in node.constant(2, "output_shape")]
    count, flat = int(np.prod(shape)), int(np.prod(dims(x)))
    spots = r.reshape_to(places, [flat])
    if shape != inferred:  # places count in the inferred shape
        remaining, parts = spots, []
        for size in inferred[::-1]:
            parts.append(r.floor_mod(remaining, np.int64(size)))
            remaining = r.floor_divide(remaining, np.int64(size))
        spots = parts[-1]
        for part, size in zip(parts[-2::-1], shape[1:], strict=True):
            spots = r.add(r.multiply(spots, np.int64(size)), part)
    zeros = np.zeros(count, dtype_of(x))
    return r.reshape_to(r.scatter_elements(zeros, spots, r.reshape_to(x, [flat]), 0, "update"), shape)


def _top_k(node: Node) -> Any:
    if dtype_of(node.inputs[0]) == "uint64":
        raise RefusedNodeError("values of uint64, which TVM does not sort")
    return tvm_converters.converter_in_tvm("TopK", 11 if node.version == 10 else node.version)(node)


def _slice(node: Node) -> Any:
    """Until opset 9 the places are attributes."""
    if node.version < 10:
        starts, ends = (np.asarray(node.attributes[name], np.int64) for name in ("starts", "ends"))
        axes = np.asarray(node.attributes.get("axes", range(len(starts))), np.int64)
        node = Node(**{**vars(node), "inputs": (node.inputs[0], starts, ends, axes), "attributes": {}})
    return tvm_converters.converter_in_tvm("Slice", 13)(node)


def _einsum(node: Node) -> Value:
    """Sums of 16-bit floats are in float32."""
    dtype, r = dtype_of(node.inputs[0]), node.emitter
    narrow = dtype in ("float16", "bfloat16")
    inputs = tuple(r.cast(value, "float32") if narrow else value for value in node.inputs)
    found = None
    if narrow or dtype == "float32":
        found = einsum(r.builder, node.text("equation"), [expression(value) for value in inputs])
    if found is None:  # a plain loop
        found = tvm_converters.converter_in_tvm("Einsum", node.version)(Node(**{**vars(node), "inputs": inputs}))
    return r.cast(found, dtype)


MOVES = {
    "Einsum": _einsum,
    "Slice": _slice,
    "TopK": _top_k,
    "Pad": _pad,
    "EyeLike": _eye_like,
    "ConstantOfShape": _constant_of_shape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "TensorScatter": _tensor_scatter,
    "CumProd": lambda node: _cumulative(node, "cumprod"),
    "CumSum": lambda node: _cumulative(node, "cumsum"),
    "Col2Im": _col2im,
    "Det": _det,
    "MaxUnpool": _max_unpool,
    "SpaceToDepth": _space_to_depth,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
}
