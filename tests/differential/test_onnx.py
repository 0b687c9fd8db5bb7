"""Compare the ONNX frontend with ONNX Runtime, opset by opset, including quantized models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.differential.test_frontends import BOUND, Array, _error, _load, _x
from tvmflow.config.stage_params import Int8Params
from tvmflow.evaluation.first_difference import first_differing_layer
from tvmflow.frontends.registry import FRONTENDS, load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all, run_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights
from tvmflow.support.errors import ModelFileError
from tvmflow.support.progress import silent


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


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 13, 15, 18, 21, 23])
def test_onnx_opsets(tmp_path: Path, opset: int) -> None:
    import onnx

    onnx.save(_onnx_network(opset), tmp_path / "model.onnx")
    source = _load(tmp_path, "onnx", "model.onnx", (2, 3, 8, 8))
    assert _error(source, _x((2, 3, 8, 8))) < BOUND


class _Tokens(torch.nn.Module):
    """An embedding and attention with a mask, whose heads are made of sizes that are open until the model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 48)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        kept = mask.bool()[:, None, None, :].expand(batch, 1, length, length)
        q, k, v = (z.view(batch, length, 2, 8).transpose(1, 2) for z in self.qkv(self.table(ids)).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=kept)
        return mixed.transpose(1, 2).reshape(batch, length, 16) + torch.arange(length)[None, :, None]


@pytest.mark.parametrize("shape", [(1, 5), (3, 9)])
def test_open_sizes_are_bound_to_those_of_the_inputs(tmp_path: Path, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ids, mask = np.arange(np.prod(shape)).reshape(shape) % 20, np.ones(shape, np.int64)
    mask[:, -2:] = 0
    sizes = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(
        _Tokens().eval(), (torch.ones((2, 7), dtype=torch.int64),) * 2, dynamic_shapes=(sizes,) * 2
    )
    torch.onnx.export(
        program, (), tmp_path / "model.onnx", input_names=["ids", "mask"], external_data=False, verbose=False
    )
    specs = tuple(TensorSpec(name, shape, "int64") for name in ("ids", "mask"))
    source = load_source(tmp_path, SourceDescription("onnx", None, "model.onnx", specs))
    expected, (found,) = source.run(ids, mask)[0], run_all(read_graph(canonicalize(source.to_relax())), (ids, mask))
    assert found.shape == expected.shape and np.abs(found - expected).max() < BOUND * np.abs(expected).max()


@pytest.mark.parametrize(("border", "pads"), [((1, 2, 0, 3), 1), ((0, 0, 0, 0), 0)])
def test_a_border_is_an_operator_and_none_is_nothing(tmp_path: Path, border: tuple[int, ...], pads: int) -> None:
    import onnx
    from onnx import TensorProto, helper

    left, right, top, bottom = border
    widths = helper.make_tensor("pads", TensorProto.INT64, [8], [0, 0, top, left, 0, 0, bottom, right])
    node = helper.make_node("Pad", ["x", "pads", "value"], ["y"])
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 2, 4, 5]), ("y", [1, 2, 4 + top + bottom, 5 + left + right]))
    )
    graph = helper.make_graph(
        [node], "g", [given], [made], [widths, helper.make_tensor("value", TensorProto.FLOAT, [], [0.5])]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "model.onnx"
    )
    source = _load(tmp_path, "onnx", "model.onnx", (1, 2, 4, 5))
    assert _error(source, _x((1, 2, 4, 5))) < BOUND
    assert [step.op for step in read_graph(canonicalize(source.to_relax())).steps] == ["relax.nn.pad"] * pads


def test_onnx_opset_6_is_refused_and_external_data_is_brought(tmp_path: Path) -> None:
    import onnx

    onnx.save(_onnx_network(6), tmp_path / "model.onnx")
    with pytest.raises(ModelFileError, match="opset 6"):
        _load(tmp_path, "onnx", "model.onnx", (2, 3, 8, 8))
    model = _onnx_network(17)
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "out").mkdir()
    request = WeightsRequest(
        "onnx", None, {"file": "big.onnx"}, tmp_path, DownloadLimits(1, 1, 1.0), tmp_path, FRONTENDS["onnx"].files
    )
    path = fetch_weights(request, tmp_path / "out", None, silent)
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
        tmp_path / "float.onnx",
        tmp_path / "model.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType[activation],
        weight_type=QuantType.QInt8,
    )
    source = _load(tmp_path, "onnx", "model.onnx", (1, 3, 8, 8))
    module = canonicalize(source.to_relax())
    reference = np.concatenate([source.run(sample[None])[0] for sample in samples])
    graph = read_graph(module)
    emulated = np.concatenate([run_graph(graph, sample[None]) for sample in samples])
    assert np.abs(emulated - reference).max() <= 0.01 * np.abs(reference).max()
    quantized, report = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    dtypes = {layer.name: layer.dtype for layer in report.layers}
    assert dtypes["conv0"] == "uint8" and report.corrected_layers == 0  # as multiplied here, whatever the file has
    graph = read_graph(quantized)
    outputs = np.concatenate([run_graph(graph, sample[None]) for sample in samples])
    assert np.abs(outputs - reference).max() <= 0.02 * np.abs(reference).max()
    assert json.dumps(report.to_json())


