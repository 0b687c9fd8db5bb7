"""Test files that are two zip archives: Python reads one of them, a framework's own parser another."""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY, tvmflow
from tvmflow.frontends.archives import checked_copy
from tvmflow.frontends.pytorch.files import damaged_file_error
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, one_input
from tvmflow.support.errors import ModelFileError, TvmflowError

pytestmark = pytest.mark.heavy

CODE = "__import__('os').system('touch hacked')"
END = struct.Struct("<4sHHHHIIH")


def _describe(file: str) -> SourceDescription:
    return SourceDescription("torch", None, file, one_input("input", (1, 1, 8, 8)))


def _zip(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def _two_archives(shown: dict[str, bytes], hidden: dict[str, bytes]) -> bytes:
    """Return a file in which zipfile finds `shown`: it takes the table before the end record, and shifts all offsets.

    A parser that takes the offset in the end record as it is finds `hidden`. Both have the same names.
    """
    first, second = _zip(hidden), _zip(shown)
    count, size, hidden_start = struct.unpack("<HII", first[-12:-2])
    shown_start = struct.unpack("<I", second[-6:-2])[0]
    padding = b"\0" * shown_start  # offsets of the second archive are at least 0 after the shift
    hidden_table = hidden_start + len(padding)
    base = hidden_table + size
    shift = base + shown_start - hidden_table
    table, at = bytearray(second[shown_start : shown_start + size]), 0
    while at < len(table):
        lengths = sum(struct.unpack_from("<HHH", table, at + 28))
        offset = struct.unpack_from("<I", table, at + 42)[0]
        struct.pack_into("<I", table, at + 42, offset + base - shift)
        at += 46 + lengths
    end = END.pack(b"PK\5\6", 0, 0, count, count, size, hidden_table, 0)
    return first[:hidden_start] + padding + first[hidden_start:-22] + second[:shown_start] + bytes(table) + end


def _files(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _program() -> dict[str, bytes]:
    import torch

    from tvmflow.sources.networks.torch_zoo import build

    out = io.BytesIO()
    torch.export.save(torch.export.export(build("digits_cnn", 1), (torch.zeros(1, 1, 8, 8),)), out)
    return _files(out.getvalue())


def _with_code(files: dict[str, bytes], code: str = CODE) -> dict[str, bytes]:
    """Return a program in which a size is an expression, which PyTorch evaluates as Python."""
    name = next(name for name in files if name.endswith("models/model.json"))
    program = json.loads(files[name])
    tensor = next(iter(program["graph_module"]["graph"]["tensor_values"].values()))
    tensor["sizes"][0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 1}}}
    return {**files, name: json.dumps(program).encode()}


def _script() -> dict[str, bytes]:
    import torch

    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    out = io.BytesIO()
    torch.jit.save(torch.jit.script(Plain()), out)
    return _files(out.getvalue())


def _that_saves(files: dict[str, bytes]) -> dict[str, bytes]:
    name = next(name for name in files if name.endswith(".py"))
    return {**files, name: files[name].replace(b"torch.add", b'torch.save(x, "hacked");torch.add')}


