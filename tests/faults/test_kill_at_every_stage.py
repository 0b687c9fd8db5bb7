"""Kill every stage with SIGKILL: earlier outputs stay, and the same command continues."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import CELL, REPOSITORY, stage, tvmflow
from tvmflow.config.params import STAGE_NAMES
from tvmflow.tuning.records.record import read_records

SLUG = "digits_torch.local-cpu.float32"


def _start(root: Path, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_for(root: Path, pattern: str, process: subprocess.Popen[bytes], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not list(root.glob(pattern)):
        assert process.poll() is None and time.monotonic() < deadline, f"ended or too late, no {pattern}"
        time.sleep(0.01)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_kill_at_every_stage_and_go_on(copy_of_finished: Path, tmp_path: Path) -> None:
    """Of the stages that hold no random choice or measured time, three are made again: the others cost minutes."""
    root = copy_of_finished
    for folder in ("artifacts/.index", ".dvc/cache", "dvc_storage"):  # nothing to restore outputs from is left
        shutil.rmtree(root / folder)
    for name in STAGE_NAMES:
        folder, kept = root / "artifacts" / name / SLUG, tmp_path / name
        folder.rename(kept)
        process = _start(root, "tasks", name, CELL, "--root", str(root))
        _wait_for(root, f"artifacts/.tmp/{name}.{SLUG}.new-*", process)
        time.sleep(0.3)
        _kill_group(process)
        assert not folder.exists(), f"{name} left something that looks finished"
        if name in ("graph_pack", "tune", "build"):
            assert "made" in stage(root, name).stdout
            assert not list((root / "artifacts" / ".tmp").glob(f"{name}.*"))
        else:
            kept.rename(folder)
    outcomes = json.loads(tvmflow(root, "run", CELL, "--json", "--dry-run").stdout)[CELL]
    assert {row["state"] for row in outcomes if row["stage"] not in ("deploy", "evaluate")} == {"hit"}


def test_kill_the_whole_pipeline_while_it_tunes(copy_of_finished: Path, with_prefect_server: str) -> None:
    """The measurements that were written stay, and the next run does not repeat them."""
    root = copy_of_finished
    log = root / "artifacts" / "tuning_log" / f"{SLUG}.jsonl"
    log.unlink()
    text = (root / "params.yaml").read_text()
    assert "trials_per_workload: 2" in text
    (root / "params.yaml").write_text(text.replace("trials_per_workload: 2", "trials_per_workload: 4"))
    process = _start(root, "tvmflow", "--root", str(root), "run", CELL)
    deadline = time.monotonic() + 120
    while not log.exists() or len(read_records(log)) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1.0)
    kept = read_records(log)
    stage(root, "tune")
    after = read_records(log)
    assert after[: len(kept)] == kept
    seen = [(record.workload, tuple(sorted(record.knobs.items()))) for record in after]
    twice = [key for key in seen if seen.count(key) > 1]
    assert not twice, f"measured twice: {[r for r in after if (r.workload, tuple(sorted(r.knobs.items()))) in twice]}"
