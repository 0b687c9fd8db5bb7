"""Test that only plain files are read, whatever else has their name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tvmflow.frontends.registry import FRONTENDS
from tvmflow.sandbox.process import Policy, run_in_sandbox
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights
from tvmflow.support.digests import Digests
from tvmflow.support.errors import ModelFileError, SourceError
from tvmflow.support.plain_files import copy_plain, is_plain, open_plain, read_plain
from tvmflow.support.progress import silent

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----"


def _socket(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a socket": _socket,
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    SPECIAL[kind](path)
    assert not is_plain(path)
    for read in (
        lambda: open_plain(path, links=True),
        lambda: read_plain(path, 10, links=True),
        lambda: copy_plain(path, tmp_path / "copy", 10, links=True),
        lambda: Digests().sha256_of(path),
    ):
        with pytest.raises(OSError, match=kind):
            read()
    with pytest.raises(OSError, match="not a plain file"):
        open_plain(path)


@pytest.mark.parametrize("kind", sorted(SPECIAL.keys() - {"a folder"}))
def test_no_sandbox_starts_to_read_what_would_hold_it(tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "image.png"
    SPECIAL[kind](path)
    (tmp_path / "link").symlink_to(path)
    for one in (path, tmp_path / "link"):
        with pytest.raises(ModelFileError, match=f"{one} is {kind}"):
            run_in_sandbox("builtins:print", {}, Policy(10.0, reads=(tmp_path / "folder", one)))


def test_links_are_followed_only_if_asked_for_and_sizes_have_limits(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("file")
    assert read_plain(tmp_path / "link", 10, links=True) == read_plain(tmp_path / "file", 10) == b"0123456789"
    assert is_plain(tmp_path / "file") and not is_plain(tmp_path / "link") and not is_plain(tmp_path / "none")
    for read in (read_plain, lambda path, _: copy_plain(path, tmp_path / "copy", 10)):
        with pytest.raises(OSError, match="it is a link, not a plain file"):
            read(tmp_path / "link", 10)
    with pytest.raises(OSError, match="more than 9 bytes"):
        read_plain(tmp_path / "file", 9)
    with pytest.raises(OSError, match="more than 9 bytes"):
        copy_plain(tmp_path / "file", tmp_path / "copy", 9)
    assert not (tmp_path / "copy").exists()
    with pytest.raises(OSError, match="more than 100 bytes"):
        copy_plain("/proc/self/environ", tmp_path / "copy", 100)  # its size is 0 until it is read
    assert not (tmp_path / "copy").exists()


def _fetch(root: Path, framework: str, file: str) -> Path:
    out = root / "out"
    out.mkdir()
    limits = DownloadLimits(1 << 20)
    files = FRONTENDS[framework].files
    request = WeightsRequest(framework, None, {"file": file}, root, limits, root / "downloads", files)
    return fetch_weights(request, out, None, silent)


@pytest.mark.parametrize("kind", ["a link", "a pipe", "a device"])
def test_parameters_beside_a_model_are_no_link_and_no_pipe(tmp_path: Path, kind: str) -> None:
    (tmp_path / "id_rsa").write_bytes(SECRET)
    (tmp_path / "net-symbol.json").write_text("{}")
    make = {**SPECIAL, "a link": lambda path: path.symlink_to("id_rsa")}[kind]
    make(tmp_path / "net-0000.params")
    with pytest.raises(ModelFileError, match=r"net-0000\.params is no plain file"):
        _fetch(tmp_path, "mxnet", "net-symbol.json")
    assert not any(SECRET in path.read_bytes() for path in (tmp_path / "out").iterdir())


def test_a_model_may_be_a_link_but_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"onnx")
    (tmp_path / "model.keras").symlink_to("blob")  # as caches of downloads have it
    assert _fetch(tmp_path, "keras", "model.keras").read_bytes() == b"onnx"
    os.mkfifo(tmp_path / "pipe.keras")
    (tmp_path / "out").rename(tmp_path / "before")
    with pytest.raises((SourceError, ModelFileError)):
        _fetch(tmp_path, "keras", "pipe.keras")