def test_python_and_pytorch_see_different_archives_in_the_file_of_these_tests(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "two.zip"
    path.write_bytes(_two_archives({"a/x": b"shown", "a/version": b"3\n"}, {"a/x": b"hidden", "a/version": b"3\n"}))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and archive.read("a/x") == b"shown"
    assert torch._C.PyTorchFileReader(str(path)).get_record("x") == b"hidden"
    with checked_copy(path, damaged_file_error) as copy:
        assert torch._C.PyTorchFileReader(str(copy)).get_record("x") == b"shown"
    assert not copy.exists()


@pytest.mark.parametrize("name", ["model.pt2", "model.torchscript", "model.pt"])
def test_a_program_behind_the_checked_one_does_not_run(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = _program() if name == "model.pt2" else _script()
    hidden = _with_code(shown) if name == "model.pt2" else _that_saves(shown)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(_two_archives(shown, hidden))
    outputs = load_source(tmp_path, _describe(name)).run(np.zeros((1, 1, 8, 8), np.float32))
    assert len(outputs) == 1 and not (tmp_path / "hacked").exists()


def test_a_name_in_capitals_hides_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch finds files of an archive whatever the case of their names."""
    files = {
        name.replace(".py", ".PY") if name.endswith(".py") else name: data
        for name, data in _that_saves(_script()).items()
    }
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.torchscript").write_bytes(_zip(files))
    with pytest.raises(TvmflowError, match=r"unknown operators: .*save"):
        load_source(tmp_path, _describe("model.torchscript")).run(np.zeros((1, 1, 8, 8), np.float32))
    assert not (tmp_path / "hacked").exists()


def _with_descriptors(files: dict[str, bytes]) -> bytes:
    class Stream(io.RawIOBase):
        data = b""

        def writable(self) -> bool:
            return True

        def write(self, part: Any) -> int:
            self.data += bytes(part)
            return len(part)

    out = Stream()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.data


def _large(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
    return out.getvalue()


def _renamed(files: dict[str, bytes]) -> bytes:
    """Return an archive whose entries have another name in a field of Info-ZIP's, and are links."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            entry, other = zipfile.ZipInfo(name), b"a/other"
            entry.extra = struct.pack("<HHBI", 0x7075, 5 + len(other), 1, zlib.crc32(name.encode())) + other
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, data)
    return out.getvalue()


@pytest.mark.parametrize("write", [_with_descriptors, _large, _renamed, lambda files: b"MZ" + bytes(99) + _zip(files)])
def test_the_copy_of_an_odd_archive_is_plain(write: Callable[[dict[str, bytes]], bytes], tmp_path: Path) -> None:
    import torch

    (tmp_path / "odd.pt2").write_bytes(write({"a/x": b"shown", "a/version": b"3\n"}))
    with checked_copy(tmp_path / "odd.pt2", damaged_file_error) as copy:
        assert torch._C.PyTorchFileReader(str(copy)).get_record("x") == b"shown"
        with zipfile.ZipFile(copy) as archive:
            found = [
                (one.filename, one.flag_bits, one.extra, stat.S_ISLNK(one.external_attr >> 16))
                for one in archive.infolist()
            ]
    assert found == [("a/x", 0, b"", False), ("a/version", 0, b"", False)]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("a/x", "A/X"), "entries under"),
        (("a/" + "x" * 300,), "302 characters"),
        (("a\\x",), "name"),
        (("a/\nx",), "name"),
        (("../x",), "name"),
        (("/x",), "name"),
    ],
)
def test_names_that_readers_take_differently_are_refused(tmp_path: Path, names: tuple[str, ...], says: str) -> None:
    (tmp_path / "model.pt2").write_bytes(_zip(dict.fromkeys(names, b"{}")))
    with pytest.raises(ModelFileError, match=says):
        load_source(tmp_path, _describe("model.pt2"))


@pytest.mark.parametrize("name", ["metadata", "guards_code", "expr_str", "target"])
def test_an_expression_of_a_tensor_with_the_name_of_notes_is_no_note(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = _program()
    path = next(one for one in files if one.endswith("models/model.json"))
    graph = json.loads(files[path])["graph_module"]["graph"]
    made = graph["nodes"][0]["outputs"][0]["as_tensor"]["name"]
    program = json.loads(files[path].decode().replace(f'"{made}"', f'"{name}"'))
    sizes = program["graph_module"]["graph"]["tensor_values"][name]["sizes"]
    sizes[0] = {"as_expr": {"expr_str": CODE, "hint": {"as_int": 1}}}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt2").write_bytes(_zip({**files, path: json.dumps(program).encode()}))
    with pytest.raises(ModelFileError, match="holds the expression"):
        load_source(tmp_path, _describe("model.pt2"))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("kind", ["two archives", "expression"])
def test_the_command_runs_no_code_of_a_file(tmp_path: Path, kind: str) -> None:
    """`add` reads the header, then converts the program, in the sandbox."""
    (tmp_path / "params.yaml").write_text((REPOSITORY / "params.yaml").read_text())
    shown, hidden = _program(), _with_code(_program(), f"__import__('os').system('touch {tmp_path}/hacked')")
    data = _zip(hidden) if kind == "expression" else _two_archives(shown, hidden)
    (tmp_path / "model.pt2").write_bytes(data)
    done = tvmflow(tmp_path, "add", "model.pt2", code=None)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "hacked").exists()
