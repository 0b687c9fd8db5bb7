"""Read a .tflite file to a list of operators and tensors, with the constants as arrays.

Sparse constants are made dense, 4-bit and 2-bit ones are unpacked. It knows nothing of Relax.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from tvmflow.support.dtypes import numpy_dtype
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError

Array = np.ndarray[Any, Any]
_QUANTIZED = ("int8", "uint8", "int16")
_MAX_DEPTH = 8
_BITS = {"INT4": 4, "INT2": 2}


@dataclass(frozen=True, eq=False)
class Quantization:
    """Scales and zero points: one of each, or one for each channel of `axis`."""

    scale: Array
    zero: Array
    axis: int

    def column(self, vector: Array, ndim: int) -> Array:
        """Return a vector so that it broadcasts against a tensor of `ndim` axes."""
        if vector.size == 1:
            return np.asarray(vector.reshape(-1)[0])
        shape = [1] * ndim
        shape[self.axis] = -1
        return vector.reshape(shape)

    def equals(self, other: Quantization | None) -> bool:
        return other is not None and np.array_equal(self.scale, other.scale) and np.array_equal(self.zero, other.zero)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the file. data: its value if it is a constant, integers as stored. kind: the file's name of its type,
    such as INT4, of which `dtype` is numpy's.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    quantization: Quantization | None
    data: Array | None
    is_variable: bool
    is_sparse: bool

    @property
    def is_quantized(self) -> bool:
        """Whether the tensor holds real numbers as integers."""
        return self.quantization is not None and self.dtype in _QUANTIZED

    def real(self, stored: Array) -> Array:
        """Return stored integers as the real numbers that they stand for."""
        if self.quantization is None:
            return stored
        scale, zero = (
            self.quantization.column(v, stored.ndim) for v in (self.quantization.scale, self.quantization.zero)
        )
        return np.asarray(((stored.astype(np.int64) - zero) * scale.astype(np.float64)).astype(np.float32))


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator. name: of tflite.BuiltinOperator, for custom operators CUSTOM:name; inputs: None if left out."""

    name: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    options: Any
    custom_options: bytes

    def __str__(self) -> str:
        return f"{self.name} (output {', '.join(repr(tensor.name) for tensor in self.outputs) or 'none'})"


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Operators in order, with the inputs and outputs of the whole."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]


def read_subgraphs(content: bytes) -> list[Subgraph]:
    """Return all graphs of a checked file; the first is the model. Raises ModelFileError."""
    from ai_edge_litert import schema_py_generated as schema

    try:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        return [_read_subgraph(model, graph) for graph in model.subgraphs]
    except (
        TypeError,
        ValueError,
        IndexError,
        KeyError,
        AttributeError,
        OverflowError,
        MemoryError,
        struct.error,
    ) as error:
        raise ModelFileError(f"the TFLite file cannot be read: {error}", "a whole .tflite file") from error


def inline_composites(graphs: Sequence[Subgraph]) -> Subgraph:
    """Return the first graph with each STABLEHLO_COMPOSITE replaced by the operators that it stands for.

    Raises ModelFileError for composites that contain each other.
    """
    numbers = count(1 << 20)  # of the tensors of composites, behind those of the file

    def expand(operators: Iterable[Operator], depth: int) -> Iterator[Operator]:
        if depth > _MAX_DEPTH:
            raise ModelFileError("composite operators of the file contain each other", "a whole .tflite file")
        for operator in operators:
            if operator.name != "STABLEHLO_COMPOSITE":
                yield operator
                continue
            graph = graphs[int(operator.options.decompositionSubgraphIndex)]
            outer = [
                *zip(graph.outputs, operator.outputs, strict=True),
                *zip(graph.inputs, operator.inputs, strict=True),
            ]
            places: dict[int, Tensor | None] = {tensor.index: given for tensor, given in outer}
            for inner in expand(graph.operators, depth + 1):
                yield replace(
                    inner, inputs=_moved(inner.inputs, places, numbers), outputs=_moved(inner.outputs, places, numbers)
                )

    return replace(graphs[0], operators=tuple(expand(graphs[0].operators, 0)))


def _moved(
    tensors: Iterable[Tensor | None], places: dict[int, Tensor | None], numbers: Iterator[int]
) -> tuple[Any, ...]:
    """Return tensors of a composite as tensors of its caller; `places` is extended by those inside."""
    moved = []
    for tensor in tensors:
        if tensor is not None and tensor.index not in places:
            places[tensor.index] = replace(tensor, index=next(numbers))
        moved.append(None if tensor is None else places[tensor.index])
    return tuple(moved)


@cache
def operator_names() -> dict[int, str]:
    """Return the names of the format's builtin operators by their numbers."""
    from ai_edge_litert import schema_py_generated as schema

    return {number: name for name, number in vars(schema.BuiltinOperator).items() if name.isupper()}


@cache
def _type_names() -> dict[int, str]:
    from ai_edge_litert import schema_py_generated as schema

    return {number: name for name, number in vars(schema.TensorType).items() if name.isupper()}


