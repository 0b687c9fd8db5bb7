"""Replace custom operators by builtin ones of the same function, in the file itself.

LiteRT, which computes the reference, knows no custom operators either: it reads the file in which they are replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from tvmflow.frontends.tensorflow.custom_transforms import TRANSFORMS
from tvmflow.frontends.tensorflow.written_operators import Place
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError

_PADDINGS = {1: 0, 2: 1}  # of MediaPipe's TfLitePadding -> of the format: SAME, VALID


def replace_custom_operators(content: bytes) -> bytes:
    """Return the file with the custom operators of `CUSTOM_OPERATORS` replaced; unchanged without any.

    Raises UnsupportedOperatorError for a use of one that has no builtin equal.
    """
    if not any(name.encode() in content for name in CUSTOM_OPERATORS):
        return content
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    try:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        for graph in model.subgraphs:
            given, graph.operators = graph.operators or [], []
            for operator in given:
                name = model.operatorCodes[operator.opcodeIndex].customCode
                replace = CUSTOM_OPERATORS.get(name.decode() if isinstance(name, bytes) else name)
                if replace is None:
                    graph.operators.append(operator)
                else:
                    replace(Place(schema, model, graph, operator))
        builder = flatbuffers.Builder(len(content))
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, struct.error) as error:
        raise ModelFileError(f"a custom operator of the file is damaged: {error}", "a whole .tflite file") from error
    return bytes(builder.Output())


def _transposed_convolution(place: Place) -> None:
    """MediaPipe's Convolution2DTransposeBias: data, weight (O, KH, KW, I), bias -> TRANSPOSE_CONV."""
    data, weight, bias = (int(index) for index in place.operator.inputs)
    padding, stride_w, stride_h = place.options(3)
    made = int(place.operator.outputs[0])
    size = place.constant(np.asarray(place.shape(made), np.int32), "INT32")
    place.emit(
        "TRANSPOSE_CONV",
        [size, weight, data, bias],
        made,
        "TransposeConvOptions",
        version=3,
        padding=_PADDINGS[padding],
        strideW=stride_w,
        strideH=stride_h,
    )


def _square_windows(place: Place, name: str, image: Sequence[int]) -> int:
    """Return the size of windows that lie side by side and fill an image (N, H, W, C)."""
    _, stride_w, stride_h, width, height, activation = place.options(6)
    size = width
    if {stride_w, stride_h, height} != {size} or activation or any(pixels % size for pixels in image[1:3]):
        raise UnsupportedOperatorError(
            f"TFLite operator {name} with windows of {height}x{width}, strides {stride_h}x{stride_w} and activation "
            f"{activation} over {image[1]}x{image[2]} pixels",
            "square windows side by side that fill the image, without an activation",
            "change the layer in the model, or export the model to ONNX",
        )
    return size


def _pool_with_places(place: Place) -> None:
    """MediaPipe's MaxPoolingWithArgmax2D: data -> maxima, and the place of each in its window, plus 0.1, as a float."""
    (data,), (best, places) = (
        [int(index) for index in ends] for ends in (place.operator.inputs, place.operator.outputs)
    )
    batch, height, width, channels = image = place.shape(data)
    size = _square_windows(place, "MaxPoolingWithArgmax2D", image)
    rows, columns = height // size, width // size
    deep = place.value([batch, rows, columns, size * size * channels], "FLOAT32")
    place.emit("SPACE_TO_DEPTH", [data], deep, "SpaceToDepthOptions", blockSize=size)
    windows = place.value([batch, rows, columns, size * size, channels], "FLOAT32")
    place.emit("RESHAPE", [deep, place.constant(np.asarray(place.shape(windows), np.int32), "INT32")], windows)
    place.emit(
        "REDUCE_MAX",
        [windows, place.constant(np.asarray([3], np.int32), "INT32")],
        best,
        "ReducerOptions",
        keepDims=False,
    )
    found, number = (place.value([batch, rows, columns, channels], kind) for kind in ("INT32", "FLOAT32"))
    kinds = place.schema.TensorType
    place.emit(
        "ARG_MAX", [windows, place.constant(np.int32(3), "INT32")], found, "ArgMaxOptions", outputType=kinds.INT32
    )
    place.emit("CAST", [found], number, "CastOptions", inDataType=kinds.INT32, outDataType=kinds.FLOAT32)
    place.emit("ADD", [number, place.constant(np.float32(0.1), "FLOAT32")], places, "AddOptions")


def _unpool(place: Place) -> None:
    """MediaPipe's MaxUnpooling2D: data, places in windows -> an image with each value at its place, zeros elsewhere."""
    data, places = (int(index) for index in place.operator.inputs)
    made = int(place.operator.outputs[0])
    batch, rows, columns, channels = place.shape(data)
    size = _square_windows(place, "MaxUnpooling2D", place.shape(made))
    taps = size * size
    deep = [batch, rows, columns, taps * channels]
    number = place.value(place.shape(places), "INT32")
    kinds = place.schema.TensorType
    place.emit("CAST", [places], number, "CastOptions", inDataType=kinds.FLOAT32, outDataType=kinds.INT32)
    copies = place.constant(np.asarray([1, 1, 1, taps], np.int32), "INT32")
    numbers = place.emit("TILE", [number, copies], place.value(deep, "INT32"), "TileOptions")
    values = place.emit("TILE", [data, copies], place.value(deep, "FLOAT32"), "TileOptions")
    tap = place.constant(np.repeat(np.arange(taps, dtype=np.int32), channels).reshape(1, 1, 1, -1), "INT32")
    is_here = place.emit("EQUAL", [numbers, tap], place.value(deep, "BOOL"), "EqualOptions")
    zero = place.constant(np.float32(0), "FLOAT32")
    kept = place.emit("SELECT_V2", [is_here, values, zero], place.value(deep, "FLOAT32"), "SelectV2Options")
    place.emit("DEPTH_TO_SPACE", [kept], made, "DepthToSpaceOptions", blockSize=size)


CUSTOM_OPERATORS: dict[str, Callable[[Place], None]] = {
    "Convolution2DTransposeBias": _transposed_convolution,
    "MaxPoolingWithArgmax2D": _pool_with_places,
    "MaxUnpooling2D": _unpool,
    **TRANSFORMS,
}
