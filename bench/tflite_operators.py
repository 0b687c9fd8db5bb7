"""Describe at least one use of every TFLite operator that is imported, for conformance and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.tflite_models import FORMATS, Description, Given

_IMAGE = (1, 8, 10, 6)
_PLAIN = ("float", "int8", "int16x8")


def _x(*shape: int, low: float = -2.0, high: float = 2.0, kind: str = "FLOAT32") -> Given:
    return Given(shape, "data", low, high, kind=kind)


def _weight(*shape: int, axis: int = 0) -> Given:
    return Given(shape, "weight", -1.0, 1.0, axis)


def _bias(count: int) -> Given:
    return Given((count,), "bias", -1.0, 1.0)


def _plain(values: Any, kind: str = "INT32") -> Given:
    array = np.asarray(values)
    return Given(array.shape, "plain", kind=kind, values=array)


def _ints(*shape: int, low: int = -5, high: int = 5, kind: str = "INT32") -> Given:
    return Given(shape, "data", low, high, kind=kind)


def _flags(*shape: int) -> Given:
    return Given(shape, "data", kind="BOOL")


def _of_one(name: str, options: str | None = None, low: float = -2.0, high: float = 2.0, **more: Any) -> Description:
    return Description(name, (_x(1, 5, 7, 6, low=low, high=high),), options, **more)


def _one() -> list[Description]:
    """Return elementwise operators of one input."""
    sigmoid, tangent = ((1 / 256, -128), 1 / 32768), ((1 / 128, 0), 1 / 32768)
    return [
        _of_one("ABS", "AbsOptions"),
        _of_one("CEIL"),
        _of_one("COS", "CosOptions"),
        _of_one("ELU"),
        _of_one("EXP", "ExpOptions"),
        _of_one("FLOOR"),
        _of_one("GELU", "GeluOptions"),
        _of_one("GELU", "GeluOptions", fields={"approximate": True}, label="tanh"),
        _of_one("HARD_SWISH", "HardSwishOptions", -6, 6),
        _of_one("LEAKY_RELU", "LeakyReluOptions", fields={"alpha": 0.1}),
        _of_one("LEAKY_RELU", "LeakyReluOptions", fields={"alpha": 1.5}, label="steep"),
        _of_one("LOG", None, 0.1, 8),
        _of_one("LOGISTIC", None, -8, 8, ranges=sigmoid),
        _of_one("LOG_SOFTMAX", "LogSoftmaxOptions", -6, 6, ranges=((16 / 256, 127), 16 / 32768)),
        _of_one("NEG", "NegOptions", ranges="same"),
        _of_one("RELU"),
        _of_one("RELU6", None, -3, 9),
        _of_one("RELU_0_TO_1"),
        _of_one("RELU_N1_TO_1"),
        _of_one("ROUND", None, -9, 9),
        _of_one("RSQRT", None, 0.2, 4),
        _of_one("SIGN", "SignOptions"),
        _of_one("SIN"),
        _of_one("SOFTMAX", "SoftmaxOptions", -6, 6, fields={"beta": 1.0}, ranges=((1 / 256, -128), 1 / 32768)),
        _of_one("SOFTMAX", "SoftmaxOptions", fields={"beta": 0.5}, ranges=((1 / 256, -128), 1 / 32768), label="beta"),
        _of_one("SQRT", None, 0, 4),
        _of_one("SQUARE", "SquareOptions"),
        _of_one("TANH", None, -4, 4, ranges=tangent),
        _of_one("ZEROS_LIKE", "ZerosLikeOptions"),
        _of_one(
            "L2_NORMALIZATION", "L2NormOptions", fields={"fusedActivationFunction": 0}, ranges=((1 / 128, 0), 1 / 32768)
        ),
        _of_one(
            "LOCAL_RESPONSE_NORMALIZATION",
            "LocalResponseNormalizationOptions",
            fields={"radius": 2, "bias": 1.0, "alpha": 0.5, "beta": 0.75},
        ),
        _of_one(
            "FAKE_QUANT",
            "FakeQuantOptions",
            fields={"min": -1.0, "max": 1.5, "numBits": 8, "narrowRange": False},
            formats=("float",),
        ),
        Description("LOGICAL_NOT", (_flags(3, 4),), "LogicalNotOptions", outputs=("BOOL",)),
        Description("ABS", (_ints(3, 4),), "AbsOptions", outputs=("INT32",), label="int32"),
        Description("NEG", (_ints(3, 4),), "NegOptions", outputs=("INT32",), label="int32"),
        Description(
            "CAST",
            (_x(3, 4, low=-9, high=9),),
            "CastOptions",
            {"inDataType": 0, "outDataType": 2},
            ("INT32",),
            label="int32",
            formats=("float",),
        ),
        Description(
            "CAST",
            (_ints(3, 4),),
            "CastOptions",
            {"inDataType": 2, "outDataType": 0},
            label="float",
            formats=("float",),
        ),
        Description(
            "CAST", (_ints(3, 4),), "CastOptions", {"inDataType": 2, "outDataType": 6}, ("BOOL",), label="bool"
        ),
        Description(
            "CAST",
            (_flags(3, 4),),
            "CastOptions",
            {"inDataType": 6, "outDataType": 0},
            label="flags",
            formats=("float",),
        ),
        Description(
            "BUCKETIZE",
            (_x(3, 4),),
            "BucketizeOptions",
            {"boundaries": np.asarray([-1, 0, 0.5], np.float32)},
            ("INT32",),
        ),
    ]


def _pair(name: str, options: str | None = None, **more: Any) -> Description:
    right = more.pop("right", _x(1, 5, 7, 6, low=-1, high=3))
    return Description(name, (more.pop("left", _x(1, 5, 7, 6)), right), options, **more)


def _two() -> list[Description]:
    """Return elementwise operators of several inputs."""
    positive = _x(1, 5, 7, 6, low=0.5, high=3)
    made = [
        _pair("ADD", "AddOptions"),
        _pair("ADD", "AddOptions", fields={"fusedActivationFunction": 3}, right=_x(1, 1, 1, 6), label="relu6"),
        _pair("SUB", "SubOptions"),
        _pair("MUL", "MulOptions"),
        _pair("MUL", "MulOptions", right=_x(1, 5, 7, 1), fields={"fusedActivationFunction": 1}, label="relu"),
        _pair("DIV", "DivOptions", right=positive),
        _pair("MAXIMUM", "MaximumMinimumOptions", ranges="same"),
        _pair("MINIMUM", "MaximumMinimumOptions", ranges="same"),
        _pair("POW", "PowOptions", left=positive),
        _pair("FLOOR_DIV", "FloorDivOptions", right=positive),
        _pair("FLOOR_MOD", "FloorModOptions", right=positive),
        _pair("SQUARED_DIFFERENCE", "SquaredDifferenceOptions"),
        _pair("ATAN2", "ATan2Options"),
        Description("PRELU", (_x(1, 5, 7, 6), _weight(1, 1, 6, axis=-1)), formats=(*_PLAIN, "float16 weights")),
        Description("ADD_N", (_x(3, 4), _x(3, 4), _x(3, 4)), "AddNOptions"),
        Description("SELECT", (_flags(3, 4), _x(3, 4), _x(3, 4)), "SelectOptions", ranges="same"),
        Description("SELECT", (_flags(3), _x(3, 4), _x(3, 4)), "SelectOptions", ranges="same", label="rows"),
        Description("SELECT_V2", (_flags(3, 1), _x(3, 4), _x(1, 4)), "SelectV2Options", ranges="same"),
        Description("LOGICAL_AND", (_flags(3, 4), _flags(1, 4)), "LogicalAndOptions", outputs=("BOOL",)),
        Description("LOGICAL_OR", (_flags(3, 4), _flags(1, 4)), "LogicalOrOptions", outputs=("BOOL",)),
        Description("BITWISE_XOR", (_ints(3, 4), _ints(3, 4)), "BitwiseXorOptions", outputs=("INT32",)),
        Description("RIGHT_SHIFT", (_ints(3, 4), _ints(3, 4, low=0, high=3)), "RightShiftOptions", outputs=("INT32",)),
    ]
    signed = _plain([[1, -2, 3, -4]])
    for name, right in (("ADD", signed), ("SUB", signed), ("MUL", signed), ("DIV", signed), ("FLOOR_DIV", signed)):
        options = {"FLOOR_DIV": "FloorDivOptions"}.get(name, f"{name.title()}Options")
        made.append(Description(name, (_ints(3, 4, low=-9, high=9), right), options, outputs=("INT32",), label="int32"))
    made += [
        Description(
            "FLOOR_MOD", (_ints(3, 4, low=-9, high=9), signed), "FloorModOptions", outputs=("INT32",), label="int32"
        ),
        Description("POW", (_ints(3, 4), _plain(3)), "PowOptions", outputs=("INT32",), label="int32"),
        Description("MAXIMUM", (_ints(3, 4), signed), "MaximumMinimumOptions", outputs=("INT32",), label="int32"),
    ]
    for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        options = f"{name.title().replace('_', '')}Options"
        made.append(Description(name, (_x(3, 4), _x(3, 4)), options, outputs=("BOOL",), ranges="same"))
        made.append(Description(name, (_ints(3, 4), _ints(1, 4)), options, outputs=("BOOL",), label="int32"))
    for name in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"):
        made.append(Description(f"STABLEHLO_{name}", (_x(3, 4), _x(3, 4)), formats=("float",)))
    made.append(
        Description(
            "STABLEHLO_SHIFT_LEFT",
            (_ints(3, 4, low=0), _ints(3, 4, low=0, high=3)),
            "StablehloShiftLeftOptions",
            outputs=("INT32",),
        )
    )
    return made


def _convolution(padding: int, stride: int, dilation: int = 1, activation: int = 0) -> dict[str, Any]:
    return {
        "padding": padding,
        "strideH": stride,
        "strideW": stride,
        "dilationHFactor": dilation,
        "dilationWFactor": dilation,
        "fusedActivationFunction": activation,
    }


def _products() -> list[Description]:
    conv, depthwise = "Conv2DOptions", "DepthwiseConv2DOptions"
    transposed = "TransposeConvOptions"
    x, w, b = _x(*_IMAGE), _weight(8, 3, 3, 6), _bias(8)
    shape3 = (1, 5, 6, 7, 4)
    strides3 = {
        "padding": 0,
        "strideD": 1,
        "strideH": 2,
        "strideW": 1,
        "dilationDFactor": 1,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
        "fusedActivationFunction": 0,
    }
    dense = "FullyConnectedOptions"
    return [
        Description("CONV_2D", (x, w, b), conv, _convolution(0, 1)),
        Description("CONV_2D", (x, w, b), conv, _convolution(0, 2, 1, 3), label="stride-relu6"),
        Description("CONV_2D", (x, w, b), conv, _convolution(1, 1, 2, 1), label="valid-dilated"),
        Description("CONV_2D", (x, _weight(8, 1, 1, 3), b), conv, _convolution(1, 1), label="grouped", formats=_PLAIN),
        Description(
            "DEPTHWISE_CONV_2D",
            (x, _weight(1, 3, 3, 6, axis=3), _bias(6)),
            depthwise,
            {**_convolution(0, 1), "depthMultiplier": 1},
        ),
        Description(
            "DEPTHWISE_CONV_2D",
            (x, _weight(1, 3, 3, 12, axis=3), _bias(12)),
            depthwise,
            {**_convolution(0, 2, 1, 1), "depthMultiplier": 2},
            label="multiplier",
        ),
        Description(
            "DEPTHWISE_CONV_2D",
            (_x(1, 8, 8, 1), _weight(1, 3, 3, 4, axis=3), _bias(4)),
            depthwise,
            {**_convolution(1, 1), "depthMultiplier": 4},
            label="one-channel",
        ),
        Description(
            "TRANSPOSE_CONV",
            (_plain([1, 16, 20, 4]), _weight(4, 3, 3, 6), x, _bias(4)),
            transposed,
            {"padding": 0, "strideH": 2, "strideW": 2, "fusedActivationFunction": 0},
            shapes=((1, 16, 20, 4),),
        ),
        Description(
            "TRANSPOSE_CONV",
            (_plain([1, 17, 21, 4]), _weight(4, 3, 3, 6), x, _bias(4)),
            transposed,
            {"padding": 1, "strideH": 2, "strideW": 2, "fusedActivationFunction": 1},
            label="valid-relu",
            shapes=((1, 17, 21, 4),),
        ),
        Description(
            "TRANSPOSE_CONV",
            (_plain([1, 16, 20, 4]), _weight(4, 2, 2, 6), x),
            transposed,
            {"padding": 0, "strideH": 2, "strideW": 2, "fusedActivationFunction": 0},
            label="no-bias",
            shapes=((1, 16, 20, 4),),
        ),
        Description(
            "CONV_3D", (_x(*shape3), Given((3, 3, 3, 4, 5), "weight", -1, 1, 4), _bias(5)), "Conv3DOptions", strides3
        ),
        Description(
            "CONV_3D_TRANSPOSE",
            (_plain([1, 5, 12, 7, 3]), Given((3, 3, 3, 3, 4), "weight", -1, 1, 3), _x(*shape3)),
            "Conv3DOptions",
            strides3,
            shapes=((1, 5, 12, 7, 3),),
        ),
        Description(
            "FULLY_CONNECTED", (_x(3, 16), _weight(8, 16), _bias(8)), dense, {"asymmetricQuantizeInputs": True}
        ),
        Description(
            "FULLY_CONNECTED",
            (_x(3, 16), _weight(8, 16, axis=-1), _bias(8)),
            dense,
            {"fusedActivationFunction": 1, "asymmetricQuantizeInputs": True},
            label="relu",
        ),
        Description(
            "FULLY_CONNECTED",
            (_x(2, 3, 16), _weight(8, 16, axis=-1)),
            dense,
            {"keepNumDims": True, "asymmetricQuantizeInputs": True},
            label="keeps-axes",
        ),
        Description(
            "BATCH_MATMUL",
            (_x(2, 3, 5), _x(2, 5, 4)),
            "BatchMatMulOptions",
            {"asymmetricQuantizeInputs": True},
            formats=_PLAIN,
        ),
        Description(
            "BATCH_MATMUL",
            (_x(2, 3, 5), _x(2, 4, 5)),
            "BatchMatMulOptions",
            {"adjY": True},
            label="adjoint",
            formats=_PLAIN,
        ),
        Description(
            "BATCH_MATMUL",
            (_x(2, 5, 3), _x(1, 5, 4)),
            "BatchMatMulOptions",
            {"adjX": True},
            label="broadcast",
            formats=_PLAIN,
        ),
        Description(
            "BATCH_MATMUL",
            (_x(2, 3, 5), _weight(2, 5, 4, axis=-1)),
            "BatchMatMulOptions",
            {"asymmetricQuantizeInputs": True},
            label="weights",
        ),
        Description(
            "EMBEDDING_LOOKUP",
            (_ints(5, low=0, high=8), _weight(9, 6)),
            None,
            formats=("float", "float16 weights", "dynamic range", "sparse"),
        ),
    ]


def _pool(padding: int, size: int, stride: int, activation: int = 0) -> dict[str, Any]:
    return {
        "padding": padding,
        "strideH": stride,
        "strideW": stride,
        "filterHeight": size,
        "filterWidth": size,
        "fusedActivationFunction": activation,
    }


def _windows() -> list[Description]:
    x, options = (_x(*_IMAGE),), "Pool2DOptions"
    made = [
        Description("AVERAGE_POOL_2D", x, options, _pool(1, 2, 2), ranges="same"),
        Description("AVERAGE_POOL_2D", x, options, _pool(0, 3, 1, 1), ranges="same", label="same-relu"),
        Description("MAX_POOL_2D", x, options, _pool(0, 3, 2), ranges="same"),
        Description("L2_POOL_2D", x, options, _pool(1, 2, 2)),
    ]
    for name, table in (
        ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
        ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    ):
        for label, fields in (("", {}), ("align", {"alignCorners": True}), ("half", {"halfPixelCenters": True})):
            inputs = (_x(*_IMAGE), _plain([16, 20]))
            made.append(Description(name, inputs, table, fields, ranges="same", label=label))
        made.append(Description(name, (_x(*_IMAGE), _plain([5, 13])), table, {}, ranges="same", label="any"))
    for name in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        ranges = "same" if name in ("REDUCE_MAX", "REDUCE_MIN") else "own"
        for label, axes, keeps in (("", [1, 2], True), ("last", [-1], False)):
            low = 0.5 if name == "REDUCE_PROD" else -1.5
            inputs = (_x(1, 3, 2, 6, low=low, high=1.5), _plain(axes))
            made.append(Description(name, inputs, "ReducerOptions", {"keepDims": keeps}, ranges=ranges, label=label))
    made.append(Description("SUM", (_ints(3, 4), _plain([1])), "ReducerOptions", {}, ("INT32",), label="int32"))
    made.append(Description("MEAN", (_ints(3, 4), _plain([1])), "ReducerOptions", {}, ("INT32",), label="int32"))
    for name in ("REDUCE_ANY", "REDUCE_ALL"):
        made.append(Description(name, (_flags(6, 2), _plain([1])), "ReducerOptions", {"keepDims": True}, ("BOOL",)))
    for name, table in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):
        made.append(Description(name, (_x(3, 5, 7), _plain(1)), table, {"outputType": 2}, ("INT32",)))
        made.append(Description(name, (_x(3, 5, 7), _plain(-1)), table, {"outputType": 4}, ("INT64",), label="int64"))
    made += [
        Description("CUMSUM", (_x(3, 5), _plain(1)), "CumsumOptions", {}),
        Description(
            "CUMSUM", (_x(3, 5), _plain(0)), "CumsumOptions", {"exclusive": True, "reverse": True}, label="back"
        ),
        Description("TOPK_V2", (_x(3, 9), _plain(4)), "TopKV2Options", {}, ("FLOAT32", "INT32"), ranges="same"),
    ]
    return made


def _shapes() -> list[Description]:
    x, flat = _x(1, 4, 6, 8), _x(3, 6)

    def move(
        name: str, inputs: Sequence[Given], options: str | None = None, fields: Any = None, **more: Any
    ) -> Description:
        return Description(name, tuple(inputs), options, fields or {}, ranges="same", **more)

    slices = {"beginMask": 1, "endMask": 2, "shrinkAxisMask": 0, "ellipsisMask": 0, "newAxisMask": 0}
    return [
        move("RESHAPE", (x, _plain([2, -1])), "ReshapeOptions", {"newShape": np.asarray([2, -1], np.int32)}),
        move("RESHAPE", (x,), "ReshapeOptions", {"newShape": np.asarray([6, 32], np.int32)}, label="option"),
        move("SQUEEZE", (_x(1, 4, 1, 8),), "SqueezeOptions", {"squeezeDims": np.asarray([0], np.int32)}),
        move("SQUEEZE", (_x(1, 4, 1, 8),), "SqueezeOptions", {}, label="all"),
        move("EXPAND_DIMS", (flat, _plain(1)), "ExpandDimsOptions"),
        move("EXPAND_DIMS", (flat, _plain(-1)), "ExpandDimsOptions", label="last"),
        move("TRANSPOSE", (x, _plain([0, 3, 1, 2])), "TransposeOptions"),
        move("CONCATENATION", (x, _x(1, 4, 6, 2)), "ConcatenationOptions", {"axis": -1}),
        move("CONCATENATION", (x, x), "ConcatenationOptions", {"axis": 1, "fusedActivationFunction": 0}, label="rows"),
        move("PACK", (flat, flat), "PackOptions", {"axis": 1, "valuesCount": 2}),
        move("UNPACK", (_x(3, 6),), "UnpackOptions", {"axis": 0, "num": 3}, outputs=("FLOAT32",) * 3),
        move("SPLIT", (_plain(3), x), "SplitOptions", {"numSplits": 2}, outputs=("FLOAT32",) * 2),
        move(
            "SPLIT_V", (x, _plain([1, -1, 2]), _plain(2)), "SplitVOptions", {"numSplits": 3}, outputs=("FLOAT32",) * 3
        ),
        move("SLICE", (x, _plain([0, 1, 2, 0]), _plain([1, 2, -1, 8])), "SliceOptions"),
        move("STRIDED_SLICE", (flat, _plain([1, 1]), _plain([3, 5]), _plain([1, 2])), "StridedSliceOptions", slices),
        move(
            "STRIDED_SLICE",
            (flat, _plain([0, -1]), _plain([3, 0]), _plain([1, -2])),
            "StridedSliceOptions",
            {**slices, "beginMask": 0, "endMask": 0},
            label="back",
        ),
        move(
            "STRIDED_SLICE",
            (flat, _plain([-1, 0]), _plain([0, 6]), _plain([1, 1])),
            "StridedSliceOptions",
            {**slices, "shrinkAxisMask": 1, "beginMask": 0},
            label="shrink",
        ),
        move("PAD", (x, _plain([[0, 0], [1, 2], [0, 3], [0, 0]])), "PadOptions"),
        move(
            "PADV2",
            (flat, _plain([[1, 0], [2, 2]]), Given((1,), "data", -2, 2, values=[1.5], is_constant=True)),
            "PadV2Options",
        ),
        move("MIRROR_PAD", (x, _plain([[0, 0], [1, 2], [3, 3], [0, 0]])), "MirrorPadOptions", {"mode": 0}),
        move(
            "MIRROR_PAD",
            (x, _plain([[0, 0], [1, 2], [3, 3], [0, 0]])),
            "MirrorPadOptions",
            {"mode": 1},
            label="symmetric",
        ),
        move("TILE", (flat, _plain([1, 2])), "TileOptions"),
        move("BROADCAST_TO", (_x(1, 6), _plain([3, 6])), "BroadcastToOptions"),
        move("FILL", (_plain([2, 3]), _x()), "FillOptions", formats=("float",)),
        move("REVERSE_V2", (flat, _plain([1])), "ReverseV2Options"),
        move("SPACE_TO_DEPTH", (x,), "SpaceToDepthOptions", {"blockSize": 2}),
        move("DEPTH_TO_SPACE", (x,), "DepthToSpaceOptions", {"blockSize": 2}),
        move("SPACE_TO_BATCH_ND", (x, _plain([2, 3]), _plain([[0, 0], [1, 2]])), "SpaceToBatchNDOptions"),
        move("BATCH_TO_SPACE_ND", (_x(6, 4, 6, 2), _plain([2, 3]), _plain([[0, 0], [1, 2]])), "BatchToSpaceNDOptions"),
        move(
            "REVERSE_SEQUENCE", (_x(3, 5, 2), _plain([2, 5, 0])), "ReverseSequenceOptions", {"seqDim": 1, "batchDim": 0}
        ),
        move("MATRIX_DIAG", (flat,), "MatrixDiagOptions"),
        move("MATRIX_SET_DIAG", (_x(2, 4, 4), _x(2, 4)), "MatrixSetDiagOptions"),
        move("DYNAMIC_UPDATE_SLICE", (_x(4, 6), _x(2, 3), _plain([1, 2])), "DynamicUpdateSliceOptions"),
    ]


def _indexing() -> list[Description]:
    rows = _ints(4, low=0, high=4)
    same: dict[str, Any] = {"ranges": "same"}
    return [
        Description("GATHER", (_x(5, 6), rows), "GatherOptions", {"axis": 0}, ranges="same"),
        Description(
            "GATHER", (_x(2, 3, 5), _ints(4, low=0, high=4)), "GatherOptions", {"axis": -1}, ranges="same", label="last"
        ),
        Description(
            "GATHER",
            (_x(2, 5, 3), _ints(2, 4, low=0, high=4)),
            "GatherOptions",
            {"axis": 1, "batchDims": 1},
            ranges="same",
            label="batch",
        ),
        Description("GATHER_ND", (_x(5, 6, 3), _ints(2, 4, 2, low=0, high=4)), "GatherNdOptions", ranges="same"),
        Description("SCATTER_ND", (_plain([[1], [3], [1]]), _x(3, 2), _plain([5, 2])), "ScatterNdOptions", **same),
        Description(
            "ONE_HOT",
            (rows, _plain(5), _plain(2.0, "FLOAT32"), _plain(-1.0, "FLOAT32")),
            "OneHotOptions",
            {"axis": -1},
            **same,
        ),
        Description("SEGMENT_SUM", (_x(5, 3), _plain([0, 0, 1, 2, 2])), "SegmentSumOptions", **same),
        Description(
            "UNSORTED_SEGMENT_SUM", (_x(5, 3), _ints(5, low=0, high=3), _plain(4)), "UnsortedSegmentSumOptions", **same
        ),
        Description(
            "UNSORTED_SEGMENT_MAX", (_x(5, 3), _ints(5, low=0, high=3), _plain(4)), "UnsortedSegmentMaxOptions", **same
        ),
        Description(
            "UNSORTED_SEGMENT_MIN", (_x(5, 3), _ints(5, low=0, high=3), _plain(4)), "UnsortedSegmentMinOptions", **same
        ),
        Description(
            "UNSORTED_SEGMENT_PROD",
            (_x(5, 3), _ints(5, low=0, high=3), _plain(4)),
            "UnsortedSegmentProdOptions",
            **same,
        ),
        Description("SHAPE", (_x(3, 4),), "ShapeOptions", {"outType": 2}, ("INT32",), formats=("float",)),
        Description("RANK", (_x(3, 4),), "RankOptions", {}, ("INT32",), formats=("float",)),
        Description("QUANTIZE", (_x(3, 4),), "QuantizeOptions", formats=("int8", "int16x8"), label="again"),
    ]


def descriptions() -> list[Description]:
    """Return all descriptions; their names are unique."""
    made = [*_one(), *_two(), *_products(), *_windows(), *_shapes(), *_indexing()]
    names = [description.name for description in made]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
    return made


def formats_of(description: Description) -> list[str]:
    """Return the number formats in which an operator can be written: weights need one, integers alone have one."""
    if not description.has_floats:
        return ["float"]
    formats = [name for name in FORMATS if name in description.formats]
    return [name for name in formats if description.has_weights or name in _PLAIN]
