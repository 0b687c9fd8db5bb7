"""Test malicious and damaged PyTorch files: only known operators and tensors are deserialized."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, one_input
from tvmflow.support.errors import ModelFileError, TvmflowError, UnsupportedOperatorError

pytestmark = pytest.mark.heavy

FILES = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _describe(framework: str, file: str, network: str | None = None) -> SourceDescription:
    return SourceDescription(framework, network, file, one_input("input", (1, 1, 8, 8)))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch hacked",)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from tvmflow.sources.networks.torch_zoo import build

    path = tmp_path_factory.mktemp("pt2") / "model.pt2"
    torch.export.save(torch.export.export(build("digits_cnn", 1), (torch.zeros(1, 1, 8, 8),)), path)
    return path


def _altered(source: Path, target: Path, change: dict[str, Any]) -> None:
    """Copy a zip archive; `change` maps the end of a name to a function of its bytes, or to bytes of a new entry."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        folder = old.namelist()[0].split("/")[0]
        for name in old.namelist():
            data = old.read(name)
            for end, edit in change.items():
                if name.endswith(end) and callable(edit):
                    data = edit(data)
            new.writestr(name, data)
        for end, content in change.items():
            if isinstance(content, bytes):
                new.writestr(f"{folder}/{end}", content)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"models/model.json": lambda data: data.replace(b"torch.ops.aten.conv2d.default", b"torch.hub.load")},
            "torch.hub.load",
        ),
        (
            {
                "models/model.json": lambda data: data.replace(
                    b"torch.ops.aten.conv2d.default", b"_operator.methodcaller"
                )
            },
            "methodcaller",
        ),
        ({"models/model.json": lambda data: data.replace(b"{", b'{"expr_str": "__import__(1)", ', 1)}, "__import__"),
        ({"models/model.json": lambda data: data[:100]}, "whole PyTorch model"),
        ({"data/constants/opaque_obj_0": pickle.dumps(Evil())}, "pickle"),
        ({"data/aotinductor/model/a.so": b"\x7fELF"}, "code"),
        (
            {
                "models/model.json": lambda data: data.replace(
                    b"torch.ops.aten.conv2d.default", b"torch.ops.aten.from_file.default"
                )
            },
            "from_file",
        ),
        ({"models/model.json": lambda data: data.replace(b"{", b'{"as_operator": "os.system", ', 1)}, "os.system"),
        ({"serialized_exported_program.json": b'{"target": "os.system", "inputs": []}'}, "os.system"),
        ({"models/MODEL.json": b"{}"}, "entries under"),
        ({"models/model.json": lambda data: b"[" * 100_000}, "whole PyTorch model"),
        ({"models/model.json": lambda data: b"\xff\xfe"}, "whole PyTorch model"),
    ],
)
def test_a_program_with_anything_but_tensor_operators_is_refused(
    tmp_path: Path, exported: Path, change: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _altered(exported, tmp_path / "model.pt2", change)
    with pytest.raises((ModelFileError, UnsupportedOperatorError), match=says):
        load_source(tmp_path, _describe("torch", "model.pt2"))
    assert not (tmp_path / "hacked").exists()


CODE = "__import__('os').system('touch hacked')"


@pytest.mark.parametrize("place", ["guards", "argument", "node", "structure", "parameter", "key"])
def test_python_in_a_program_does_not_run(
    tmp_path: Path, exported: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(text: bytes) -> bytes:
        program = json.loads(text)
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        if place == "guards":
            program["guards_code"] = [CODE]
        elif place == "argument":
            signature["forward_arg_names"] = [f"input={CODE}"]
        elif place == "structure":
            signature["in_spec"] = signature["in_spec"].replace('"null"', json.dumps(json.dumps([f"x={CODE}"])))
        elif place == "key":
            program["graph_module"]["graph"]["tensor_values"][f"x={CODE}"] = 1
        else:
            name = "conv2d" if place == "node" else "p_0_weight"
            return json.dumps(program).replace(f'"{name}"', json.dumps(f"{name}={CODE}")).encode()
        return json.dumps(program).encode()

    monkeypatch.chdir(tmp_path)
    _altered(exported, tmp_path / "model.pt2", {"models/model.json": change})
    if place == "guards":
        model = load_source(tmp_path, _describe("torch", "model.pt2"))
        assert model.run(np.zeros((1, 1, 8, 8), np.float32))[0].shape == (1, 10) and list(
            model.layers(np.zeros((1, 1, 8, 8), np.float32))
        )
    else:
        with pytest.raises(ModelFileError, match="__import__"):
            load_source(tmp_path, _describe("torch", "model.pt2"))
    assert not (tmp_path / "hacked").exists()


def test_a_pickle_among_the_example_inputs_does_not_run(
    tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    _altered(exported, tmp_path / "model.pt2", {"data/sample_inputs/model.pt": lambda _: buffer.getvalue()})
    try:
        load_source(tmp_path, _describe("torch", "model.pt2"))
    except ModelFileError:
        pass
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "state",
    [{1: "t"}, {"a": 1}, ["t"], "t", {("a",): "t"}, {None: "t"}, {"a": {"b": "t"}}, {}, {"0.weight": "t"}],
)
def test_state_dicts_that_are_none(tmp_path: Path, state: Any) -> None:
    import torch

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(part) for key, part in value.items()}
        return torch.zeros(2) if value == "t" else value

    torch.save(filled(state), tmp_path / "model.pt")
    with pytest.raises(ModelFileError):
        load_source(tmp_path, _describe("torch", "model.pt", "digits_cnn"))


@pytest.mark.parametrize("kind", ["expanded", "sparse", "quantized", "complex", "meta", "nested"])
def test_tensors_of_odd_kinds_are_one_error(tmp_path: Path, kind: str) -> None:
    import torch

    from tvmflow.sources.networks.torch_zoo import build

    state = dict(build("digits_cnn", 1).state_dict())
    name = next(iter(state))
    state[name] = {
        "expanded": lambda: torch.zeros(1).expand(1 << 40),
        "sparse": lambda: torch.eye(3).to_sparse(),
        "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8),
        "complex": lambda: torch.zeros(2, dtype=torch.complex64),
        "meta": lambda: torch.zeros(1 << 40, device="meta"),
        "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    }[kind]()
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ModelFileError):
        load_source(tmp_path, _describe("torch", "model.pt", "digits_cnn"))


HEADERS = st.recursive(
    st.none() | st.integers(-(2**63), 2**63) | st.sampled_from(["F32", "I64", "BOOL", "", "F4096"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@FILES
@given(HEADERS, st.none() | st.integers(0, 2**64 - 1))
def test_any_safetensors_header_is_one_clear_error(tmp_path: Path, header: Any, length: int | None) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes((length or len(text)).to_bytes(8, "little") + text + b"\0" * 16)
    with pytest.raises(ModelFileError):
        load_source(tmp_path, _describe("torch", "model.safetensors", "digits_cnn"))


@FILES
@given(
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 1 << 20)
)
def test_altered_programs_are_read_or_one_clear_error(
    tmp_path: Path, exported: Path, flips: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(exported.read_bytes())
    for at, value in flips:
        data[at % len(data)] = value
    (tmp_path / "model.pt2").write_bytes(bytes(data[: len(data) - (cut % len(data) if cut % 3 == 0 else 0)]))
    try:
        load_source(tmp_path, _describe("torch", "model.pt2"))
    except TvmflowError:
        pass


@FILES
@given(data=st.data(), value=st.sampled_from([None, -1, 10**18, "x", [], {}, True, "Symbol('s0')", float("nan")]))
def test_programs_with_altered_values_are_read_or_one_clear_error(
    tmp_path: Path, exported: Path, data: st.DataObject, value: Any
) -> None:
    def change(text: bytes) -> bytes:
        program = json.loads(text)
        place: Any = program
        for _ in range(data.draw(st.integers(1, 9))):
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
                place[key] = value
                break
            place = place[key]
        return json.dumps(program).encode()

    _altered(exported, tmp_path / "model.pt2", {"models/model.json": change})
    try:
        load_source(tmp_path, _describe("torch", "model.pt2"))
    except TvmflowError:
        pass
