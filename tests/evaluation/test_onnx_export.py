"""The export for baselines: in a process of its own, its failures are reasons, and it does not outlive its import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvmflow.evaluation import onnx_export
from tvmflow.evaluation.onnx_export import exporting_onnx


class _Source:
    def __init__(self, write: Callable[[Path], None]) -> None:
        self.to_onnx = write


def _write_pid(path: Path) -> None:
    path.write_text(str(os.getpid()))


def _fail(path: Path) -> None:
    path.write_text("half")
    raise ValueError("no such operator\nmore of it")


def _die(path: Path) -> None:
    path.write_text("half")
    signal.raise_signal(signal.SIGSEGV)


def _never_end(path: Path) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(600)


@pytest.fixture(autouse=True, params=[True], ids=["fork"])
def forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork or not, whatever memory the tests before have taken."""
    monkeypatch.setattr(onnx_export, "can_fork", lambda: request.param)


def _export(write: Callable[[Path], None], path: Path) -> str:
    source: Any = _Source(write)
    with exporting_onnx(source, path) as finish:
        return finish()


def test_the_file_is_written_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "peer.onnx"
    assert _export(_write_pid, path) == ""
    assert int(path.read_text()) != os.getpid()


@pytest.mark.parametrize("forks", [False], indirect=True)
def test_a_large_model_is_written_here(tmp_path: Path) -> None:
    path = tmp_path / "peer.onnx"
    assert _export(_write_pid, path) == ""
    assert int(path.read_text()) == os.getpid()


@pytest.mark.parametrize("forks", [False, True], indirect=True)
def test_a_failure_is_a_reason_and_leaves_no_file(tmp_path: Path) -> None:
    assert _export(_fail, tmp_path / "peer.onnx") == "no such operator"
    assert not list(tmp_path.iterdir())


def test_a_crash_of_the_exporter_costs_the_file_alone(tmp_path: Path) -> None:
    assert _export(_die, tmp_path / "peer.onnx") == f"the export failed: it ended with status {-signal.SIGSEGV}"
    assert not list(tmp_path.iterdir())


def test_an_import_that_fails_ends_its_export(tmp_path: Path) -> None:
    path, source = tmp_path / "peer.onnx", _Source(_never_end)
    with pytest.raises(ValueError, match="the import"), exporting_onnx(source, path):  # type: ignore[arg-type]
        while not path.exists() or not path.read_text():
            time.sleep(0.01)
        raise ValueError("the import")
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)
