"""Validate a .tflite file before LiteRT reads it, since wrong offsets and counts make LiteRT hang."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tvmflow.support.errors import ModelFileError

MAX_TFLITE_BYTES = 2 << 30  # flatbuffers' own limit
_MAX_RANK = 8


def plain_name(name: str) -> str:
    """Return the name of an input without the exporter's decoration, by which entries and callers know it."""
    return name.removeprefix("serving_default_").split(":")[0]


def read_tflite(path: Path) -> bytes:
    """Return the file's bytes after checking that all tables used by the runtime are inside. Raises ModelFileError."""
    size = path.stat().st_size
    if size > MAX_TFLITE_BYTES:
        raise ModelFileError(f"{path.name} holds {size} bytes", f"at most {MAX_TFLITE_BYTES}")
    content = path.read_bytes()
    if content[4:8] != b"TFL3":
        raise ModelFileError(f"{path.name} is not a TFLite file", "a flatbuffer with the identifier TFL3")
    try:
        _check_model(flatbuffer(content), len(content))
    except (struct.error, ValueError, TypeError, IndexError, OverflowError, AttributeError) as error:
        raise ModelFileError(
            f"{path.name} is damaged: {error}",
            "a whole .tflite file",
            "convert the model again, or copy the file again",
        ) from error
    return content


def flatbuffer(content: bytes) -> Any:
    """Return the root table of a .tflite file; its fields are decoded on access."""
    import tflite

    return tflite.Model.GetRootAsModel(content, 0)


def _check_model(model: Any, size: int) -> None:
    if model.Version() != 3:
        raise ValueError(f"version {model.Version()} of the format; only 3 is supported")
    codes = _count(model.OperatorCodesLength(), size, "operator codes")
    buffers = _count(model.BuffersLength(), size, "buffers")
    for index in range(buffers):
        _count(model.Buffers(index).DataLength(), size, f"bytes in buffer {index}", 1)
    graphs = _count(model.SubgraphsLength(), size, "graphs")
    if not graphs:
        raise ValueError("it holds no graph")
    for index in range(graphs):
        _check_graph(model.Subgraphs(index), codes, buffers, size)


def _check_graph(graph: Any, codes: int, buffers: int, size: int) -> None:
    tensors = _count(graph.TensorsLength(), size, "tensors")
    for index in range(tensors):
        tensor = graph.Tensors(index)
        if tensor.Buffer() >= buffers:
            raise ValueError(f"tensor {index} names buffer {tensor.Buffer()} of {buffers}")
        if tensor.ShapeLength() > _MAX_RANK or any(tensor.Shape(i) < 0 for i in range(tensor.ShapeLength())):
            raise ValueError(f"tensor {index} has no static shape of at most {_MAX_RANK} dimensions")
    for index in range(_count(graph.OperatorsLength(), size, "operators")):
        operator = graph.Operators(index)
        if operator.OpcodeIndex() >= codes:
            raise ValueError(f"operator {index} names code {operator.OpcodeIndex()} of {codes}")
        ends = (operator.Inputs, operator.InputsLength()), (operator.Outputs, operator.OutputsLength())
        for tensor_at, length in ends:
            for i in range(_count(length, size, f"ends of operator {index}")):
                if not -1 <= tensor_at(i) < tensors:  # -1: an input that is left out
                    raise ValueError(f"operator {index} names tensor {tensor_at(i)} of {tensors}")


def _count(count: int, size: int, what: str, smallest: int = 4) -> int:
    """Return a number of entries that take at least `smallest` bytes each."""
    if count * smallest > size:
        raise ValueError(f"{count} {what} in a file of {size} bytes")
    return count
