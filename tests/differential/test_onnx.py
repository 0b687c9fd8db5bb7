"""The ONNX frontend against ONNX Runtime, opset by opset, and models that come quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.differential.test_frontends import BOUND, Array, _error, _load, _x
from tvmflow.errors import ModelFileError
from tvmflow.evaluation.first_difference import first_differing_layer
from tvmflow.frontends.table import FRONTENDS
from tvmflow.ir.definition import run_graph
from tvmflow.ir.graph import read_graph
from tvmflow.passes.canonicalize import canonicalize
from tvmflow.progress import silent
from tvmflow.quantization.options import Int8Options
from tvmflow.quantization.quantizer import quantize_int8
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, bring_weights


def _onnx_network(opset: int) -> Any:
    """Convolution, batch norm, clip, pools, a residual sum, flatten, Gemm: in each opset's own way."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(generator.uniform(0.2, 1.0, shape).astype(np.float32), name)

    weights = [
        tensor("w", 4, 3, 3, 3),
        tensor("s", 4),
        tensor("b", 4),
        tensor("m", 4),
        tensor("v", 4),
        tensor("g", 64, 5),
        tensor("gb", 5),
    ]
    clip = {"min": 0.5, "max": 3.0} if opset < 11 else {}
    if opset >= 11:
        weights += [numpy_helper.from_array(np.float32(value), name) for name, value in (("lo", 0.5), ("hi", 3.0))]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Clip", ["n"] if opset < 11 else ["n", "lo", "hi"], ["r"], **clip),
        helper.make_node("Add", ["r", "n"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "g", "gb"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=min(8, onnx.IR_VERSION))


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 15, 18, 21, 23])
def test_onnx_opsets(tmp_path: Path, opset: int) -> None:
    import onnx

    onnx.save(_onnx_network(opset), tmp_path / "model.onnx")
    source = _load(tmp_path, "onnx", "model.onnx", (2, 3, 8, 8))
    assert _error(source, _x((2, 3, 8, 8))) < BOUND


def test_onnx_opset_8_is_refused_and_external_data_is_brought(tmp_path: Path) -> None:
    import onnx

    onnx.save(_onnx_network(8), tmp_path / "model.onnx")
    with pytest.raises(ModelFileError, match="opset 8"):
        _load(tmp_path, "onnx", "model.onnx", (2, 3, 8, 8))
    model = _onnx_network(17)
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "out").mkdir()
    request = WeightsRequest(
        "onnx", None, {"file": "big.onnx"}, tmp_path, DownloadLimits(1, 1, 1.0), tmp_path, FRONTENDS["onnx"].files
    )
    path = bring_weights(request, tmp_path / "out", None, silent)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["model.onnx", "weights.bin"]
    source = _load(tmp_path / "out", "onnx", path.name, (1, 3, 8, 8))
    x = _x((1, 3, 8, 8))
    assert _error(source, x) < BOUND and first_differing_layer(source, x, 1e-5) is None


@pytest.mark.parametrize("activation", ["QUInt8", "QInt8"])
def test_a_quantized_onnx_model_keeps_its_integers(tmp_path: Path, activation: str) -> None:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    samples = _x((8, 3, 8, 8))

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples = iter({"x": sample[None]} for sample in samples)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.samples, None)

    onnx.save(_onnx_network(17), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx", tmp_path / "model.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType[activation], weight_type=QuantType.QInt8,
    )  # fmt: skip
    source = _load(tmp_path, "onnx", "model.onnx", (1, 3, 8, 8))
    module = canonicalize(source.to_relax())
    reference = np.concatenate([source.run(sample[None])[0] for sample in samples])
    graph = read_graph(module)
    emulated = np.concatenate([run_graph(graph, sample[None]) for sample in samples])
    assert np.abs(emulated - reference).max() <= 0.01 * np.abs(reference).max()
    quantized, report = quantize_int8(module, samples, None, Int8Options())
    dtypes = {layer.name: layer.dtype for layer in report.layers}
    assert dtypes["conv0"] == {"QUInt8": "uint8", "QInt8": "int8"}[activation] and report.corrected_layers == 0
    graph = read_graph(quantized)
    outputs = np.concatenate([run_graph(graph, sample[None]) for sample in samples])
    assert np.abs(outputs - reference).max() <= 0.02 * np.abs(reference).max()
    assert json.dumps(report.to_json())
