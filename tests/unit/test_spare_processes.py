"""A process that waits for the next stage: used once, gone with who started it, never missed where it died."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import spare_process
from flows.spare_process import spare_processes, start_stage
from tasks.table import STAGES

ARGUMENTS = ["build", "no_such_cell", "--root"]


def _run(root: Path, log: Path) -> tuple[int, dict[str, object]]:
    """Return the process that ran a stage, and its last word."""
    with log.open("wb") as output:
        process, reader = start_stage([*ARGUMENTS, str(root)], [], output, log)
        with os.fdopen(reader, encoding="utf-8") as lines:
            last = json.loads(list(lines)[-1])
        process.wait()
    return process.pid, last


def _waiting() -> subprocess.Popen[bytes]:
    assert spare_process._spare is not None
    return spare_process._spare[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text("models: {}\n", encoding="utf-8")
    return tmp_path


def test_a_spare_serves_one_stage_and_each_stage_has_its_own_process(root: Path, tmp_path: Path) -> None:
    with spare_processes():
        spare = _waiting()
        first, error = _run(root, tmp_path / "log")
        second, again = _run(root, tmp_path / "log")
    assert first == spare.pid != second
    assert error == again and "no_such_cell" in json.dumps(error)


def test_a_spare_for_any_stage_serves_whichever_comes(root: Path, tmp_path: Path) -> None:
    for stage in ("", *STAGES):
        with spare_processes():
            _take_first(stage)
            spare = _waiting()
            pid, error = _run(root, tmp_path / "log")
        assert pid == spare.pid and "no_such_cell" in json.dumps(error)


def _take_first(after: str) -> None:
    """Put a spare that waits for what comes after a stage in the place of the one that is there."""
    spare = spare_process._take()
    assert spare is not None
    spare_process._discard(spare)
    spare_process.start_spare(after=after)


def test_a_spare_that_died_is_not_missed(root: Path, tmp_path: Path) -> None:
    with spare_processes():
        spare = _waiting()
        spare.kill()
        spare.wait()
        pid, error = _run(root, tmp_path / "log")
    assert pid != spare.pid and "no_such_cell" in json.dumps(error)


def test_no_spare_stays_behind(root: Path, tmp_path: Path) -> None:
    with spare_processes():
        spare = _waiting()
    assert spare.returncode is not None and spare_process._spare is None
    _run(root, tmp_path / "log")
    assert spare_process._spare is None


def test_a_spare_ends_with_who_started_it() -> None:
    code = (
        "import os; from flows import spare_process as s\n"
        "with s.spare_processes(): print(s._spare[0].pid, flush=True); os._exit(9)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
