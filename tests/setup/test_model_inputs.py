"""Test how inputs, open sizes and networks of weights are added, and how a pickled module is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import TensorProto, helper
from safetensors.numpy import save_file

from flows.project_pipeline import refresh
from tests.setup.test_new_project import cli, onnx_file
from tvmflow.config.workspace import Workspace
from tvmflow.setup.model_inputs import InputRequest
from tvmflow.setup.new_project import ModelRequest, add_model, make_workspace
from tvmflow.sources.data.datasets import load_dataset
from tvmflow.support.errors import ModelFileError, SourceError, TvmflowError, UsageError


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    workspace = Workspace(make_workspace(tmp_path / "project"))
    refresh(workspace)
    return workspace


def _encoder(path: Path, axes: list[str], tokens: str = "input_ids") -> Path:
    """Write a network of tokens and a mask, as of BERT: both of any length."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [31, 4], np.zeros(31 * 4))
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in (tokens, "attention_mask")]
    nodes = [
        helper.make_node("Gather", ["table", tokens], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["embedded", "wide"], ["y"]),
    ]
    last = helper.make_tensor("last", TensorProto.INT64, [1], [-1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*axes, 4])
    graph = helper.make_graph(nodes, "g", values, [out], [table, last])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_an_encoder_of_any_length_is_added_with_its_names(project: Workspace) -> None:
    file = _encoder(project.root / "encoder.onnx", ["batch", "sequence"])
    done = cli(project.root, "add", str(file), "--shape", "1,32", "--high", "3000", "--name", "fixed")
    assert done.exit_code == 0, done.output + str(done.exception)
    entry = yaml.safe_load(project.params_path.read_text())["models"]["fixed"]
    assert entry["inputs"] == {
        "input_ids": {"shape": [1, 32], "dtype": "int64", "high": 31},
        "attention_mask": {"shape": [1, 32], "dtype": "int64", "high": 2},
    }
    done = cli(project.root, "add", str(file), "--buckets", "8,16", "--name", "any")
    assert done.exit_code == 0, done.output + str(done.exception)
    entry = yaml.safe_load(project.params_path.read_text())["models"]["any"]
    assert entry["buckets"] == {"sequence": [8, 16]}
    assert {name: one["shape"] for name, one in entry["inputs"].items()} == {
        "input_ids": [1, "sequence"],
        "attention_mask": [1, "sequence"],
    }
    both = ("--buckets", "sequence=8,16", "--buckets", "batch=1,4", "--name", "both")
    assert cli(project.root, "add", str(file), *both).exit_code == 0
    assert project.params.models["both"].buckets == {"sequence": (8, 16), "batch": (1, 4)}
    for name, length in (("old", "input ids 1"), ("exported", "s27")):
        _encoder(project.root / f"{name}.onnx", ["dynamic.axes", length])
        assert cli(project.root, "add", str(project.root / f"{name}.onnx"), "--buckets", "8,16").exit_code == 0
        assert project.params.models[name].buckets == {"length": (8, 16)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--shape input_ids=1,128; for any size up to the last of some: --buckets 32,64,128"),
        (["--shape", "1,32,4"], "a shape of its own: --shape input_ids=1,128"),
        (["--shape", "ids=1,32"], "one of input_ids, attention_mask"),
        (["--buckets", "length=8,16"], "one of batch, sequence"),
        (["--buckets", "8,"], "numbers from 1, ascending"),
        (["--buckets", "16,8"], "buckets"),
    ],
)
def test_options_that_fit_no_size_are_refused_with_those_that_do(
    options: list[str], says: str, project: Workspace
) -> None:
    before = project.params_path.read_text()
    done = cli(project.root, "add", str(_encoder(project.root / "encoder.onnx", ["batch", "sequence"])), *options)
    assert isinstance(done.exception, TvmflowError) and says in str(done.exception), done.output
    assert project.params_path.read_text() == before


