"""Test ONNX files with external data: copied with the model, checked path by path, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bench.conformance.tflite import interpret
from tests.conftest import REPOSITORY, examples, stage
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.baselines import start_baseline
from tvmflow.frontends.onnx.external_data import beside, onnx_external_data
from tvmflow.frontends.onnx.files import external_files
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, one_input
from tvmflow.passes.pipeline import canonicalize
from tvmflow.setup.preflight import check_model
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import ModelFileError, TvmflowError, UnsupportedOperatorError

pytestmark = pytest.mark.heavy

MINE = "mine@local-cpu:float32"
FILES = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _describe(file: str, shape: tuple[int, ...]) -> SourceDescription:
    return SourceDescription("onnx", None, file, one_input("x", shape))


def _model(weights: int = 1) -> Any:
    """Return y = (x @ w0 + 1) @ w1 ...: (1, 16) -> (1, 16)."""
    generator = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(generator.standard_normal((16, 16), np.float32), f"w{i}") for i in range(weights)
    ]
    nodes = [
        helper.make_node("MatMul", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}" if i + 1 < weights else "y"])
        for i in range(weights)
    ]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _save(folder: Path, model: Any, **options: Any) -> None:
    onnx.save_model(model, folder / "mine.onnx", save_as_external_data=True, size_threshold=0, **options)


def _workspace(make_workspace: Callable[..., Path]) -> Path:
    def change(params: dict[str, Any]) -> None:
        entry = {"framework": "onnx", "weights": {"file": "mine.onnx"}, "input": {"shape": [1, 16]}}
        params["models"]["mine"] = entry

    return make_workspace(change)


@pytest.mark.parametrize("one_file", [True, False])
def test_external_data_travels_to_the_peers(make_workspace: Callable[..., Path], one_file: bool) -> None:
    root = _workspace(make_workspace)
    _save(root, _model(3), all_tensors_to_one_file=one_file, **({"location": "mine.onnx.data"} if one_file else {}))
    names = {"mine.onnx.data"} if one_file else {"w0", "w1", "w2"}
    stage(root, "fetch", MINE), stage(root, "import_model", MINE)
    fetched, imported = (root / "artifacts" / name / "mine.local-cpu.float32" for name in ("fetch", "import_model"))
    for folder in (fetched, imported):
        assert names <= {path.name for path in folder.iterdir()}
        assert names <= set(json.loads((folder / "record.json").read_text())["outputs"])
    for name in ("source", "onnxruntime"):
        with start_baseline(name, fetched, imported / "peer.onnx", 1) as peer:
            assert peer.call("choose")["variant"] and len(peer.call("time_runs", count=3)) == 3


def test_what_pytorch_exports_by_default_is_whole(tmp_path: Path) -> None:
    import torch

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5)).eval()
    torch.onnx.export(net, (torch.zeros(1, 1, 8, 8),), tmp_path / "mine.onnx", dynamo=True, verbose=False)
    assert set(external_files(tmp_path / "mine.onnx")) == {"mine.onnx.data"}
    model = load_source(tmp_path, _describe("mine.onnx", (1, 1, 8, 8)))
    (tmp_path / "copy").mkdir()
    model.to_onnx(tmp_path / "copy" / "peer.onnx")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["mine.onnx.data", "peer.onnx"]


NO_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "keras", "torchvision", "tensorflow", "ai_edge_litert"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTorch())
from pathlib import Path
import numpy as np
from tasks.import_model import read_model
from tvmflow.evaluation.baselines import BaselineProcess
from tvmflow.frontends.registry import FRONTENDS
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights
fetched, out = Path(sys.argv[1]), Path(sys.argv[2])
files = FRONTENDS["onnx"].files
request = WeightsRequest("onnx", None, {"file": "mine.onnx"}, fetched.parent, DownloadLimits(1), fetched, files)
fetch_weights(request, fetched, None, lambda *_: None)
read_model(str(fetched), str(out), 1e-4, lambda *_: None)
for name in ("source", "onnxruntime"):
    peer = BaselineProcess(name, str(fetched), str(out / "peer.onnx"), 1)
    assert peer.choose()["variant"] and len(peer.time_runs(2)) == 2
assert "torch" not in sys.modules
"""


