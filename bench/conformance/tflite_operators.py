"""Describe at least one use of every TFLite operator that is imported, for conformance and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.conformance.tflite_inputs import (
    PLAIN,
    constant_data,
    flag_data,
    float_data,
    integer_data,
    of_one,
    weight_data,
)
from bench.conformance.tflite_layers import products, windows
from bench.conformance.tflite_models import FORMATS, Description, Given
from bench.conformance.tflite_recurrent import recurrent


def _one() -> list[Description]:
    """Return elementwise operators of one input."""
    sigmoid, tangent = ((1 / 256, -128), 1 / 32768), ((1 / 128, 0), 1 / 32768)
    return [
        of_one("ABS", "AbsOptions"),
        of_one("CEIL"),
        of_one("COS", "CosOptions"),
        of_one("ELU"),
        of_one("EXP", "ExpOptions"),
        of_one("FLOOR"),
        of_one("GELU", "GeluOptions"),
        of_one("GELU", "GeluOptions", fields={"approximate": True}, label="tanh"),
        of_one("HARD_SWISH", "HardSwishOptions", -6, 6),
        of_one("LEAKY_RELU", "LeakyReluOptions", fields={"alpha": 0.1}),
        of_one("LEAKY_RELU", "LeakyReluOptions", fields={"alpha": 1.5}, label="steep"),
        of_one("LOG", None, 0.1, 8),
        of_one("LOGISTIC", None, -8, 8, ranges=sigmoid),
        of_one("LOG_SOFTMAX", "LogSoftmaxOptions", -6, 6, ranges=((16 / 256, 127), 16 / 32768)),
        of_one("NEG", "NegOptions", ranges="same"),
        of_one("RELU"),
        of_one("RELU6", None, -3, 9),
        of_one("RELU_0_TO_1"),
        of_one("RELU_N1_TO_1"),
        of_one("ROUND", None, -9, 9),
        of_one("RSQRT", None, 0.2, 4),
        of_one("SIGN", "SignOptions"),
        of_one("SIN"),
        of_one("SOFTMAX", "SoftmaxOptions", -6, 6, fields={"beta": 1.0}, ranges=((1 / 256, -128), 1 / 32768)),
        of_one("SOFTMAX", "SoftmaxOptions", fields={"beta": 0.5}, ranges=((1 / 256, -128), 1 / 32768), label="beta"),
        of_one("SQRT", None, 0, 4),
        of_one("SQUARE", "SquareOptions"),
        of_one("TANH", None, -4, 4, ranges=tangent),
        of_one("ZEROS_LIKE", "ZerosLikeOptions"),
        of_one(
            "L2_NORMALIZATION", "L2NormOptions", fields={"fusedActivationFunction": 0}, ranges=((1 / 128, 0), 1 / 32768)
        ),
        of_one(
            "LOCAL_RESPONSE_NORMALIZATION",
            "LocalResponseNormalizationOptions",
            fields={"radius": 2, "bias": 1.0, "alpha": 0.5, "beta": 0.75},
        ),
        of_one(
            "FAKE_QUANT",
            "FakeQuantOptions",
            fields={"min": -1.0, "max": 1.5, "numBits": 8, "narrowRange": False},
            formats=("float",),
        ),
    ]


def _one_of_any_type() -> list[Description]:
    """Return elementwise operators of one input that read or make integers or flags."""
    return [
        Description("LOGICAL_NOT", (flag_data(3, 4),), "LogicalNotOptions", outputs=("BOOL",)),
        Description("ABS", (integer_data(3, 4),), "AbsOptions", outputs=("INT32",), label="int32"),
        Description("NEG", (integer_data(3, 4),), "NegOptions", outputs=("INT32",), label="int32"),
        Description(
            "CAST",
            (float_data(3, 4, low=-9, high=9),),
            "CastOptions",
            {"inDataType": 0, "outDataType": 2},
            ("INT32",),
            label="int32",
            formats=("float",),
        ),
        Description(
            "CAST",
            (integer_data(3, 4),),
            "CastOptions",
            {"inDataType": 2, "outDataType": 0},
            label="float",
            formats=("float",),
        ),
        Description(
            "CAST", (integer_data(3, 4),), "CastOptions", {"inDataType": 2, "outDataType": 6}, ("BOOL",), label="bool"
        ),
        Description(
            "CAST",
            (flag_data(3, 4),),
            "CastOptions",
            {"inDataType": 6, "outDataType": 0},
            label="flags",
            formats=("float",),
        ),
        Description(
            "BUCKETIZE",
            (float_data(3, 4),),
            "BucketizeOptions",
            {"boundaries": np.asarray([-1, 0, 0.5], np.float32)},
            ("INT32",),
        ),
    ]


def _pair(name: str, options: str | None = None, **more: Any) -> Description:
    right = more.pop("right", float_data(1, 5, 7, 6, low=-1, high=3))
    return Description(name, (more.pop("left", float_data(1, 5, 7, 6)), right), options, **more)


def _two() -> list[Description]:
    """Return elementwise operators of several inputs."""
    positive = float_data(1, 5, 7, 6, low=0.5, high=3)
    made = [
        _pair("ADD", "AddOptions"),
        _pair("ADD", "AddOptions", fields={"fusedActivationFunction": 3}, right=float_data(1, 1, 1, 6), label="relu6"),
        _pair("SUB", "SubOptions"),
        _pair("MUL", "MulOptions"),
        _pair("MUL", "MulOptions", right=float_data(1, 5, 7, 1), fields={"fusedActivationFunction": 1}, label="relu"),
        _pair("DIV", "DivOptions", right=positive),
        _pair("MAXIMUM", "MaximumMinimumOptions", ranges="same"),
        _pair("MINIMUM", "MaximumMinimumOptions", ranges="same"),
        _pair("POW", "PowOptions", left=positive),
        _pair("FLOOR_DIV", "FloorDivOptions", right=positive),
        _pair("FLOOR_MOD", "FloorModOptions", right=positive),
        _pair("SQUARED_DIFFERENCE", "SquaredDifferenceOptions"),
        _pair("ATAN2", "ATan2Options"),
        Description(
            "PRELU", (float_data(1, 5, 7, 6), weight_data(1, 1, 6, axis=-1)), formats=(*PLAIN, "float16 weights")
        ),
        Description("ADD_N", (float_data(3, 4), float_data(3, 4), float_data(3, 4)), "AddNOptions"),
        Description("SELECT", (flag_data(3, 4), float_data(3, 4), float_data(3, 4)), "SelectOptions", ranges="same"),
        Description(
            "SELECT", (flag_data(3), float_data(3, 4), float_data(3, 4)), "SelectOptions", ranges="same", label="rows"
        ),
        Description(
            "SELECT_V2", (flag_data(3, 1), float_data(3, 4), float_data(1, 4)), "SelectV2Options", ranges="same"
        ),
        Description("LOGICAL_AND", (flag_data(3, 4), flag_data(1, 4)), "LogicalAndOptions", outputs=("BOOL",)),
        Description("LOGICAL_OR", (flag_data(3, 4), flag_data(1, 4)), "LogicalOrOptions", outputs=("BOOL",)),
        Description("BITWISE_XOR", (integer_data(3, 4), integer_data(3, 4)), "BitwiseXorOptions", outputs=("INT32",)),
        Description(
            "RIGHT_SHIFT",
            (integer_data(3, 4), integer_data(3, 4, low=0, high=3)),
            "RightShiftOptions",
            outputs=("INT32",),
        ),
    ]
    for name in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"):
        made.append(Description(f"STABLEHLO_{name}", (float_data(3, 4), float_data(3, 4)), formats=("float",)))
    return made


def _two_of_any_type() -> list[Description]:
    """Return elementwise operators of integers, and comparisons."""
    made: list[Description] = []
    signed = constant_data([[1, -2, 3, -4]])
    for name, right in (("ADD", signed), ("SUB", signed), ("MUL", signed), ("DIV", signed), ("FLOOR_DIV", signed)):
        options = {"FLOOR_DIV": "FloorDivOptions"}.get(name, f"{name.title()}Options")
        made.append(
            Description(name, (integer_data(3, 4, low=-9, high=9), right), options, outputs=("INT32",), label="int32")
        )
    made += [
        Description(
            "FLOOR_MOD",
            (integer_data(3, 4, low=-9, high=9), signed),
            "FloorModOptions",
            outputs=("INT32",),
            label="int32",
        ),
        Description("POW", (integer_data(3, 4), constant_data(3)), "PowOptions", outputs=("INT32",), label="int32"),
        Description(
            "MAXIMUM", (integer_data(3, 4), signed), "MaximumMinimumOptions", outputs=("INT32",), label="int32"
        ),
    ]
    for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        options = f"{name.title().replace('_', '')}Options"
        made.append(Description(name, (float_data(3, 4), float_data(3, 4)), options, outputs=("BOOL",), ranges="same"))
        made.append(
            Description(name, (integer_data(3, 4), integer_data(1, 4)), options, outputs=("BOOL",), label="int32")
        )
    made.append(
        Description(
            "STABLEHLO_SHIFT_LEFT",
            (integer_data(3, 4, low=0), integer_data(3, 4, low=0, high=3)),
            "StablehloShiftLeftOptions",
            outputs=("INT32",),
        )
    )
    return made


def move(
    name: str, inputs: Sequence[Given], options: str | None = None, fields: Any = None, **more: Any
) -> Description:
    """Describe an operator that moves values, whose output has the scale of its input."""
    return Description(name, tuple(inputs), options, fields or {}, ranges="same", **more)


def _shapes() -> list[Description]:
    x, flat = float_data(1, 4, 6, 8), float_data(3, 6)
    slices = {"beginMask": 1, "endMask": 2, "shrinkAxisMask": 0, "ellipsisMask": 0, "newAxisMask": 0}
    return [
        move("RESHAPE", (x, constant_data([2, -1])), "ReshapeOptions", {"newShape": np.asarray([2, -1], np.int32)}),
        move("RESHAPE", (x,), "ReshapeOptions", {"newShape": np.asarray([6, 32], np.int32)}, label="option"),
        move("SQUEEZE", (float_data(1, 4, 1, 8),), "SqueezeOptions", {"squeezeDims": np.asarray([0], np.int32)}),
        move("SQUEEZE", (float_data(1, 4, 1, 8),), "SqueezeOptions", {}, label="all"),
        move("EXPAND_DIMS", (flat, constant_data(1)), "ExpandDimsOptions"),
        move("EXPAND_DIMS", (flat, constant_data(-1)), "ExpandDimsOptions", label="last"),
        move("TRANSPOSE", (x, constant_data([0, 3, 1, 2])), "TransposeOptions"),
        move("CONCATENATION", (x, float_data(1, 4, 6, 2)), "ConcatenationOptions", {"axis": -1}),
        move("CONCATENATION", (x, x), "ConcatenationOptions", {"axis": 1, "fusedActivationFunction": 0}, label="rows"),
        move("PACK", (flat, flat), "PackOptions", {"axis": 1, "valuesCount": 2}),
        move("UNPACK", (float_data(3, 6),), "UnpackOptions", {"axis": 0, "num": 3}, outputs=("FLOAT32",) * 3),
        move("SPLIT", (constant_data(3), x), "SplitOptions", {"numSplits": 2}, outputs=("FLOAT32",) * 2),
        move(
            "SPLIT_V",
            (x, constant_data([1, -1, 2]), constant_data(2)),
            "SplitVOptions",
            {"numSplits": 3},
            outputs=("FLOAT32",) * 3,
        ),
        move("SLICE", (x, constant_data([0, 1, 2, 0]), constant_data([1, 2, -1, 8])), "SliceOptions"),
        move(
            "STRIDED_SLICE",
            (flat, constant_data([1, 1]), constant_data([3, 5]), constant_data([1, 2])),
            "StridedSliceOptions",
            slices,
        ),
        move(
            "STRIDED_SLICE",
            (flat, constant_data([0, -1]), constant_data([3, 0]), constant_data([1, -2])),
            "StridedSliceOptions",
            {**slices, "beginMask": 0, "endMask": 0},
            label="back",
        ),
        move(
            "STRIDED_SLICE",
            (flat, constant_data([-1, 0]), constant_data([0, 6]), constant_data([1, 1])),
            "StridedSliceOptions",
            {**slices, "shrinkAxisMask": 1, "beginMask": 0},
            label="shrink",
        ),
    ]


def _spreads() -> list[Description]:
    x, flat = float_data(1, 4, 6, 8), float_data(3, 6)
    return [
        move("PAD", (x, constant_data([[0, 0], [1, 2], [0, 3], [0, 0]])), "PadOptions"),
        move(
            "PADV2",
            (flat, constant_data([[1, 0], [2, 2]]), Given((1,), "data", -2, 2, values=[1.5], is_constant=True)),
            "PadV2Options",
        ),
        move("MIRROR_PAD", (x, constant_data([[0, 0], [1, 2], [3, 3], [0, 0]])), "MirrorPadOptions", {"mode": 0}),
        move(
            "MIRROR_PAD",
            (x, constant_data([[0, 0], [1, 2], [3, 3], [0, 0]])),
            "MirrorPadOptions",
            {"mode": 1},
            label="symmetric",
        ),
        move("TILE", (flat, constant_data([1, 2])), "TileOptions"),
        move("BROADCAST_TO", (float_data(1, 6), constant_data([3, 6])), "BroadcastToOptions"),
        move("FILL", (constant_data([2, 3]), float_data()), "FillOptions", formats=("float",)),
        move("REVERSE_V2", (flat, constant_data([1])), "ReverseV2Options"),
        move("SPACE_TO_DEPTH", (x,), "SpaceToDepthOptions", {"blockSize": 2}),
        move("DEPTH_TO_SPACE", (x,), "DepthToSpaceOptions", {"blockSize": 2}),
        move("SPACE_TO_BATCH_ND", (x, constant_data([2, 3]), constant_data([[0, 0], [1, 2]])), "SpaceToBatchNDOptions"),
        move(
            "BATCH_TO_SPACE_ND",
            (float_data(6, 4, 6, 2), constant_data([2, 3]), constant_data([[0, 0], [1, 2]])),
            "BatchToSpaceNDOptions",
        ),
        move(
            "REVERSE_SEQUENCE",
            (float_data(3, 5, 2), constant_data([2, 5, 0])),
            "ReverseSequenceOptions",
            {"seqDim": 1, "batchDim": 0},
        ),
        move("MATRIX_DIAG", (flat,), "MatrixDiagOptions"),
        move("MATRIX_SET_DIAG", (float_data(2, 4, 4), float_data(2, 4)), "MatrixSetDiagOptions"),
        move(
            "DYNAMIC_UPDATE_SLICE",
            (float_data(4, 6), float_data(2, 3), constant_data([1, 2])),
            "DynamicUpdateSliceOptions",
        ),
    ]


def _indexing() -> list[Description]:
    rows = integer_data(4, low=0, high=4)
    same: dict[str, Any] = {"ranges": "same"}
    return [
        Description("GATHER", (float_data(5, 6), rows), "GatherOptions", {"axis": 0}, ranges="same"),
        Description(
            "GATHER",
            (float_data(2, 3, 5), integer_data(4, low=0, high=4)),
            "GatherOptions",
            {"axis": -1},
            ranges="same",
            label="last",
        ),
        Description(
            "GATHER",
            (float_data(2, 5, 3), integer_data(2, 4, low=0, high=4)),
            "GatherOptions",
            {"axis": 1, "batchDims": 1},
            ranges="same",
            label="batch",
        ),
        Description(
            "GATHER_ND", (float_data(5, 6, 3), integer_data(2, 4, 2, low=0, high=4)), "GatherNdOptions", ranges="same"
        ),
        Description(
            "SCATTER_ND",
            (constant_data([[1], [3], [1]]), float_data(3, 2), constant_data([5, 2])),
            "ScatterNdOptions",
            **same,
        ),
        Description(
            "ONE_HOT",
            (rows, constant_data(5), constant_data(2.0, "FLOAT32"), constant_data(-1.0, "FLOAT32")),
            "OneHotOptions",
            {"axis": -1},
            **same,
        ),
        Description("SHAPE", (float_data(3, 4),), "ShapeOptions", {"outType": 2}, ("INT32",), formats=("float",)),
        Description("RANK", (float_data(3, 4),), "RankOptions", {}, ("INT32",), formats=("float",)),
        Description("QUANTIZE", (float_data(3, 4),), "QuantizeOptions", formats=("int8", "int16x8"), label="again"),
    ]


def _segments() -> list[Description]:
    same: dict[str, Any] = {"ranges": "same"}
    return [
        Description("SEGMENT_SUM", (float_data(5, 3), constant_data([0, 0, 1, 2, 2])), "SegmentSumOptions", **same),
        Description(
            "UNSORTED_SEGMENT_SUM",
            (float_data(5, 3), integer_data(5, low=0, high=3), constant_data(4)),
            "UnsortedSegmentSumOptions",
            **same,
        ),
        Description(
            "UNSORTED_SEGMENT_MAX",
            (float_data(5, 3), integer_data(5, low=0, high=3), constant_data(4)),
            "UnsortedSegmentMaxOptions",
            **same,
        ),
        Description(
            "UNSORTED_SEGMENT_MIN",
            (float_data(5, 3), integer_data(5, low=0, high=3), constant_data(4)),
            "UnsortedSegmentMinOptions",
            **same,
        ),
        Description(
            "UNSORTED_SEGMENT_PROD",
            (float_data(5, 3), integer_data(5, low=0, high=3), constant_data(4)),
            "UnsortedSegmentProdOptions",
            **same,
        ),
    ]


def descriptions() -> list[Description]:
    """Return all descriptions; their names are unique."""
    made = [*_one(), *_one_of_any_type(), *_two(), *_two_of_any_type(), *products(), *windows()]
    made += [*_shapes(), *_spreads(), *_indexing(), *_segments(), *recurrent()]
    names = [description.name for description in made]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
    return made


def formats_of(description: Description) -> list[str]:
    """Return the number formats in which an operator can be written: weights need one, integers alone have one."""
    if not description.has_floats:
        return ["float"]
    formats = [name for name in FORMATS if name in description.formats]
    return [name for name in formats if description.has_weights or name in PLAIN]
