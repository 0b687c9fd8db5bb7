"""Test malicious and damaged model files: one clear error each, and no code is run."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tvmflow.frontends.pytorch.exported_program import unsupported
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, one_input, run_in_batches
from tvmflow.support.errors import ModelFileError, TvmflowError, UnsupportedOperatorError

pytestmark = pytest.mark.heavy


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch hacked",)


def _describe(
    framework: str, file: str, network: str | None = None, shape: tuple[int, ...] = (1, 1, 8, 8)
) -> SourceDescription:
    return SourceDescription(framework, network, file, one_input("input", shape))


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", b"PK\x03\x04", b"\xff" * 100, pickle.dumps(Evil()), pickle.dumps({"a": Evil()})]
)
def test_hostile_torch_files(tmp_path: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFileError):
        load_source(tmp_path, _describe("torch", name, "digits_cnn"))
    assert not (tmp_path / "hacked").exists()


def test_a_pickled_module_is_refused(tmp_path: Path) -> None:
    import torch

    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(ModelFileError, match="not only tensors"):
        load_source(tmp_path, _describe("torch", "model.pt", "digits_cnn"))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match="do not match network"):
        load_source(tmp_path, _describe("torch", "model.safetensors", "digits_cnn"))


def test_a_keras_lambda_is_refused(tmp_path: Path) -> None:
    from tvmflow.sources.networks.keras_zoo import keras_on_torch

    keras = keras_on_torch()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x * 2)])
    model.save(tmp_path / "model.keras")
    with pytest.raises(ModelFileError, match=r"Lambda|cannot be loaded"):
        load_source(tmp_path, _describe("keras", "model.keras", shape=(1, 2)))


def test_a_keras_zip_bomb_and_a_torn_file(tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(ModelFileError):
        load_source(tmp_path, _describe("keras", "model.keras"))
    with zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        for part in range(3):
            archive.writestr(f"part{part}", b"0")
        for entry in archive.infolist():
            entry.file_size = (4 << 30) - 2  # what a real one would announce, without writing it
    with pytest.raises(ModelFileError, match="unpacks to"):
        load_source(tmp_path, _describe("keras", "bomb.keras"))


def _onnx(tmp_path: Path, operator: str = "Relu", domain: str = "") -> Path:
    import onnx
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], domain=domain)], "g", [x], [y])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8
    )
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_an_onnx_model_runs_and_imports(tmp_path: Path) -> None:
    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner

    _onnx(tmp_path)
    model = load_source(tmp_path, _describe("onnx", "model.onnx", shape=(1, 4)))
    x = np.array([[-1, 2, -3, 4]], np.float32)
    assert model.run(x)[0].tolist() == [[0, 2, 0, 4]]
    assert LocalRunner(model.to_relax(), host_backend()).run(x)[0].tolist() == [[0, 2, 0, 4]]


def test_an_operator_that_is_refused_is_named(tmp_path: Path) -> None:
    _onnx(tmp_path, "RandomNormalLike")
    model = load_source(tmp_path, _describe("onnx", "model.onnx", shape=(1, 4)))
    with pytest.raises(UnsupportedOperatorError, match=r"RandomNormalLike .*: its output is random"):
        model.to_relax()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("The following operators are not supported for frontend ONNX: LSTM, Scan", "does not support: LSTM, Scan"),
        ("Unsupported function types ['erfinv.default', 'fft_fft.default']", ": erfinv.default, fft_fft.default"),
        ("'num_heads'", "importer failed: 'num_heads'"),
    ],
)
def test_only_operators_are_named_as_operators(message: str, says: str) -> None:
    assert unsupported("ONNX", message).found.endswith(says)


def test_a_torch_operator_that_tvm_does_not_know_is_named() -> None:
    import torch

    from tvmflow.frontends.pytorch.exported_program import ExportedModel

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    with pytest.raises(UnsupportedOperatorError, match="bessel_j0"):
        ExportedModel(Net(), one_input("input", (1, 4))).to_relax()


def test_a_wrong_input_shape_says_which_key_to_correct(tmp_path: Path) -> None:
    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.sources.networks.torch_zoo import build

    with pytest.raises(ModelFileError, match=r"rejects inputs of float32 \[1, 3, 8, 8\]") as error:
        ExportedModel(build("digits_cnn"), one_input("input", (1, 3, 8, 8))).run(np.zeros((1, 3, 8, 8), np.float32))
    assert "input.shape" in str(error.value)


def _save(folder: Path, nodes: list[Any], opset: int, ir_version: int, shape: list[int] | None, *weights: Any) -> None:
    import onnx
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", [x], [y], list(weights))
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir_version), folder / "model.onnx")


@pytest.mark.parametrize("case", ["the newest IR version", "an output without a shape", "a deprecated operator"])
def test_valid_onnx_files_are_read(tmp_path: Path, case: str) -> None:
    import onnx
    from onnx import helper

    nodes, weights, opset = [helper.make_node("Relu", ["x"], ["y"])], [], 17
    if case == "a deprecated operator":
        weights = [helper.make_tensor(name, onnx.TensorProto.FLOAT, [2], [1.0, 2.0]) for name in ("s", "b")]
        nodes, opset = [helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)], 18
    shape = None if case == "an output without a shape" else [1, 4, 2]
    newest = onnx.IR_VERSION if case == "the newest IR version" else 8
    _save(tmp_path, nodes, opset, newest, shape, *weights)
    model = load_source(tmp_path, _describe("onnx", "model.onnx", shape=(1, 4, 2)))
    (output,) = model.run(np.arange(8, dtype=np.float32).reshape(1, 4, 2))
    assert output.shape == (1, 4, 2)
    assert [name for name, _ in model.layers(np.ones((1, 4, 2), np.float32))] == ["y"]
    assert len(list(model.other_roundings())) == 1


@pytest.mark.parametrize(
    ("operator", "kind", "says"),
    [
        ("Nonsense", UnsupportedOperatorError, "does not support Nonsense"),
        ("Det", ModelFileError, "ONNX Runtime cannot load model.onnx: Node"),
    ],
)
def test_onnx_runtime_says_why_it_cannot_load_a_file(
    tmp_path: Path, operator: str, kind: type[TvmflowError], says: str
) -> None:
    from onnx import helper

    from tvmflow.frontends.onnx.session import open_session

    _save(tmp_path, [helper.make_node(operator, ["x"], ["y"])], 17, 8, [1, 4, 2])
    with pytest.raises(kind) as error:
        open_session(tmp_path / "model.onnx")
    assert says in error.value.found and "onnxruntime_src" not in error.value.found


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 200), flip=st.integers(0, 199), value=st.integers(0, 255))
def test_torn_and_altered_onnx_files_never_raise_anything_else(tmp_path: Path, cut: int, flip: int, value: int) -> None:
    data = bytearray(_onnx(tmp_path).read_bytes())
    if flip < len(data):
        data[flip] = value
    (tmp_path / "model.onnx").write_bytes(bytes(data[: max(cut, 1)]) if cut % 2 else bytes(data))
    try:
        load_source(tmp_path, _describe("onnx", "model.onnx", shape=(1, 4))).run(np.zeros((1, 4), np.float32))
    except TvmflowError:
        pass


class _Echo:
    def run(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
        assert all(len(x) == 4 for x in inputs)
        return tuple(x * 2 for x in inputs)


@given(st.integers(1, 13))
def test_batches_are_filled_up_and_cut_again(count: int) -> None:
    x = np.arange(count, dtype=np.float32)[:, None]
    outputs = run_in_batches(_Echo(), (x, -x), 4)
    assert len(outputs) == 2 and np.array_equal(outputs[0], x * 2) and np.array_equal(outputs[1], -x * 2)


@pytest.mark.parametrize("threads", [2, 4])
def test_a_source_runs_on_as_many_threads_as_it_is_told(tmp_path: Path, threads: int) -> None:
    """Counted in the process: ONNX Runtime's pool is there as soon as a session is, the caller is one of its
    threads.
    """
    import psutil

    _onnx(tmp_path)
    model = load_source(tmp_path, _describe("onnx", "model.onnx", shape=(1, 4)))
    process, x = psutil.Process(), np.zeros((1, 4), np.float32)
    model.use_threads(1)
    model.run(x)
    alone = process.num_threads()
    model.use_threads(threads)
    model.run(x)
    assert process.num_threads() - alone == threads - 1


def test_a_torch_source_runs_on_as_many_threads_as_it_is_told() -> None:
    import torch

    from tvmflow.frontends.pytorch.exported_program import ExportedModel

    model, before = ExportedModel(torch.nn.Linear(2, 2).eval(), one_input("x", (1, 2))), torch.get_num_threads()
    try:
        for threads in (1, 3):
            model.use_threads(threads)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