def test_an_onnx_model_needs_no_other_framework(tmp_path: Path) -> None:
    """Fetch, import and both peers as `tvmflow[onnx]` alone has them."""
    fetched, out = tmp_path / "fetch", tmp_path / "import"
    fetched.mkdir(), out.mkdir()
    _save(tmp_path, _model(2), location="mine.onnx.data")
    x = np.random.default_rng(1).standard_normal((4, 16), np.float32)
    for name in ("evaluation", "golden"):
        Samples((x,)).save(fetched / f"{name}.npz")
    (fetched / "labels.json").write_text("null")
    source = {
        "framework": "onnx",
        "network": None,
        "weights_file": "model.onnx",
        "inputs": [{"name": "x", "shape": [1, 16], "dtype": "float32"}],
    }
    (fetched / "source.json").write_text(json.dumps(source))
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, str(fetched), str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_another_process_reads_which_files_belong_to_a_model(tmp_path: Path) -> None:
    """Protobuf takes 170 bytes for each of a file that holds nothing but empty messages."""
    (tmp_path / "data").mkdir(), (tmp_path / "links").mkdir()
    _save(tmp_path / "data", _model(2), location="mine.onnx.data")
    code = "import sys; from pathlib import Path; from tvmflow.frontends.registry import FRONTENDS\n"
    code += "print(list(FRONTENDS['onnx'].files.companions(Path(sys.argv[1]))), 'onnx' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data" / "mine.onnx")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.stdout == "['mine.onnx.data'] False\n", done.stderr[-2000:]
    link = tmp_path / "links" / "mine.onnx"
    link.symlink_to(tmp_path / "data" / "mine.onnx")
    with pytest.raises(ModelFileError, match=r"no mine\.onnx\.data next to"):
        onnx_external_data(link)
    (tmp_path / "links" / "mine.onnx.data").write_bytes((tmp_path / "data" / "mine.onnx.data").read_bytes())
    assert onnx_external_data(link) == {"mine.onnx.data": tmp_path / "links" / "mine.onnx.data"}


def test_a_link_to_a_model_is_looked_at_before_anything_runs(
    make_workspace: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    onnx.save(_model(), tmp_path / "elsewhere" / "one.onnx")
    root = _workspace(make_workspace)
    (root / "mine.onnx").symlink_to(tmp_path / "elsewhere" / "one.onnx")
    check_model(Workspace(root), "mine")


@pytest.mark.parametrize(
    "ends",
    [
        None,
        "a",
        ["a"],
        {"a": "b"},
        {"a": -1},
        {"a": 3},
        {"../a": 0},
        {"/etc": 0},
        {3: 0},
        {"source.json": 0},
        {"gone": 0},
    ],
)
def test_names_that_a_sandbox_may_not_give(tmp_path: Path, ends: object) -> None:
    (tmp_path / "source.json").write_text("{}")
    (tmp_path / "a").write_text("{}")
    assert beside(tmp_path / "mine.onnx", {"a": 2}) == {"a": tmp_path / "a"}
    with pytest.raises(ModelFileError):
        beside(tmp_path / "mine.onnx", ends)


@pytest.mark.parametrize(
    "location",
    [
        "../outside.bin",
        "/etc/passwd",
        "gone.bin",
        "link.bin",
        "sub/data.bin",
        "",
        ".",
        "..",
        "a\\b",
        "source.json",
        "Model.json",
        "peer.onnx",
        "a\nb",
        "*/_ORT_MEM_ADDR_/*",
        "x" * 300,
        "folder",
    ],
)
def test_external_data_that_leads_elsewhere(tmp_path: Path, location: str) -> None:
    (tmp_path / "link.bin").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir(), (tmp_path / "sub").mkdir()
    for name in ("sub/data.bin", "source.json", "Model.json", "peer.onnx", "../outside.bin"):
        (tmp_path / name).write_bytes(b"\0" * 2000)
    with pytest.raises(ModelFileError):
        external_files(_with(tmp_path, [("location", location)]))
    with pytest.raises(ModelFileError):
        load_source(tmp_path, _describe("mine.onnx", (1, 16)))


def _with(folder: Path, entries: list[tuple[str, str]], place: str = "initializer") -> Path:
    model = _model()
    tensor = model.graph.initializer[0] if place == "initializer" else TensorProto(name="c", data_type=1, dims=[16, 16])
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    if place == "attribute":
        model.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))
    elif place == "subgraph":
        inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensor)], "s", [], [])
        model.graph.node.append(helper.make_node("If", ["x"], ["c"], then_branch=inner, else_branch=inner))
    elif place == "function":
        node = helper.make_node("Constant", [], ["c"], value=tensor)
        model.functions.append(helper.make_function("d", "F", [], ["c"], [node], [helper.make_opsetid("", 17)]))
    elif place == "sparse":
        model.graph.sparse_initializer.add(
            values=tensor, indices=numpy_helper.from_array(np.zeros((256, 1), np.int64)), dims=[256]
        )
    (folder / "mine.onnx").write_bytes(model.SerializeToString())
    return folder / "mine.onnx"


@pytest.mark.parametrize("place", ["attribute", "subgraph", "function", "sparse"])
def test_every_place_of_a_tensor_is_looked_at(tmp_path: Path, place: str) -> None:
    with pytest.raises(ModelFileError, match="etc/passwd"):
        external_files(_with(tmp_path, [("location", "/etc/passwd")], place))


