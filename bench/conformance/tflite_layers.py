"""Describe uses of TFLite operators that multiply or slide windows: dense layers, convolutions, pools."""

from __future__ import annotations

from typing import Any

from bench.conformance.tflite_inputs import (
    IMAGE,
    PLAIN,
    bias_data,
    constant_data,
    flag_data,
    float_data,
    integer_data,
    weight_data,
)
from bench.conformance.tflite_models import Description, Given


def _convolution(padding: int, stride: int, dilation: int = 1, activation: int = 0) -> dict[str, Any]:
    return {
        "padding": padding,
        "strideH": stride,
        "strideW": stride,
        "dilationHFactor": dilation,
        "dilationWFactor": dilation,
        "fusedActivationFunction": activation,
    }


def products() -> list[Description]:
    """Return dense layers, convolutions and products of matrices."""
    return [*_convolutions(), *_transposed_and_volumes(), *_dense_layers(), *_matrix_products()]


def _convolutions() -> list[Description]:
    conv, depthwise = "Conv2DOptions", "DepthwiseConv2DOptions"
    x, w, b = float_data(*IMAGE), weight_data(8, 3, 3, 6), bias_data(8)
    return [
        Description("CONV_2D", (x, w, b), conv, _convolution(0, 1)),
        Description("CONV_2D", (x, w, b), conv, _convolution(0, 2, 1, 3), label="stride-relu6"),
        Description("CONV_2D", (x, w, b), conv, _convolution(1, 1, 2, 1), label="valid-dilated"),
        Description(
            "CONV_2D", (x, weight_data(8, 1, 1, 3), b), conv, _convolution(1, 1), label="grouped", formats=PLAIN
        ),
        Description(
            "DEPTHWISE_CONV_2D",
            (x, weight_data(1, 3, 3, 6, axis=3), bias_data(6)),
            depthwise,
            {**_convolution(0, 1), "depthMultiplier": 1},
        ),
        Description(
            "DEPTHWISE_CONV_2D",
            (x, weight_data(1, 3, 3, 12, axis=3), bias_data(12)),
            depthwise,
            {**_convolution(0, 2, 1, 1), "depthMultiplier": 2},
            label="multiplier",
        ),
        Description(
            "DEPTHWISE_CONV_2D",
            (float_data(1, 8, 8, 1), weight_data(1, 3, 3, 4, axis=3), bias_data(4)),
            depthwise,
            {**_convolution(1, 1), "depthMultiplier": 4},
            label="one-channel",
        ),
    ]


def _transposed_and_volumes() -> list[Description]:
    transposed, x, shape3 = "TransposeConvOptions", float_data(*IMAGE), (1, 5, 6, 7, 4)
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
    return [
        Description(
            "TRANSPOSE_CONV",
            (constant_data([1, 16, 20, 4]), weight_data(4, 3, 3, 6), x, bias_data(4)),
            transposed,
            {"padding": 0, "strideH": 2, "strideW": 2, "fusedActivationFunction": 0},
            shapes=((1, 16, 20, 4),),
        ),
        Description(
            "TRANSPOSE_CONV",
            (constant_data([1, 17, 21, 4]), weight_data(4, 3, 3, 6), x, bias_data(4)),
            transposed,
            {"padding": 1, "strideH": 2, "strideW": 2, "fusedActivationFunction": 1},
            label="valid-relu",
            shapes=((1, 17, 21, 4),),
        ),
        Description(
            "TRANSPOSE_CONV",
            (constant_data([1, 16, 20, 4]), weight_data(4, 2, 2, 6), x),
            transposed,
            {"padding": 0, "strideH": 2, "strideW": 2, "fusedActivationFunction": 0},
            label="no-bias",
            shapes=((1, 16, 20, 4),),
        ),
        Description(
            "CONV_3D",
            (float_data(*shape3), Given((3, 3, 3, 4, 5), "weight", -1, 1, 4), bias_data(5)),
            "Conv3DOptions",
            strides3,
        ),
        Description(
            "CONV_3D_TRANSPOSE",
            (constant_data([1, 5, 12, 7, 3]), Given((3, 3, 3, 3, 4), "weight", -1, 1, 3), float_data(*shape3)),
            "Conv3DOptions",
            strides3,
            shapes=((1, 5, 12, 7, 3),),
        ),
    ]


