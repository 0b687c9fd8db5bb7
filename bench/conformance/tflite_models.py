"""Write .tflite files of one operator in each number format, without TensorFlow.

A description has float tensors. `write` quantizes them: activations by their range (int8, or int16 with zero points of
0), weights to int8 (one scale per channel), or it stores the weights as float16, or sparse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FORMATS = ("float", "float16 weights", "int8", "int16x8", "dynamic range", "sparse")
_VERSIONS = {"BROADCAST_TO": 2}  # of operators whose first version LiteRT does not run any more
_INTEGERS = {"int8": "INT8", "int16x8": "INT16"}


@dataclass(frozen=True, eq=False)
class Given:
    """An input of an operator. role: data, weight, bias, plain: a constant that no format changes, state: a tensor that
    LiteRT keeps between runs, or absent: one that is left out.

    low, high: of its values; axis: of a weight's channels; values: of a constant, random if None; is_constant: data
    that the file holds.
    """

    shape: tuple[int, ...]
    role: str = "data"
    low: float = -2.0
    high: float = 2.0
    axis: int = 0
    kind: str = "FLOAT32"
    values: Any = None
    is_constant: bool = False


@dataclass(frozen=True, eq=False)
class Description:
    """An operator with its inputs. options: name of its table and fields; outputs: their types.

    ranges: how outputs are quantized: "own" by their range, "same" as the first input, or (scale, zero point) of int8
    and the scale of int16. Inputs share one range if it is "same". label: tells descriptions of one operator apart.
    """

    operator: str
    inputs: tuple[Given, ...]
    options: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("FLOAT32",)
    ranges: Any = "own"
    label: str = ""
    formats: tuple[str, ...] = FORMATS
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.operator}{'-' if self.label else ''}{self.label}"

    @property
    def has_weights(self) -> bool:
        return any(given.role == "weight" for given in self.inputs)

    @property
    def has_floats(self) -> bool:
        return any(given.kind == "FLOAT32" and given.role != "plain" for given in self.inputs)


class FileWriter:
    """Collect tensors and operators, and write them as a .tflite file."""

    def __init__(self) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema = schema
        self.graph = schema.SubGraphT(tensors=[], inputs=[], outputs=[], operators=[], name="main")
        self.model = schema.ModelT(
            version=3, operatorCodes=[], subgraphs=[self.graph], buffers=[schema.BufferT()], description="tvmflow"
        )

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        kind: str,
        data: Array | None = None,
        quantization: tuple[Any, Any, int] | None = None,
        sparsity: Any = None,
        is_variable: bool = False,
    ) -> int:
        """Add a tensor and return its index. quantization: scales, zero points, axis. is_variable: LiteRT keeps it."""
        buffer = 0
        if data is not None:
            self.model.buffers.append(
                self.schema.BufferT(data=np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8))
            )
            buffer = len(self.model.buffers) - 1
        made = self.schema.TensorT(
            shape=np.asarray(shape, np.int32),
            type=getattr(self.schema.TensorType, kind),
            buffer=buffer,
            name=name,
            sparsity=sparsity,
            isVariable=is_variable,
            hasRank=True,
        )
        if quantization is not None:
            scale, zero, axis = quantization
            made.quantization = self.schema.QuantizationParametersT(
                scale=np.atleast_1d(np.asarray(scale, np.float32)),
                zeroPoint=np.atleast_1d(np.asarray(zero, np.int64)),
                quantizedDimension=axis,
            )
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str | None = None,
        fields: dict[str, Any] | None = None,
        custom: bytes = b"",
    ) -> None:
        """Add an operator; a name beginning with CUSTOM: is a custom one."""
        code = getattr(self.schema.BuiltinOperator, name.split(":")[0])
        self.model.operatorCodes.append(
            self.schema.OperatorCodeT(
                builtinCode=code,
                deprecatedBuiltinCode=min(code, 127),
                version=_VERSIONS.get(name, 1),
                customCode=name.split(":")[1] if ":" in name else None,
            )
        )
        made = self.schema.OperatorT(
            opcodeIndex=len(self.model.operatorCodes) - 1,
            inputs=np.asarray(inputs, np.int32),
            outputs=np.asarray(outputs, np.int32),
        )
        if options is not None:
            values = getattr(self.schema, f"{options}T")()
            for key, value in (fields or {}).items():
                if not hasattr(values, key):
                    raise AttributeError(f"{options} has no {key}")
                setattr(values, key, value)
            second = getattr(self.schema.BuiltinOptions2, options, None)
            if second is not None:
                made.builtinOptions2Type, made.builtinOptions2 = second, values
            else:
                made.builtinOptionsType, made.builtinOptions = getattr(self.schema.BuiltinOptions, options), values
        if custom:
            made.customOptions = np.frombuffer(custom, np.uint8)
        self.graph.operators.append(made)

    def content(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """Return the file's bytes."""
        import flatbuffers

        self.graph.inputs, self.graph.outputs = np.asarray(inputs, np.int32), np.asarray(outputs, np.int32)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