@pytest.mark.parametrize(
    "entries",
    [
        [("location", "a.bin"), ("location", "/etc/passwd")],
        [("location", "/etc/passwd"), ("location", "a.bin")],
        [("offset", "0")],
        [("location", "a.bin"), ("basepath", "/etc")],
        [("location", "a.bin"), ("offset", "-4")],
        [("location", "a.bin"), ("offset", "1000000000000000000000")],
        [("location", "a.bin"), ("offset", "4")],
        [("location", "a.bin"), ("length", "1000000000000")],
        [("location", "a.bin"), ("length", "8")],
        [("location", "short.bin")],
        [("location", "a.bin"), ("offset", "0x0")],
    ],
)
def test_sizes_and_entries_of_external_data_are_checked(tmp_path: Path, entries: list[tuple[str, str]]) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0" * 1024), (tmp_path / "short.bin").write_bytes(b"\0" * 1023)
    with pytest.raises(ModelFileError):
        external_files(_with(tmp_path, entries))
    whole = [("location", "a.bin"), ("offset", "0"), ("length", "1024")]
    assert set(external_files(_with(tmp_path, whole))) == {"a.bin"}


@FILES
@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=5), st.integers(0, 4000))
def test_altered_models_are_read_or_one_clear_error(tmp_path: Path, flips: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(_model(2).SerializeToString())
    for at, value in flips:
        data[at % len(data)] = value
    (tmp_path / "mine.onnx").write_bytes(bytes(data[: len(data) - (cut % len(data) if cut % 2 else 0)]))
    try:
        load_source(tmp_path, _describe("mine.onnx", (1, 16))).to_relax()
    except TvmflowError:
        pass


def _untyped(kind: str) -> Any:
    """Return a model of an output without a type: none at all, an undefined one, that of a constant, or unknowable."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = onnx.ValueInfoProto(name="y")
    if kind == "undefined":
        y = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    operator, domain = ("Own", "own") if kind == "unknowable" else ("Relu", "")
    nodes = [helper.make_node(operator, ["x"], ["y"], domain=domain)]
    outputs, constants = [y], []
    if kind == "constant":
        outputs, constants = (
            [y, onnx.ValueInfoProto(name="c")],
            [helper.make_tensor("c", TensorProto.INT64, [2], [3, 4])],
        )
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


@pytest.mark.parametrize("kind", ["missing", "undefined", "constant"])
def test_types_that_a_file_leaves_out_are_inferred(kind: str, tmp_path: Path) -> None:
    onnx.save(_untyped(kind), tmp_path / "m.onnx")
    source = load_source(tmp_path, _describe("m.onnx", (1, 4)))
    x = np.asarray([[-1, 0, 1, 2]], np.float32)
    wanted = [np.maximum(x, 0), *([np.asarray([3, 4])] if kind == "constant" else [])]
    made = interpret(canonicalize(source.to_relax()), [x])
    for values in (source.run(x), made):
        assert [value.dtype for value in values] == [value.dtype for value in wanted]
        assert all(map(np.array_equal, values, wanted))


def test_ends_whose_type_is_unknown_are_named(tmp_path: Path) -> None:
    onnx.save(_untyped("unknowable"), tmp_path / "m.onnx")
    with pytest.raises(ModelFileError, match=r"output y of m.onnx has no type, and it does not follow"):
        load_source(tmp_path, _describe("m.onnx", (1, 4)))
    model = _untyped("missing")
    model.graph.input[0].ClearField("type")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelFileError, match=r"input x of m.onnx has no type"):
        load_source(tmp_path, _describe("m.onnx", (1, 4)))


def test_operators_that_an_exporter_left_are_named_together(tmp_path: Path) -> None:
    nodes = [helper.make_node("Erfc", ["x"], ["a"]), helper.make_node("Log1p", ["a"], ["b"])]
    branch = helper.make_graph([helper.make_node("Expm1", ["b"], ["c"])], "branch", [], [_float("c")])
    nodes += [helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)]
    flag = numpy_helper.from_array(np.array(True), "flag")
    graph = helper.make_graph(nodes, "g", [_float("x")], [_float("y")], [flag])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedOperatorError, match=r"m\.onnx has operators .*: Erfc, Expm1, Log1p"):
        load_source(tmp_path, SourceDescription("onnx", None, "m.onnx", one_input("x", (2,))))


def _float(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def test_constants_of_old_files_need_not_be_inputs(tmp_path: Path) -> None:
    """As ONNX Runtime's own script leaves them, which takes constants out of the inputs."""
    model, x = _model(), np.linspace(-1, 1, 16, dtype=np.float32)[None]
    model.ir_version, model.opset_import[0].version = 3, 7
    onnx.save(model, tmp_path / "old.onnx")
    source = load_source(tmp_path, _describe("old.onnx", (1, 16)))
    (found,) = interpret(canonicalize(source.to_relax()), [x])
    assert np.abs(found - source.run(x)[0]).max() < 1e-5
