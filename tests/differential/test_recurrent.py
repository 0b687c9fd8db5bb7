"""Compare recurrent layers with ONNX Runtime: imported, interpreted in numpy, and compiled."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.differential.kernels import HOST
from tests.recurrent_models import Array, RecurrentCase
from tvmflow.backends.gpu import OpenClBackend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.config.stage_params import DEFAULT_MIXED, Int8Params
from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec, one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.ir.relax.recurrent import RECURRENT
from tvmflow.ir.relax.serialization import load_module, save_module
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.sources.data.datasets import Samples
from tvmflow.sources.networks.keras_zoo import keras_on_torch
from tvmflow.support.errors import StageError
from tvmflow.support.progress import silent

BOUND = 1e-5  # sums in another order, over a few times; activations of both are approximations
_DIRECTIONS = ("forward", "reverse", "bidirectional")


def _cases() -> list[RecurrentCase]:
    """Return every operator in every direction, layout and kind of states and lengths."""
    found = []
    for operator, direction, layout, lengths in itertools.product(
        ("LSTM", "GRU", "RNN"), _DIRECTIONS, (0, 1), ("none", "full", "constant", "real")
    ):
        states = ("h", "c") if operator == "LSTM" else ("h",)
        for given in [states[:count] for count in range(len(states) + 1)]:
            for after in (0, 1) if operator == "GRU" else (0,):
                attributes = {"linear_before_reset": 1} if after else {}
                peephole = operator == "LSTM" and lengths == "real"
                samples = 1 if lengths == "none" and not given else 3
                case = RecurrentCase(operator, samples=samples, direction=direction, layout=layout, states=given)
                fields = {**vars(case), "lengths": lengths, "has_peephole": peephole, "attributes": attributes}
                found.append(RecurrentCase(**fields))
    return found


_VARIANTS = (
    RecurrentCase("LSTM", hidden=1, has_bias=False),
    RecurrentCase("LSTM", hidden=70, samples=3, attributes={"clip": 0.6}, has_peephole=True, states=("h", "c")),
    RecurrentCase("LSTM", attributes={"input_forget": 1, "clip": 0.4}, has_peephole=True),
    RecurrentCase("LSTM", attributes={"activations": ["HardSigmoid", "Softsign", "Elu"]}),
    RecurrentCase(
        "LSTM",
        direction="bidirectional",
        attributes={"activations": ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Relu", "Softplus"]},
        states=("h", "c"),
    ),
    RecurrentCase("GRU", direction="bidirectional", has_bias=False, attributes={"linear_before_reset": 1}),
    RecurrentCase("GRU", hidden=40, samples=5, attributes={"activations": ["HardSigmoid", "ThresholdedRelu"]}),
    RecurrentCase("RNN", attributes={"activations": ["Affine"], "activation_alpha": [0.3], "activation_beta": [0.2]}),
    RecurrentCase(
        "RNN", attributes={"activations": ["ScaledTanh"], "activation_alpha": [0.3], "activation_beta": [2.0]}
    ),
    RecurrentCase("RNN", attributes={"activations": ["LeakyRelu"]}, samples=7, hidden=5),
    RecurrentCase("LSTM", hidden=48, samples=4, direction="bidirectional", lengths="real", has_peephole=True),
    RecurrentCase("GRU", hidden=32, direction="reverse", attributes={"linear_before_reset": 1}, states=("h",)),
    RecurrentCase("GRU", hidden=16, samples=3, direction="bidirectional"),
    RecurrentCase("LSTM", hidden=176, times=3, samples=1, states=("h", "c")),  # shares of its units over threads
)


def _difference(found: tuple[Array, ...], expected: list[Array]) -> float:
    assert [value.shape for value in found] == [value.shape for value in expected]
    return max(float(np.abs(one - other).max()) for one, other in zip(found, expected, strict=True))


@pytest.mark.few(6)
@pytest.mark.parametrize("case", _cases(), ids=str)
def test_every_form_is_imported(tmp_path: Path, case: RecurrentCase) -> None:
    module = canonicalize(case.load(tmp_path).to_relax()) if not case.layout else _imported_without_a_session(case)
    found = run_all(read_graph(module), tuple(case.inputs().values()))
    assert _difference(found, case.expected()) < BOUND


def _imported_without_a_session(case: RecurrentCase) -> object:
    """Import a model that ONNX Runtime refuses."""
    specs = [TensorSpec(name, value.shape, str(value.dtype)) for name, value in case.inputs().items()]
    return canonicalize(import_model(case.model(), specs))


@pytest.mark.parametrize("case", _VARIANTS, ids=str)
def test_attributes_are_those_of_onnx_runtime(tmp_path: Path, case: RecurrentCase) -> None:
    module = canonicalize(case.load(tmp_path).to_relax())
    found = run_all(read_graph(module), tuple(case.inputs().values()))
    assert _difference(found, case.expected()) < BOUND


@pytest.mark.few(4)
@pytest.mark.parametrize("case", [*_VARIANTS, *_cases()[::11]], ids=str)
def test_kernels_compute_the_same(tmp_path: Path, case: RecurrentCase) -> None:
    if case.layout:
        case = RecurrentCase(**{**vars(case), "layout": 0})
    module = canonicalize(case.load(tmp_path).to_relax())
    save_module(module, tmp_path)
    found = LocalRunner.of_plain(load_module(tmp_path), HOST).run(*case.inputs().values())
    assert _difference(found, case.expected()) < BOUND


def test_a_gpu_is_refused(tmp_path: Path) -> None:
    module = canonicalize(RecurrentCase("LSTM").load(tmp_path).to_relax())
    target = replace(HOST.target, kind="opencl", options={"software": False, "kind": "generic"})
    with pytest.raises(StageError, match="1 recurrent layers"):
        OpenClBackend(target).pack(module, None)


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_the_product_with_inputs_is_quantized(tmp_path: Path, precision: str) -> None:
    case = RecurrentCase("LSTM", hidden=32, features=32, samples=4)
    module, x = canonicalize(case.load(tmp_path).to_relax()), case.inputs()["X"]
    calibration = np.random.default_rng(2).standard_normal((20, *x.shape[1:]), dtype=np.float32)
    rules = Int8Params(max_drop=None) if precision == "int8" else DEFAULT_MIXED
    converted = to_precision(module, precision, PrecisionRequest(rules, Samples((calibration,)), silent))[0]
    low = [step.op for step in read_graph(converted).steps if step.dtype in ("int32", "bfloat16")]
    assert any("matmul" in op for op in low) or precision == "bfloat16"
    assert _difference(LocalRunner.of_plain(converted, HOST).run(x), case.expected()) < 0.1


class _WithStates(torch.nn.Module):
    """A recurrent layer of PyTorch that starts from states computed of its input."""

    def __init__(self, layer: torch.nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        samples = x.shape[0 if self.layer.batch_first else 1]
        count = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
        state = torch.tanh(x.sum()) * torch.ones(count, samples, self.layer.hidden_size)
        outputs, last = self.layer(x, (state, 2 * state) if isinstance(self.layer, torch.nn.LSTM) else state)
        return (outputs, *last) if isinstance(last, tuple) else (outputs, last)


class _Plain(torch.nn.Module):
    def __init__(self, layer: torch.nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)[0]


_LAYERS: tuple[Callable[[], torch.nn.Module], ...] = (
    lambda: _Plain(torch.nn.LSTM(6, 20, 2, batch_first=True, bidirectional=True)),
    lambda: _WithStates(torch.nn.LSTM(6, 9, 2, bias=False)),
    lambda: _WithStates(torch.nn.GRU(6, 20, 2, bidirectional=True)),
    lambda: _Plain(torch.nn.GRU(6, 9, batch_first=True)),
    lambda: _Plain(torch.nn.RNN(6, 9, 2, nonlinearity="relu")),
    lambda: _WithStates(torch.nn.RNN(6, 9, batch_first=True)),
    lambda: _Plain(torch.nn.LSTM(6, 8, proj_size=4)),
)


@pytest.mark.parametrize("make", _LAYERS, ids=range(len(_LAYERS)))
def test_layers_of_pytorch(make: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model = ExportedModel(make().eval(), one_input("x", (3, 4, 6)))
    x = np.random.default_rng(0).standard_normal((3, 4, 6), dtype=np.float32)
    graph = read_graph(canonicalize(model.to_relax()))
    assert _difference(run_all(graph, (x,)), list(model.run(x))) < BOUND
    assert any(step.op == RECURRENT for step in graph.steps) or make is _LAYERS[-1]  # a projection is unrolled


def test_layers_of_keras(tmp_path: Path) -> None:
    keras, x = keras_on_torch(), np.random.default_rng(0).standard_normal((1, 9, 6), dtype=np.float32)
    layers = [
        keras.layers.LSTM(8, return_sequences=True, go_backwards=True),
        keras.layers.Bidirectional(keras.layers.GRU(4)),
    ]
    model = keras.Sequential([keras.Input((9, 6)), *layers])
    for weight in model.weights:
        weight.assign(np.random.default_rng(1).uniform(-0.5, 0.5, weight.shape))
    model.save(tmp_path / "model.keras")
    source = load_source(tmp_path, SourceDescription("keras", None, "model.keras", one_input("x", x.shape)))
    loops = importlib.import_module("keras.src.backend.torch.rnn")
    whole = {name: getattr(loops, name) for name in ("_fallback_lstm", "_fallback_gru")}
    graph = read_graph(canonicalize(source.to_relax()))
    try:
        for name, function in whole.items():
            setattr(loops, name, function.__wrapped__)
        expected = [model(x).detach().numpy()]
    finally:
        for name, function in whole.items():
            setattr(loops, name, function)
    assert sum(step.op == RECURRENT for step in graph.steps) == 3
    assert _difference(run_all(graph, (x,)), expected) < BOUND