def _read_subgraph(model: Any, graph: Any) -> Subgraph:
    tensors = [read_tensor(model, tensor, index) for index, tensor in enumerate(graph.tensors)]
    operators = []
    for operator in graph.operators or ():
        code = model.operatorCodes[operator.opcodeIndex]
        name = operator_names()[max(int(code.builtinCode), int(code.deprecatedBuiltinCode))]
        if name == "CUSTOM":
            name = f"CUSTOM:{text_of(code.customCode)}"
        custom = operator.customOptions
        operators.append(
            Operator(
                name,
                tuple(tensors[index] if index >= 0 else None for index in int_list(operator.inputs)),
                tuple(tensors[index] for index in int_list(operator.outputs)),
                operator.builtinOptions if operator.builtinOptions is not None else operator.builtinOptions2,
                b"" if custom is None else np.asarray(custom, np.uint8).tobytes(),
            )
        )
    inputs, outputs = (tuple(tensors[index] for index in int_list(ends)) for ends in (graph.inputs, graph.outputs))
    return Subgraph(inputs, outputs, tuple(operators))


def int_list(values: Any) -> list[int]:
    """Return a vector of the file as a list; None is empty."""
    return [] if values is None else [int(value) for value in values]


def text_of(value: bytes | str | None) -> str:
    """Return a string of the file as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def read_tensor(model: Any, tensor: Any, index: int) -> Tensor:
    """Return a tensor of a file's graph."""
    kind = _type_names()[int(tensor.type)]
    shape, name = tuple(int_list(tensor.shape)), text_of(tensor.name)
    dtype = {"INT4": "int8", "INT2": "int8", "UINT4": "uint8"}.get(kind, kind.lower())
    raw = model.buffers[tensor.buffer].data
    data = None
    if raw is not None and len(raw) and kind not in ("STRING", "RESOURCE", "VARIANT"):
        data = _array(np.asarray(raw, np.uint8), shape, kind, dtype, tensor.sparsity, name)
    return Tensor(
        index,
        name,
        shape,
        dtype,
        kind,
        _read_quantization(tensor.quantization, name),
        data,
        bool(tensor.isVariable),
        tensor.sparsity is not None,
    )


def _read_quantization(found: Any, name: str) -> Quantization | None:
    if found is None:
        return None
    if found.detailsType:
        raise UnsupportedOperatorError(
            f"tensor {name!r} is quantized in blocks", "one scale per tensor or per channel", "quantize it per channel"
        )
    if found.scale is None or not len(found.scale):
        return None
    scale = np.asarray(found.scale, np.float32)
    zeros = found.zeroPoint if found.zeroPoint is not None and len(found.zeroPoint) else np.zeros(scale.size)
    return Quantization(scale, np.asarray(zeros, np.int64), int(found.quantizedDimension))


def _array(raw: Array, shape: tuple[int, ...], kind: str, dtype: str, sparsity: Any, name: str) -> Array:
    if kind in _BITS:
        values = _unpack(raw, _BITS[kind])
        values = values if sparsity is not None else values[: int(np.prod(shape, dtype=np.int64))]
    else:
        values = raw.view(numpy_dtype(dtype))
    if sparsity is not None:
        return _dense(values, shape, sparsity)
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise ModelFileError(f"tensor {name!r} of shape {list(shape)} has {values.size} values", "a whole .tflite file")
    return np.asarray(values.reshape(shape))


def _unpack(raw: Array, bits: int) -> Array:
    """Return packed signed numbers, the lowest bits first, as int8."""
    parts = [(raw >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    values = np.stack(parts, axis=-1).reshape(-1).astype(np.int16)
    return np.where(values >= 1 << (bits - 1), values - (1 << bits), values).astype(np.int8)


def _dense(values: Array, shape: tuple[int, ...], sparsity: Any) -> Array:
    """Return a sparse constant as an array.

    Its axes are traversed in the order of `traversalOrder`; those behind the tensor's own are blocks of the axes in
    `blockMap`. A dense axis counts; a CSR axis lists the indices that have values.
    """
    order, blocks = int_list(sparsity.traversalOrder), int_list(sparsity.blockMap)
    coordinates = np.zeros((1, 0), np.int64)  # of the parts that have values, an axis after the other
    for axis in sparsity.dimMetadata:
        if int(axis.format) == 0:
            extent = int(axis.denseSize)
            kept = np.repeat(np.arange(len(coordinates)), extent)
            places = np.tile(np.arange(extent), len(coordinates))
        else:
            segments = np.asarray(axis.arraySegments.values, np.int64)
            kept = np.repeat(np.arange(len(segments) - 1), np.diff(segments))
            places = np.asarray(axis.arrayIndices.values, np.int64)
        coordinates = np.concatenate([coordinates[kept], places[:, None]], axis=1)
    extents = [0] * len(order)
    for level, axis in zip(order, sparsity.dimMetadata, strict=True):
        extents[level] = int(axis.denseSize)
    index = []
    for axis, extent in enumerate(shape):
        place = coordinates[:, order.index(axis)]
        for number, blocked in enumerate(blocks):
            if blocked == axis:
                inner = order.index(len(shape) + number)
                place = place * int(sparsity.dimMetadata[inner].denseSize) + coordinates[:, inner]
        if place.size and not 0 <= int(place.min()) <= int(place.max()) < extent:
            raise ValueError("a sparse constant has values outside its shape")
        index.append(place)
    dense: Array = np.zeros(shape, values.dtype)
    dense[tuple(index)] = values[: len(coordinates)]
    return dense