def quantize_weight(values: Array, axis: int) -> tuple[Array, Array]:
    """Return int8 values and one scale per channel of an axis, or one scale for axis -1."""
    others = tuple(a for a in range(values.ndim) if a != axis) if axis >= 0 else None
    largest = np.maximum(np.abs(values).max(axis=others, keepdims=axis >= 0), 1e-6)
    scale = (largest / 127).astype(np.float32)
    return np.clip(np.rint(values / scale), -127, 127).astype(np.int8), scale.reshape(-1)


def range_of(low: float, high: float, number_format: str) -> tuple[float, int]:
    """Return scale and zero point of activations between two bounds."""
    low, high = min(low, 0.0), max(high, 0.0)
    if number_format == "int16x8":
        return max(-low, high, 1e-6) / 32767, 0
    scale = max(high - low, 1e-6) / 255
    return float(np.float32(scale)), int(np.clip(np.rint(-128 - low / scale), -128, 127))


def values_of(given: Given, index: int) -> Array:
    """Return the value of an input: given, or random by its position."""
    if given.values is not None:
        return np.asarray(given.values).astype(given.kind.lower()).reshape(given.shape)
    generator = np.random.default_rng(index)
    if given.kind == "BOOL":
        return generator.integers(0, 2, given.shape).astype(bool)
    if given.kind in ("FLOAT32", "FLOAT64"):
        return generator.uniform(given.low, given.high, given.shape).astype(given.kind.lower())
    return generator.integers(int(given.low), int(given.high) + 1, given.shape).astype(given.kind.lower())


def write(description: Description, number_format: str, bounds: Sequence[tuple[float, float]]) -> bytes:
    """Return a file of the operator. bounds: smallest and largest value of each output."""
    writer = FileWriter()
    inputs = [_add_input(writer, description, number_format, at) for at in range(len(description.inputs))]
    outputs = [
        _add_output(writer, description, number_format, at, bounds[at] if at < len(bounds) else (0.0, 1.0))
        for at in range(len(description.outputs))
    ]
    places = [index for index, _ in inputs]
    writer.operator(description.operator, places, outputs, description.options, description.fields)
    return writer.content([index for index, is_data in inputs if is_data], outputs)


def _activation(description: Description, given: Given, number_format: str) -> tuple[float, int]:
    low, high = given.low, given.high
    if description.ranges == "same":
        data = [one for one in description.inputs if one.role == "data" and one.kind == "FLOAT32"]
        low, high = min(one.low for one in data), max(one.high for one in data)
    return range_of(low, high, number_format)


def _add_input(writer: FileWriter, description: Description, number_format: str, at: int) -> tuple[int, bool]:
    """Return an input's index and whether it is an input of the file."""
    given = description.inputs[at]
    if given.role in ("state", "absent"):
        is_state = given.role == "state"
        return writer.tensor(f"state{at}", given.shape, "FLOAT32", is_variable=True) if is_state else -1, False
    name, is_data = f"in{at}", given.role == "data" and not given.is_constant
    values = None if is_data else values_of(given, at)
    if given.kind != "FLOAT32" or given.role == "plain" or number_format == "float":
        return writer.tensor(name, given.shape, given.kind, values), is_data
    if given.role == "data":
        if number_format not in _INTEGERS:
            return writer.tensor(name, given.shape, "FLOAT32", values), is_data
        scale, zero = _activation(description, given, number_format)
        if values is not None:
            limits = np.iinfo(_INTEGERS[number_format].lower())
            values = np.clip(np.rint(values / scale) + zero, limits.min, limits.max).astype(limits.dtype)
        return writer.tensor(name, given.shape, _INTEGERS[number_format], values, (scale, zero, 0)), is_data
    assert values is not None
    if given.role == "weight":
        return _add_weight(writer, given, values, number_format, name), False
    return _add_bias(writer, description, given, values, number_format, name), False


