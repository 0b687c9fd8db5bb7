"""Test that no secret of a setting or a variable reaches a file or an output."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import tvmflow
from tests.tracking.ledger_bench import LedgerBench
from tests.tracking.mlflow_server import MlflowServer
from tvmflow.config.params import load_params
from tvmflow.support.errors import ParamsError, StoreError
from tvmflow.support.secrets import mask, mask_process

_NAMES = (
    "MLFLOW_TRACKING_URI",
    "TVMFLOW_MLFLOW_UI",
    "MLFLOW_TRACKING_PASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "PREFECT_API_KEY",
    "TVMFLOW_SIGNING_KEY",
    "HTTPS_PROXY",
)
PLANTED = {name: f"planted-{name.lower()}" for name in _NAMES}  # a text that no source holds
IN_FILES = {name: f"planted-{number}" for number, name in enumerate((".dvc/config.local", ".git/config"))}


def _plant(root: Path, server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in PLANTED.items():
        address = server.uri.replace("://", f"://me:{secret}@")
        is_address = name.endswith(("_URI", "_UI", "_PROXY"))
        monkeypatch.setenv(name, address if is_address else secret)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with (root / ".dvc" / "config.local").open("a") as file:
        file.write(f"['remote \"team\"']\n    url = webdavs://example.org/dvc\n    password = {IN_FILES[file_of(0)]}\n")
    address = f"https://me:{IN_FILES[file_of(1)]}@example.org/models.git"
    subprocess.run(["git", "remote", "add", "origin", address], cwd=root, check=True)


def file_of(at: int) -> str:
    return list(IN_FILES)[at]


def _leaks(root: Path) -> list[str]:
    """Return the files below a folder that hold a secret, apart from those in which it was planted."""
    secrets = [secret.encode() for secret in (*PLANTED.values(), *IN_FILES.values())]
    found = []
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not path.is_symlink() and name not in IN_FILES:
            data = path.read_bytes()
            found += [f"{name}: {secret.decode()}" for secret in secrets if secret in data]
    return found


@pytest.mark.slow
def test_no_file_and_no_output_of_a_run_holds_a_secret(
    copy_of_finished: Path, server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_of_finished
    _plant(root, server, monkeypatch)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    said = {}
    for command in (
        ("run", "digits"),
        ("history", "digits", "--json"),
        ("report",),
        ("doctor",),
        ("promote", "digits"),
    ):
        done = tvmflow(root, *command, code=None)
        said[" ".join(command)] = done.stdout + done.stderr
    assert "digits" in said["history digits --json"] and (root / ".prefect" / "prefect.db").is_file(), said
    spoken = [f"{name}: {s}" for name, text in said.items() for s in PLANTED.values() if s in text]
    assert not [*spoken, *_leaks(root), *_leaks(tmp_path / "temporary")], said


@pytest.mark.heavy
def test_a_traceback_is_masked(ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:planted-word@127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said = tvmflow(ledger.root, "--debug", "history", "digits", code=1).stderr
    assert "Traceback" in said and "127.0.0.1" in said and "planted-word" not in said


@pytest.mark.parametrize(
    "address",
    ["https://me:word@host/model.onnx", "https://token@host/model.onnx", "https://host/m.onnx?X-Amz-Signature=abc"],
)
def test_an_address_with_a_secret_is_refused_in_params(address: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    weights = {"url": "https://host/model.onnx", "sha256": "0" * 64, "parts": [{"url": address, "sha256": "0" * 64}]}
    path.write_text(yaml.safe_dump({"models": {"net": {"framework": "onnx", "weights": weights}}}))
    with pytest.raises(ParamsError, match=r"models\.net\.weights\.parts\.0\.url") as caught:
        load_params(path)
    assert ".netrc" in caught.value.hint and address not in str(caught.value)


def test_errors_and_logs_are_masked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a-long-token")
    error = StoreError("no https://me:a@b@host/x?a=1&token=b", "a-long-token", "ssh://git@host/x postgresql://u:p@h/db")
    assert str(error).split("\n  ") == [
        "no https://host/x?a=1&token=***",
        "expected: ***",
        "hint: ssh://git@host/x postgresql://h/db",
    ]
    assert error.args == (error.found,) and error.to_json()["found"] == error.found
    assert mask("http://host/a@b") == "http://host/a@b"
    before = logging.getLogRecordFactory()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        mask_process()
        mask_process()
        try:
            raise ValueError(f"lost {os.environ['MLFLOW_TRACKING_TOKEN']}")
        except ValueError:
            logging.getLogger("tests").exception("at %s", "http://me:word@host")
    finally:
        logging.setLogRecordFactory(before)
    assert "at http://host" in caplog.text and "lost ***" in caplog.text
    assert "word" not in caplog.text and "a-long-token" not in caplog.text
