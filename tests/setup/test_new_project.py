"""Test a new workspace outside a clone: creation, added models, and DVC."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import TensorProto, helper
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from flows.project_pipeline import refresh
from tests.conftest import REPOSITORY
from tvmflow.cli.app import app
from tvmflow.config.params import load_params
from tvmflow.config.workspace import Workspace
from tvmflow.frontends.file_headers import read_header
from tvmflow.setup.model_inputs import InputRequest
from tvmflow.setup.new_project import ModelRequest, add_model, make_workspace
from tvmflow.setup.preflight import check_operators
from tvmflow.support.errors import ModelFileError, SourceError, TvmflowError, UnknownNameError, UsageError


def cli(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--root", str(root), *arguments])


def onnx_file(path: Path, shape: list[object], inputs: int = 1, dtype: int = TensorProto.FLOAT) -> Path:
    names = [f"x{at}" for at in range(inputs)]
    values = [helper.make_tensor_value_info(name, dtype, shape) for name in names]
    graph = helper.make_graph(
        [helper.make_node("Identity", [names[0]], ["y"])],
        "g",
        values,
        [helper.make_tensor_value_info("y", dtype, shape)],
    )
    onnx.save(helper.make_model(graph), path)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    root = make_workspace(tmp_path / "project")
    workspace = Workspace(root)
    refresh(workspace)
    return workspace


def test_new_makes_a_workspace_and_overwrites_nothing(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    (root / "README.md").write_text("mine")
    done = CliRunner().invoke(app, ["new", str(root)])
    assert done.exit_code == 0, done.output
    assert (root / "README.md").read_text() == "mine"
    assert {path.name for path in root.iterdir()} >= {
        "params.yaml",
        "dvc.yaml",
        "code.json",
        "prefect.yaml",
        ".gitignore",
        ".dvcignore",
        ".dvc",
        ".git",
    }
    assert load_params(root / "params.yaml").models == {}
    ignored = subprocess.run(["git", "-C", str(root), "status", "--short"], capture_output=True, text=True, check=True)
    assert "artifacts" not in ignored.stdout
    with pytest.raises(UsageError, match=r"already has a params\.yaml"):
        make_workspace(root)


def test_a_new_workspace_has_the_deployments_of_this_one(tmp_path: Path) -> None:
    root = make_workspace(tmp_path / 'a: "b"')
    new, ours = (yaml.safe_load((folder / "prefect.yaml").read_text()) for folder in (root, REPOSITORY))
    for rows, name in ((new, 'a: "b"'), (ours, "tvmflow")):
        assert rows.pop("name") == name and {row.pop("name") for row in rows["deployments"]} == {name}
    assert (
        new == ours
        and (REPOSITORY / "prefect.yaml").read_bytes()
        == (REPOSITORY / "tvmflow" / "setup" / "deployments.yaml").read_bytes()
    )


def test_dvc_understands_the_workspace(project: Workspace) -> None:
    assert CliRunner().invoke(app, ["--root", str(project.root), "init", "--quiet"]).exit_code == 0
    add_model(project, onnx_file(project.root / "a.onnx", ["n", 3, 8, 8]), ModelRequest())
    refresh(project)
    said = subprocess.run(
        [sys.executable, "-m", "dvc", "status", "--json"], cwd=project.root, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    stages = yaml.safe_load((project.root / "pipelines" / "a" / "dvc.yaml").read_text())["stages"]
    wanted = {f"pipelines/a/dvc.yaml:{stage}@a.local-cpu.float32" for stage in stages}
    assert set(json.loads(said.stdout)) == {*wanted, "settings", "cell@a"}


def test_a_dvc_yaml_of_ones_own_is_not_touched(project: Workspace) -> None:
    (project.root / "dvc.yaml").write_text("stages: {}\n")
    assert refresh(project) is False
    assert (project.root / "dvc.yaml").read_text() == "stages: {}\n"


def test_changed_code_changes_what_dvc_compares(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads((project.root / "code.json").read_text())
    monkeypatch.setattr("flows.project_pipeline.code_of", lambda module, runs: {"x": module})
    refresh(project)
    after = json.loads((project.root / "code.json").read_text())
    assert set(after) == set(before) and all(after[name] != before[name] for name in before)


def test_add_keeps_comments_and_writes_what_the_file_says(project: Workspace) -> None:
    project.params_path.write_text("# mine\nmodels:  # all\n  # first\ntune:\n  seed: 3  # three\n")
    (project.root / "data").mkdir()
    added = add_model(project, onnx_file(project.root / "data" / "My net.v2.onnx", ["n", 3, 8, 8]), ModelRequest())
    assert added.name == "My-net" and str(added.cell) == "My-net@local-cpu:float32"
    text = project.params_path.read_text()
    assert all(word in text for word in ("# mine", "# all", "# first", "# three"))
    params = load_params(project.params_path)
    entry = params.models["My-net"]
    assert entry.framework == "onnx" and entry.weights.file == "data/My net.v2.onnx"
    assert yaml.safe_load(text)["models"]["My-net"]["input"] == {"shape": [1, 3, 8, 8]}
    assert "cells" not in yaml.safe_load(text) and list(params.cells) == ["My-net"]


def test_a_cell_that_is_not_the_default_is_listed_and_loses_none(project: Workspace) -> None:
    file = onnx_file(project.root / "a.onnx", [1, 3, 8, 8])
    add_model(project, file, ModelRequest())
    add_model(project, file, ModelRequest(name="b", precision="int8"))
    add_model(project, file, ModelRequest(name="c"))
    assert {name: str(cell) for name, cell in project.params.cells.items()} == {
        "a": "a@local-cpu:float32",
        "b-int8": "b@local-cpu:int8",
        "c": "c@local-cpu:float32",
    }


def _pt2(path: Path) -> Path:
    torch.export.save(torch.export.export(torch.nn.Flatten(), (torch.zeros(2, 3, 8, 8),)), path)
    return path


def _keras(path: Path, first: bool = False) -> Path:
    layers = [{"class_name": "InputLayer", "config": {"name": "a", "batch_shape": [None, 8, 9, 3], "dtype": "float32"}}]
    if first:
        layers.append({"class_name": "Conv2D", "config": {"data_format": "channels_first"}})
    config = {"class_name": "Functional", "config": {"layers": layers}}
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = json.dumps(config)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("make", "framework", "shape"),
    [
        (lambda folder: onnx_file(folder / "m.onnx", [4, 3, 8, 9]), "onnx", [4, 3, 8, 9]),
        (lambda folder: _pt2(folder / "m.pt2"), "torch", [2, 3, 8, 8]),
        (lambda folder: _keras(folder / "m.keras"), "keras", [1, 3, 8, 9]),
        (lambda folder: _keras(folder / "m.h5"), "keras", [1, 3, 8, 9]),
        (lambda folder: _keras(folder / "m.keras", first=True), "keras", [1, 8, 9, 3]),
    ],
)
def test_framework_and_shape_come_from_the_file(
    project: Workspace, make: object, framework: str, shape: list[int]
) -> None:
    added = add_model(project, make(project.root), ModelRequest())  # type: ignore[operator]
    assert (added.entry["framework"], added.entry["input"]) == (framework, {"shape": shape})


def test_a_file_elsewhere_is_named_by_its_whole_path(project: Workspace, tmp_path: Path) -> None:
    file = onnx_file(tmp_path / "m.onnx", [1, 3, 8, 8])
    assert add_model(project, file, ModelRequest()).entry["weights"] == {"file": str(file)}


def _weights(path: Path) -> Path:
    save_file({"w": np.zeros(3, "float32")}, path)
    return path


def _state(path: Path) -> Path:
    torch.save({"w": torch.zeros(3)}, path)
    return path


def _bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("make", "model_request", "kind", "says"),
    [
        (lambda f: f / "none.onnx", ModelRequest(), SourceError, "no file"),
        (lambda f: f, ModelRequest(), SourceError, "is a folder"),
        (lambda f: _bytes(f / "a.onnx", b"\x08garbage" * 9), ModelRequest(), ModelFileError, "a.onnx"),
        (lambda f: _bytes(f / "a.txt", b"hello"), ModelRequest(), ModelFileError, "not a supported model file"),
        (lambda f: _weights(f / "a.safetensors"), ModelRequest(), ModelFileError, "weights without the network"),
        (lambda f: _state(f / "a.pt"), ModelRequest(), ModelFileError, "weights without the network"),
        (lambda f: onnx_file(f / "a.onnx", [1, 3, "h", "w"]), ModelRequest(), ModelFileError, "--shape 1,3,224,224"),
        (lambda f: onnx_file(f / "a.bin", [1, 3, 8, 8]), ModelRequest(), ModelFileError, "ends in .onnx"),
        (
            lambda f: onnx_file(f / "a.onnx", [1, 3, 8, 8]),
            ModelRequest(precision="int9"),
            UnknownNameError,
            "did you mean 'int8'",
        ),
        (
            lambda f: onnx_file(f / "a.onnx", [1, 3, 8, 8]),
            ModelRequest(target="local_cpu"),
            UnknownNameError,
            "'local-cpu'",
        ),
        (lambda f: onnx_file(f / "a.onnx", [1, 3, 8, 8]), ModelRequest(name="a b"), TvmflowError, "not safe"),
        (lambda f: onnx_file(f / "a.onnx", [1, 3, 10**9, 10**9]), ModelRequest(), ModelFileError, "shape"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_written(
    project: Workspace, make: object, model_request: ModelRequest, kind: type[TvmflowError], says: str
) -> None:
    before = project.params_path.read_text()
    with pytest.raises(kind) as error:
        add_model(project, make(project.root), model_request)  # type: ignore[operator]
    assert says in str(error.value) and len(str(error.value)) < 1500
    assert project.params_path.read_text() == before


def test_an_open_shape_can_be_said(project: Workspace) -> None:
    file = onnx_file(project.root / "a.onnx", [1, 3, "h", "w"])
    done = cli(project.root, "add", str(file), "--shape", "1,3,32,32", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["entry"]["input"] == {"shape": [1, 3, 32, 32]}
    with pytest.raises(UsageError, match="cell a@local-cpu:float32 already exists"):
        add_model(project, file, ModelRequest())


def test_a_model_that_is_there_gets_further_cells(project: Workspace) -> None:
    file = onnx_file(project.root / "a.onnx", [1, 3, 8, 8])
    first = add_model(project, file, ModelRequest(preset="torchvision"))
    board = add_model(project, file, ModelRequest(target="linux-armv7"))
    integers = add_model(project, file, ModelRequest(precision="int8", target="linux-armv7"))
    params = Workspace(project.root).params
    assert list(params.cells) == ["a", "a-linux-armv7", "a-linux-armv7-int8"] and len(params.models) == 1
    assert board.entry == integers.entry == first.entry and first.entry["preprocess"]
    before = project.params_path.read_text()
    other = onnx_file(project.root / "elsewhere.onnx", [1, 3, 8, 8])
    for given, wanted, says in (
        (file, ModelRequest(target="linux-armv7"), "cell a@linux-armv7:float32 already exists"),
        (file, ModelRequest(target="rk3399", labels="imagenet"), "options of the model were given"),
        (other, ModelRequest(name="a", target="rk3399"), "models.a already exists"),
        (project.root / "gone" / "a.onnx", ModelRequest(target="rk3399"), "models.a already exists"),
    ):
        with pytest.raises(UsageError, match=says):
            add_model(project, given, wanted)
    assert project.params_path.read_text() == before


def _text_file(path: Path, rows: int, looked_up: bool) -> Path:
    words = helper.make_tensor_value_info("words", TensorProto.INT64, ["n", 7])
    table = helper.make_tensor("table", TensorProto.FLOAT, [rows, 4], [0.5] * rows * 4)
    nodes = [
        helper.make_node("Cast", ["words"], ["small"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "small"], ["y"]),
    ]
    if not looked_up:
        nodes = [helper.make_node("Cast", ["words"], ["y"], to=TensorProto.FLOAT)]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [words], [out], [table])), path)
    return path


def test_the_size_of_a_vocabulary_is_that_of_the_table(project: Workspace) -> None:
    added = add_model(project, _text_file(project.root / "t.onnx", 31, True), ModelRequest())
    assert added.entry["input"] == {"shape": [1, 7], "dtype": "int64", "high": 31}
    file = _text_file(project.root / "u.onnx", 31, False)
    with pytest.raises(ModelFileError, match="the file does not specify how large the values may be"):
        add_model(project, file, ModelRequest())
    assert add_model(project, file, ModelRequest(inputs=InputRequest(high={"": 9}))).entry["input"]["high"] == 9


def _two_inputs(path: Path) -> Path:
    kinds = {"words": TensorProto.INT64, "types": TensorProto.INT32, "x": TensorProto.FLOAT}
    given = [helper.make_tensor_value_info(name, kind, [1, 7]) for name, kind in kinds.items()]
    nodes = [
        helper.make_node("Cast", ["words"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["types"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Sum", ["a", "b", "x"], ["y"]),
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", given, [out])), path)
    return path


def test_inputs_of_integers_have_bounds_of_their_own(project: Workspace) -> None:
    file = _two_inputs(project.root / "a.onnx")
    done = cli(project.root, "add", str(file), "--high", "types=2", "--high", "30", "--json")
    assert done.exit_code == 0, done.output
    inputs = json.loads(done.stdout)["entry"]["inputs"]
    assert {name: one.get("high") for name, one in inputs.items()} == {"words": 30, "types": 2, "x": None}
    with pytest.raises(ModelFileError, match="--high words=BOUND"):
        add_model(project, file, ModelRequest(name="b", inputs=InputRequest(high={"types": 2})))
    with pytest.raises(UsageError, match=r"--high x=...: a.onnx has no such input of integers\n.*words, types"):
        add_model(project, file, ModelRequest(name="b", inputs=InputRequest(high={"x": 2, "": 3})))
    for text in ("0", "types=", "types=-1", "words=x"):
        failed = cli(project.root, "add", str(file), "--high", text).exception
        assert isinstance(failed, UsageError) and "NAME=BOUND or BOUND" in str(failed)
    assert "once for each" in str(cli(project.root, "add", str(file), "--high", "3", "--high", "4").exception)


@pytest.mark.heavy
def test_data_labels_and_preprocessing_are_written(tmp_path: Path) -> None:
    root = make_workspace(tmp_path / "new")
    model = onnx_file(root / "cats.onnx", [1, 3, 8, 8])
    (root / "names.txt").write_text("cat\ndog\n")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    np.savez(root / "data.npz", images=np.zeros((2, 3, 8, 8), np.float32), labels=np.zeros(2, np.int64))
    before = (root / "params.yaml").read_text()
    for wrong, says in (
        ({"preset": "torchvison"}, "unknown preprocessing 'torchvison'"),
        ({"labels": str(root / "none.txt")}, "no labels"),
        ({"dataset": "imagenet"}, "no dataset imagenet"),
        ({"labels": str(model)}, "cats.onnx"),
    ):
        with pytest.raises(TvmflowError, match=says):
            add_model(Workspace(root), model, ModelRequest(**wrong))
        assert (root / "params.yaml").read_text() == before
    request = ModelRequest(preset="torchvision", labels=str(root / "names.txt"), dataset=str(root / "data.npz"))
    add_model(Workspace(root), model, request)
    done = cli(
        root, "add", str(model), "--name", "photos", "--dataset", str(tmp_path / "photos"), "--labels", "imagenet"
    )
    assert done.exit_code == 0 and "--preprocess" in done.stderr, done.output
    models = load_params(root / "params.yaml").models
    assert models["cats"].labels == "names.txt" and models["cats"].dataset == "data.npz"
    assert models["cats"].preprocess.preset == "torchvision"
    assert models["photos"].labels == "imagenet" and models["photos"].dataset.folder == str(tmp_path / "photos")


@pytest.mark.parametrize(
    ("name", "data", "package", "extra"),
    [
        ("m.tflite", b"\x1c\0\0\0TFL3" + bytes(40), "tflite", "tensorflow"),
        ("m.onnx", b"\x08\x08", "onnx", "onnx"),
        ("m.h5", b"\x89HDF\r\n\x1a\n", "h5py", "keras"),
    ],
)
def test_a_package_that_reads_a_file_is_named_if_it_is_missing(
    name: str, data: bytes, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(data)
    for loaded in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"the package {package} is not installed, which reads {name}") as error:
        read_header(str(tmp_path / name), 1 << 20)
    assert f"tvmflow[{extra}]" in error.value.hint


def test_a_framework_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(make_workspace(tmp_path / "new"))
    (workspace.root / "params.yaml").write_text(
        "models:\n  m: {framework: keras, weights: {file: m.keras}, input: {shape: [1, 1, 8, 8]}}\n"
    )
    monkeypatch.setattr("tvmflow.setup.preflight.version", lambda tool: "absent")
    with pytest.raises(UsageError, match=r"keras not installed, which models\.m needs"):
        check_operators(workspace, "m")


def test_add_names_all_operators_that_cannot_be_imported(project: Workspace) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Bernoulli", ["b"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=opsets, ir_version=8)
    onnx.save(model, project.root / "m.onnx")
    before = project.params_path.read_text()
    done = cli(project.root, "add", str(project.root / "m.onnx"))
    said = str(done.exception)
    assert done.exit_code == 1 and "RandomNormalLike" in said and "Bernoulli" in said, said
    assert "Relu" not in said and project.params_path.read_text() == before