def _add_weight(writer: FileWriter, given: Given, values: Array, number_format: str, name: str) -> int:
    if number_format == "float16 weights":
        half = writer.tensor(f"{name}_half", given.shape, "FLOAT16", values.astype(np.float16))
        made = writer.tensor(name, given.shape, "FLOAT32")
        writer.operator("DEQUANTIZE", [half], [made], "DequantizeOptions")
        return made
    if number_format == "sparse":
        thin = np.where(np.random.default_rng(9).uniform(size=values.shape) < 0.7, 0, values).astype(np.float32)
        kept, sparsity = _sparse(writer, thin)
        sparse = writer.tensor(f"{name}_sparse", given.shape, "FLOAT32", kept, sparsity=sparsity)
        made = writer.tensor(name, given.shape, "FLOAT32")
        writer.operator("DENSIFY", [sparse], [made], "DensifyOptions")
        return made
    integers, scale = quantize_weight(values, given.axis)
    return writer.tensor(name, given.shape, "INT8", integers, (scale, np.zeros_like(scale), max(given.axis, 0)))


def _sparse(writer: FileWriter, values: Array) -> tuple[Array, Any]:
    """Return the values that are kept and their description: all axes but the last are dense."""
    schema = writer.schema
    rows = values.reshape(-1, values.shape[-1])
    segments = np.concatenate([[0], np.cumsum([np.count_nonzero(row) for row in rows])]).astype(np.int32)
    places = np.concatenate([np.flatnonzero(row) for row in rows]).astype(np.int32)
    dense = [schema.DimensionMetadataT(format=0, denseSize=extent) for extent in values.shape[:-1]]
    last = schema.DimensionMetadataT(
        format=1,
        denseSize=values.shape[-1],
        arraySegmentsType=schema.SparseIndexVector.Int32Vector,
        arraySegments=schema.Int32VectorT(values=segments),
        arrayIndicesType=schema.SparseIndexVector.Int32Vector,
        arrayIndices=schema.Int32VectorT(values=places),
    )
    order = np.arange(values.ndim, dtype=np.int32)
    return rows[rows != 0], schema.SparsityParametersT(traversalOrder=order, dimMetadata=[*dense, last])


def _add_bias(
    writer: FileWriter, description: Description, given: Given, values: Array, number_format: str, name: str
) -> int:
    if number_format not in _INTEGERS:
        return writer.tensor(name, given.shape, "FLOAT32", values)
    data = next(one for one in description.inputs if one.role == "data" and not one.is_constant)
    at, weight = next((at, one) for at, one in enumerate(description.inputs) if one.role == "weight")
    _, scales = quantize_weight(values_of(weight, at), weight.axis)
    scale = scales * range_of(data.low, data.high, number_format)[0]
    kind = "INT32" if number_format == "int8" else "INT64"
    integers = np.rint(values / scale).astype(kind.lower())
    return writer.tensor(name, given.shape, kind, integers, (scale, np.zeros_like(scale), 0))


def _add_output(
    writer: FileWriter, description: Description, number_format: str, at: int, bounds: tuple[float, float]
) -> int:
    kind, shape = description.outputs[at], description.shapes[at] if at < len(description.shapes) else ()
    if kind != "FLOAT32" or number_format not in _INTEGERS:
        return writer.tensor(f"out{at}", shape, kind)
    if description.ranges == "same":
        scale, zero = _activation(description, description.inputs[0], number_format)
    elif description.ranges == "own":
        scale, zero = range_of(*bounds, number_format)
    else:
        (narrow, zero), wide = description.ranges
        scale, zero = (narrow, zero) if number_format == "int8" else (wide, 0)
    return writer.tensor(f"out{at}", shape, _INTEGERS[number_format], None, (scale, zero, 0))
