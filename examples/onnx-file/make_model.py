"""Write shapes.onnx: two convolutions and a classifier with random weights, in place of a model of your own."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def main() -> None:
    """Write the file into the current folder."""
    random = np.random.default_rng(0)
    sizes = {"w0": (16, 3, 3, 3), "w1": (32, 16, 3, 3), "w2": (32, 5)}
    weights = {
        name: random.standard_normal(size, dtype=np.float32) * np.float32(np.sqrt(2 / np.prod(size[1:])))
        for name, size in sizes.items()
    }
    nodes = [
        helper.make_node("Conv", ["input", "w0"], ["c0"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("GlobalAveragePool", ["r1"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w2"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "shapes.onnx")


if __name__ == "__main__":
    main()
