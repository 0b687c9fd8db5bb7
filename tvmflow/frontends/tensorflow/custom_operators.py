"""Replace custom operators by builtin ones of the same function, in the file itself.

LiteRT, which computes the reference, knows no custom operators either: it reads the file in which they are replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmflow.support.errors import ModelFileError

_PADDINGS = {1: 0, 2: 1}  # of MediaPipe's TfLitePadding -> of the format: SAME, VALID


def replace_custom_operators(content: bytes) -> bytes:
    """Return the file with the custom operators of `CUSTOM_OPERATORS` replaced; unchanged without any."""
    if not any(name.encode() in content for name in CUSTOM_OPERATORS):
        return content
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    try:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        for graph in model.subgraphs:
            for operator in graph.operators or ():
                name = model.operatorCodes[operator.opcodeIndex].customCode
                replace = CUSTOM_OPERATORS.get(name.decode() if isinstance(name, bytes) else name)
                if replace is not None:
                    replace(schema, model, graph, operator)
        builder = flatbuffers.Builder(len(content))
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, struct.error) as error:
        raise ModelFileError(f"a custom operator of the file is damaged: {error}", "a whole .tflite file") from error
    return bytes(builder.Output())


def _transposed_convolution(schema: Any, model: Any, graph: Any, operator: Any) -> None:
    """MediaPipe's Convolution2DTransposeBias: data, weight (O, KH, KW, I), bias -> TRANSPOSE_CONV."""
    data, weight, bias = (int(index) for index in operator.inputs)
    padding, stride_w, stride_h = struct.unpack_from("<iii", bytes(np.asarray(operator.customOptions, np.uint8)))
    shape = np.asarray(graph.tensors[int(operator.outputs[0])].shape, np.int32)
    model.buffers.append(schema.BufferT(data=np.frombuffer(shape.tobytes(), np.uint8)))
    graph.tensors.append(
        schema.TensorT(
            shape=np.asarray([4], np.int32),
            type=schema.TensorType.INT32,
            buffer=len(model.buffers) - 1,
            name=f"shape_of_{int(operator.outputs[0])}",
            hasRank=True,
        )
    )
    code = schema.BuiltinOperator.TRANSPOSE_CONV
    model.operatorCodes.append(schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=code, version=3))
    operator.opcodeIndex, operator.customOptions = len(model.operatorCodes) - 1, None
    operator.inputs = np.asarray([len(graph.tensors) - 1, weight, data, bias], np.int32)
    operator.builtinOptionsType = schema.BuiltinOptions.TransposeConvOptions
    operator.builtinOptions = schema.TransposeConvOptionsT(
        padding=_PADDINGS[padding], strideW=stride_w, strideH=stride_h
    )


CUSTOM_OPERATORS: dict[str, Callable[[Any, Any, Any, Any], None]] = {
    "Convolution2DTransposeBias": _transposed_convolution,
}
