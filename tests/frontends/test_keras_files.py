"""Test malicious and damaged Keras files: nothing is looked up or called before layers and arrays are checked."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.documents.keras2_weights import write_keras2_weights
from tvmflow.frontends.keras.files import check_file
from tvmflow.frontends.keras.frontend import _with_weights
from tvmflow.sources.networks.keras_zoo import build
from tvmflow.support.errors import ModelFileError

pytestmark = pytest.mark.heavy

FILES = settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keras")
    model = build("digits_cnn", 1)
    model.save(folder / "m.keras"), model.save(folder / "m.h5"), model.save_weights(folder / "m.weights.h5")
    return folder


def test_what_keras_writes_is_taken(saved: Path, tmp_path: Path) -> None:
    for name in ("m.keras", "m.h5", "m.weights.h5"):
        check_file(saved / name)
    build("keras/mobilenet_v3_small").save(tmp_path / "large.keras")
    check_file(tmp_path / "large.keras")


def test_weights_of_keras_2_are_those_of_the_same_layers(tmp_path: Path) -> None:
    """Other names of layers' arrays, groups with lists of names; a file for another width is refused."""
    model = build("keras/mobilenet_v2_035_96", 2)
    path = write_keras2_weights(model, tmp_path / "model.h5")
    with h5py.File(path) as file:
        assert "depthwise_kernel:0" in file["expanded_conv_depthwise/expanded_conv_depthwise"]
        assert file["bn_Conv1"].attrs["weight_names"][0] == "bn_Conv1/gamma:0"
    check_file(path)
    found = _with_weights(path, "keras/mobilenet_v2_035_96")
    for mine, theirs in zip(found.weights, model.weights, strict=True):
        assert np.array_equal(mine.numpy(), theirs.numpy()), mine.path
    with pytest.raises(ModelFileError, match="mobilenet_v2_050"):
        _with_weights(path, "keras/mobilenet_v2_050")


def _class(name: Any, module: Any = "keras.layers", registered: Any = None, config: Any = None) -> dict[str, Any]:
    return {"class_name": name, "module": module, "registered_name": registered, "config": config or {}}


@pytest.mark.parametrize(
    "entry",
    [
        _class("Lambda"),
        _class("TFSMLayer"),
        _class("TorchModuleWrapper"),
        _class("StringLookup"),
        _class("TextVectorization"),
        _class("Popen", "subprocess"),
        _class("system", "os"),
        _class("Dense", "mine.layers"),
        _class("Dense", registered="mine>Dense"),
        _class("function", "keras.utils", config="get_file"),
        _class("function", "builtins", config="os.system"),
        _class("function", "builtins", config="exec"),
        _class("__lambda__", "keras", config={"value": ["4wEAAAA=", None, None]}),
        _class(["Dense"]),
        _class("function", "keras.src.utils.file_utils", config="get_file"),
        _class("Dense; x"),
        _class("get_file", "keras.utils"),
        _class("Dense", "keras.layers.."),
        _class("enable_unsafe_deserialization", "keras.config"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["m.keras", "m.h5"])
def test_classes_that_act_are_refused_wherever_they_stand(
    saved: Path, tmp_path: Path, kind: str, entry: dict[str, Any]
) -> None:
    path = tmp_path / kind
    if kind == "m.h5":
        path.write_bytes((saved / kind).read_bytes())
        with h5py.File(path, "a") as file:
            config = json.loads(file.attrs["model_config"])
            config["config"]["layers"][2]["config"]["activation"] = entry
            file.attrs["model_config"] = json.dumps(config)
    else:
        with zipfile.ZipFile(saved / kind) as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                if name == "config.json":
                    config = json.loads(data)
                    config["config"]["layers"].append(entry)
                    data = json.dumps(config).encode()
                new.writestr(name, data)
    with pytest.raises(ModelFileError, match="holds"):
        check_file(path)


@pytest.mark.parametrize("what", ["external", "link", "soft", "huge", "loop", "virtual"])
def test_arrays_that_lie_elsewhere_are_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "m.weights.h5"
    with h5py.File(path, "w") as file:
        if what == "external":
            file.create_dataset("w", (8,), "u1", external=[("/etc/passwd", 0, 8)])
        elif what == "link":
            file["w"] = h5py.ExternalLink("/etc/passwd", "/")
        elif what == "soft":
            file["w"] = h5py.SoftLink("/gone")
        elif what == "huge":
            file.create_dataset("w", (1 << 45,), "f4", chunks=(1 << 10,))
        elif what == "loop":
            file.create_group("a")
            file["a"]["back"] = file["a"]
        else:
            layout = h5py.VirtualLayout((4,), "f4")
            layout[:] = h5py.VirtualSource("/other.h5", "x", (4,))
            file.create_virtual_dataset("w", layout)
    with pytest.raises(ModelFileError):
        check_file(path)


def test_archives_with_other_files_are_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    for extra in ("assets/vocabulary.txt", "../outside", "config.json"):
        path.write_bytes((saved / "m.keras").read_bytes())
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(extra, b"x")
        with pytest.raises(ModelFileError, match="holds the files"):
            check_file(path)


@FILES
@given(
    st.sampled_from(["m.keras", "m.h5", "m.weights.h5"]),
    st.lists(st.tuples(st.integers(0, 1 << 18), st.integers(0, 255)), max_size=5),
    st.integers(0, 1 << 18),
)
def test_altered_files_are_taken_or_one_clear_error(
    saved: Path, tmp_path: Path, kind: str, flips: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray((saved / kind).read_bytes())
    for at, value in flips:
        data[at % len(data)] = value
    (tmp_path / kind).write_bytes(bytes(data[: len(data) - (cut % len(data) if cut % 2 else 0)]))
    try:
        check_file(tmp_path / kind)
    except ModelFileError:
        pass