def _qdq_layers(activation: str, weights: str, seed: int) -> Any:
    """A convolution with padding and a dense layer, quantized as others do: zero points that are not 0, weights of one
    scale or of 7 bits.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(seed)
    kind = np.dtype(activation)
    zeros = {"uint8": (131, 7, 120), "int8": (3, -121, -8)}[activation]
    constants, nodes = [], []

    def constant(name: str, value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def pair(name: str, scale: float, zero: int) -> str:
        parameters = [constant(f"{name}_s", np.float32(scale)), constant(f"{name}_z", kind.type(zero))]
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_d"]))
        return f"{name}_d"

    def weight(name: str, shape: tuple[int, ...], channel_axis: int, data_scale: float) -> list[str]:
        channels = shape[channel_axis]
        largest = {"one scale": 120, "7 bits": 63}.get(weights, 127)
        q = draw.integers(-largest, largest + 1, shape).astype(np.int8)
        scales = (
            np.float32(0.01) if weights != "per channel" else draw.uniform(0.005, 0.02, channels).astype(np.float32)
        )
        axis = {"axis": channel_axis} if weights == "per channel" else {}
        zero = np.zeros(np.shape(scales), np.int8)
        names = [constant(f"{name}_i", q), constant(f"{name}_is", scales), constant(f"{name}_iz", zero)]
        nodes.append(helper.make_node("DequantizeLinear", names, [name], **axis))
        bias_scale = np.broadcast_to(np.float32(data_scale) * scales, (channels,)).copy()
        bias = draw.integers(-3000, 3000, channels).astype(np.int32)
        names = [
            constant(f"{name}_b", bias),
            constant(f"{name}_bs", bias_scale),
            constant(f"{name}_bz", np.zeros(channels, np.int32)),
        ]
        nodes.append(helper.make_node("DequantizeLinear", names, [f"{name}_bias"], axis=0))
        return [name, f"{name}_bias"]

    nodes.append(
        helper.make_node(
            "Conv", [pair("x", 0.02, zeros[0]), *weight("w", (6, 3, 3, 3), 0, 0.02)], ["c"], pads=[1, 1, 1, 1]
        )
    )
    nodes.append(helper.make_node("Relu", ["c"], ["r"]))
    nodes.append(helper.make_node("Flatten", [pair("r", 0.05, zeros[1])], ["f"]))
    nodes.append(helper.make_node("Gemm", ["f", *weight("g", (384, 5), 1, 0.05)], ["y0"]))
    output = pair("y0", 0.2, zeros[2])
    nodes[-1].output[0] = "y"
    assert output == "y0_d"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=min(8, onnx.IR_VERSION))


@pytest.mark.parametrize("activation", ["uint8", "int8"])
@pytest.mark.parametrize("weights", ["per channel", "one scale", "7 bits"])
def test_integers_are_those_of_onnx_runtime(tmp_path: Path, activation: str, weights: str) -> None:
    """Also where the processor multiplies the other dtype than the file has: the same numbers, bit for bit."""
    import onnx
    import onnxruntime

    model = _qdq_layers(activation, weights, 0)
    onnx.save(model, tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )  # one operator of the file after another
    peer = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    samples = _x((40, 3, 8, 8))
    expected = np.concatenate([peer.run(None, {"x": sample[None]})[0] for sample in samples])
    module = canonicalize(_load(tmp_path, "onnx", "model.onnx", (1, 3, 8, 8)).to_relax())
    found = {}
    for wanted in ("uint8", "int8"):
        quantized, report = quantize_int8(module, samples, None, Int8Params(activations=wanted, max_drop=None))
        assert {layer.dtype for layer in report.layers} == {wanted}
        graph = read_graph(quantized)
        found[wanted] = np.concatenate([run_graph(graph, sample[None]) for sample in samples])
    assert found["int8"].tobytes() == found["uint8"].tobytes()
    steps = np.rint((found["int8"] - expected) / 0.2)
    assert np.abs(found["int8"] - expected - 0.2 * steps).max() < 1e-4, "both are whole steps of the output"
    assert np.ptp(expected) > 10 and np.abs(steps).max() <= 1 and np.mean(steps == 0) > 0.97