def test_buckets_of_a_fixed_size_are_refused(project: Workspace) -> None:
    done = cli(project.root, "add", str(onnx_file(project.root / "a.onnx", [1, 3, 8, 8])), "--buckets", "4,8")
    assert isinstance(done.exception, UsageError) and "leaves no such size open" in str(done.exception)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_pickled_module_is_told_from_weights(is_old: bool, project: Workspace) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    known = {"_use_new_zipfile_serialization": not is_old}
    torch.save(module, project.root / "module.pt", **known)
    torch.save({"model": module.state_dict(), "epoch": 3}, project.root / "weights.pt", **known)
    with pytest.raises(ModelFileError, match=r"a pickled nn\.Module, of class Sequential of torch\.nn\.modules"):
        add_model(project, project.root / "module.pt", ModelRequest())
    with pytest.raises(ModelFileError, match="weights without the network"):
        add_model(project, project.root / "weights.pt", ModelRequest())


def test_weights_are_added_with_their_network(project: Workspace) -> None:
    (project.root / "net.py").write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 2)\n")
    save_file({"weight": np.zeros((2, 4), np.float32), "bias": np.zeros(2, np.float32)}, project.root / "w.safetensors")
    done = cli(project.root, "add", str(project.root / "w.safetensors"), "--network", "net.py:make", "--shape", "1,4")
    assert done.exit_code == 0, done.output + str(done.exception)
    entry = project.params.models["w"]
    assert (entry.framework, entry.network, entry.tensors["input"].shape) == ("torch", "net.py:make", (1, 4))


_IMAGES = np.zeros((9, 3, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"images": np.zeros((9, 3, 8, 9))}, r"samples of shape \(3, 8, 9\)"),
        ({"images": np.zeros((9, 8, 8))}, r"samples of shape \(1, 8, 8\)"),
        ({"images": np.zeros((9, 192))}, r"images \(9, 192\)"),
        ({"images": np.full((9, 3, 8, 8), "a")}, "holds <U1"),
        ({"images": _IMAGES, "labels": np.zeros(9)}, "labels of float64"),
        ({"images": _IMAGES, "labels": np.zeros(8, np.int64)}, r"labels \(8,\)"),
        ({"pictures": _IMAGES}, r"it holds \['pictures.npy'\]"),
        (_IMAGES, "not a zip file"),
    ],
    ids=["size", "channels", "flat", "strings", "labels", "count", "name", "npy"],
)
def test_a_data_set_that_does_not_fit_is_refused_by_its_header(
    project: Workspace, arrays: dict[str, np.ndarray] | np.ndarray, says: str
) -> None:
    data, model = project.root / "data.npz", onnx_file(project.root / "cats.onnx", [1, 3, 8, 8])
    if isinstance(arrays, dict):
        np.savez(data, **arrays)
    else:
        with data.open("wb") as file:
            np.save(file, arrays)
    before = project.params_path.read_text()
    with pytest.raises(SourceError, match=says):
        add_model(project, model, ModelRequest(dataset=str(data)))
    assert project.params_path.read_text() == before


def test_values_of_a_data_set_are_not_read(project: Workspace) -> None:
    """A file whose values are damaged is added: only the header says whether it fits."""
    data, model = project.root / "data.npz", onnx_file(project.root / "cats.onnx", [1, 3, 8, 8])
    np.savez(data, images=_IMAGES + 1, labels=np.zeros(9, np.uint8))
    content = bytearray(data.read_bytes())
    content[content.index(np.float32(1).tobytes() * 8)] ^= 1
    data.write_bytes(content)
    add_model(project, model, ModelRequest(dataset=str(data)))
    with pytest.raises(SourceError, match="CRC"):
        load_dataset(str(data), project.root)


def test_named_inputs_of_a_data_set_are_compared_by_their_headers(project: Workspace) -> None:
    file, data = _encoder(project.root / "encoder.onnx", ["batch", "sequence"]), project.root / "data.npz"
    request = ModelRequest(inputs=InputRequest(shape={"": (1, 8)}, high={"": 31}), dataset=str(data))
    ids = np.ones((5, 8), np.int64)
    for arrays, says in (
        ({"input_ids": ids}, "it holds"),
        ({"input_ids": ids, "attention_mask": ids[:4]}, "the same number of samples"),
        ({"input_ids": ids, "attention_mask": ids[:, :7]}, r"samples of shape \(7,\)"),
    ):
        np.savez(data, **arrays)
        with pytest.raises(SourceError, match=says):
            add_model(project, file, request)
    np.savez(data, input_ids=ids, attention_mask=ids)
    assert add_model(project, file, request).entry["dataset"] == "data.npz"
