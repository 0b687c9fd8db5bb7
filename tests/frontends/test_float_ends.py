"""Models of float16, bfloat16 and float64: libraries take and return float32, whatever the file has."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import FixedSpec, SourceDescription, TensorSpec
from tvmflow.passes.pipeline import canonicalize

# Of the largest value: a rounding of each type, of both ends and a few steps between.
BOUNDS = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-6}
ONNX_KINDS = {"bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}
X = np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype(np.float32)


def _computed(source: Any, *inputs: Any) -> tuple[Any, ...]:
    return LocalRunner.of_plain(canonicalize(source.to_relax()), host_backend()).run(*inputs)


def _check(source: Any, wanted: Any, dtype: str, *inputs: Any) -> None:
    """Check the outputs of the framework and of the compiled network against those of float32."""
    for found in (source.run(*inputs), _computed(source, *inputs)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == np.float32
            assert np.abs(one - other).max() <= BOUNDS[dtype] * np.abs(other).max()


def _onnx_model(kind: int) -> onnx.ModelProto:
    """Return a model that reads its input in a branch, too, and returns it as its second output."""
    weight = np.random.default_rng(1).standard_normal((9, 4))
    values = [_of("x", kind, X.shape), _of("s", kind, [])]
    outputs = [
        helper.make_tensor_value_info("y", kind, [1, 4, 7, 7]),
        helper.make_tensor_value_info("x", kind, X.shape),
    ]
    branches = [
        helper.make_graph([helper.make_node(name, ["x"], ["in_branch"])], name, [], [_of("in_branch", kind)])
        for name in ("Abs", "Neg")
    ]
    nodes = [
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["z"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Mul", ["z", "s"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "w"], ["y"]),
    ]
    stored = helper.make_tensor("w", kind, weight.shape, weight.reshape(-1))
    graph = helper.make_graph(nodes, "g", values, outputs, [stored])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _of(name: str, kind: int, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float64"))  # bfloat16: ONNX Runtime has no such product
def test_onnx_files_take_and_return_float32(dtype: str, tmp_path: Path) -> None:
    wanted = []
    for name, kind in (("wide", TensorProto.FLOAT), (dtype, ONNX_KINDS[dtype])):
        (tmp_path / name).mkdir()
        onnx.save(_onnx_model(kind), tmp_path / name / "m.onnx")
        fixed = (FixedSpec("s", (), "float32", (0.5,)),)
        described = SourceDescription("onnx", None, "m.onnx", (TensorSpec("x", X.shape),), fixed=fixed)
        source = load_source(tmp_path / name, described)
        wanted = wanted or [*source.run(X)]
    _check(source, wanted, dtype, X)
    assert [name for name, _ in source.layers(X)][-1] == "y"
    source.to_onnx(tmp_path / "peer.onnx")  # which baselines run
    peer = SourceDescription("onnx", None, "peer.onnx", (TensorSpec("x", X.shape),))
    assert all(np.array_equal(a, b) for a, b in zip(load_source(tmp_path, peer).run(X), source.run(X), strict=True))


class Branched(torch.nn.Module):
    """A network with products, norms and a cast of its own; a dictionary of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.GroupNorm(2, 8)
        )
        self.up, self.last = torch.nn.ConvTranspose2d(8, 4, 2, stride=2), torch.nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> Any:
        z = self.up(self.first(x))
        return {"y": self.last(z.float().mean((2, 3)).to(x.dtype)), "z": torch.softmax(z, 1)}


@pytest.fixture(scope="module")
def branched() -> tuple[torch.nn.Module, list[Any]]:
    torch.manual_seed(0)
    network = Branched().eval()
    with torch.no_grad():
        return network, [value.numpy() for value in network(torch.from_numpy(X)).values()]


@pytest.mark.parametrize("dtype", ("bfloat16", "float64"))
def test_torch_programs_take_and_return_float32(dtype: str, branched: Any, tmp_path: Path) -> None:
    network, wanted = branched
    kind = getattr(torch, dtype)
    program = torch.export.export(copy.deepcopy(network).to(kind), (torch.zeros(X.shape, dtype=kind),))
    torch.export.save(program, tmp_path / "m.pt2")
    source = load_source(tmp_path, SourceDescription("torch", None, "m.pt2", (TensorSpec("x", X.shape),)))
    _check(source, wanted, dtype, X)


def test_torchscript_of_float16_takes_and_returns_float32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    wanted = [network(torch.from_numpy(X)).detach().numpy()]
    torch.jit.trace(network.half(), torch.zeros(X.shape).half()).save(tmp_path / "m.torchscript")
    source = load_source(tmp_path, SourceDescription("torch", None, "m.torchscript", (TensorSpec("x", X.shape),)))
    _check(source, wanted, "float16", X)


def test_keras_models_of_mixed_precision_return_float32(tmp_path: Path) -> None:
    from tvmflow.sources.networks.keras_zoo import keras_on_torch

    keras = keras_on_torch()
    x = np.random.default_rng(0).standard_normal((1, 6)).astype(np.float32)
    wanted = []
    for policy in ("float32", "mixed_float16"):
        keras.utils.set_random_seed(0)
        ends = keras.Input((6,), dtype="float32")
        keras.Model(ends, keras.layers.Dense(4, "tanh", dtype=policy)(ends)).save(tmp_path / f"{policy}.keras")
        source = load_source(tmp_path, SourceDescription("keras", None, f"{policy}.keras", (TensorSpec("x", (1, 6)),)))
        wanted = wanted or [*source.run(x)]
    _check(source, wanted, "float16", x)


def test_a_module_of_bfloat16_keeps_its_dtype_where_that_is_described() -> None:
    import ml_dtypes

    source = ExportedModel(torch.nn.Linear(6, 3).to(torch.bfloat16), (TensorSpec("x", (2, 6), "bfloat16"),))
    x = np.ones((2, 6), ml_dtypes.bfloat16)
    (found,), (wanted,) = _computed(source, x), source.run(x)
    assert found.dtype == wanted.dtype == ml_dtypes.bfloat16
    assert np.abs(found.astype(np.float32) - wanted.astype(np.float32)).max() < 0.02