def _dense_layers() -> list[Description]:
    dense = "FullyConnectedOptions"
    return [
        Description(
            "FULLY_CONNECTED",
            (float_data(3, 16), weight_data(8, 16), bias_data(8)),
            dense,
            {"asymmetricQuantizeInputs": True},
        ),
        Description(
            "FULLY_CONNECTED",
            (float_data(3, 16), weight_data(8, 16, axis=-1), bias_data(8)),
            dense,
            {"fusedActivationFunction": 1, "asymmetricQuantizeInputs": True},
            label="relu",
        ),
        Description(
            "FULLY_CONNECTED",
            (float_data(2, 3, 16), weight_data(8, 16, axis=-1)),
            dense,
            {"keepNumDims": True, "asymmetricQuantizeInputs": True},
            label="keeps-axes",
        ),
    ]


def _matrix_products() -> list[Description]:
    return [
        Description(
            "BATCH_MATMUL",
            (float_data(2, 3, 5), float_data(2, 5, 4)),
            "BatchMatMulOptions",
            {"asymmetricQuantizeInputs": True},
            formats=PLAIN,
        ),
        Description(
            "BATCH_MATMUL",
            (float_data(2, 3, 5), float_data(2, 4, 5)),
            "BatchMatMulOptions",
            {"adjY": True},
            label="adjoint",
            formats=PLAIN,
        ),
        Description(
            "BATCH_MATMUL",
            (float_data(2, 5, 3), float_data(1, 5, 4)),
            "BatchMatMulOptions",
            {"adjX": True},
            label="broadcast",
            formats=PLAIN,
        ),
        Description(
            "BATCH_MATMUL",
            (float_data(2, 3, 5), weight_data(2, 5, 4, axis=-1)),
            "BatchMatMulOptions",
            {"asymmetricQuantizeInputs": True},
            label="weights",
        ),
        Description(
            "EMBEDDING_LOOKUP",
            (integer_data(5, low=0, high=8), weight_data(9, 6)),
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


def windows() -> list[Description]:
    x, options = (float_data(*IMAGE),), "Pool2DOptions"
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
            inputs = (float_data(*IMAGE), constant_data([16, 20]))
            made.append(Description(name, inputs, table, fields, ranges="same", label=label))
        made.append(
            Description(name, (float_data(*IMAGE), constant_data([5, 13])), table, {}, ranges="same", label="any")
        )
    for name in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        ranges = "same" if name in ("REDUCE_MAX", "REDUCE_MIN") else "own"
        for label, axes, keeps in (("", [1, 2], True), ("last", [-1], False)):
            low = 0.5 if name == "REDUCE_PROD" else -1.5
            inputs = (float_data(1, 3, 2, 6, low=low, high=1.5), constant_data(axes))
            made.append(Description(name, inputs, "ReducerOptions", {"keepDims": keeps}, ranges=ranges, label=label))
    made.append(
        Description("SUM", (integer_data(3, 4), constant_data([1])), "ReducerOptions", {}, ("INT32",), label="int32")
    )
    made.append(
        Description("MEAN", (integer_data(3, 4), constant_data([1])), "ReducerOptions", {}, ("INT32",), label="int32")
    )
    for name in ("REDUCE_ANY", "REDUCE_ALL"):
        made.append(
            Description(name, (flag_data(6, 2), constant_data([1])), "ReducerOptions", {"keepDims": True}, ("BOOL",))
        )
    for name, table in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):
        made.append(Description(name, (float_data(3, 5, 7), constant_data(1)), table, {"outputType": 2}, ("INT32",)))
        made.append(
            Description(
                name, (float_data(3, 5, 7), constant_data(-1)), table, {"outputType": 4}, ("INT64",), label="int64"
            )
        )
    made += [
        Description("CUMSUM", (float_data(3, 5), constant_data(1)), "CumsumOptions", {}),
        Description(
            "CUMSUM",
            (float_data(3, 5), constant_data(0)),
            "CumsumOptions",
            {"exclusive": True, "reverse": True},
            label="back",
        ),
        Description(
            "TOPK_V2", (float_data(3, 9), constant_data(4)), "TopKV2Options", {}, ("FLOAT32", "INT32"), ranges="same"
        ),
    ]
    return made
