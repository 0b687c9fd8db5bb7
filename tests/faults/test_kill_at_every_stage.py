"""kill -9 at every stage: what was there stays, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import CELL, REPOSITORY, stage, tvmflow
from tvmflow.params import STAGE_NAMES
from tvmflow.tuning.records import read_records

SLUG = "digits_torch.local-cpu.float32"


def _start(root: Path, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *command], cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _wait_for(root: Path, pattern: str, process: subprocess.Popen[bytes], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not list(root.glob(pattern)):
        assert process.poll() is None and time.monotonic() < deadline, f"ended or too late, no {pattern}"
        time.sleep(0.01)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_kill_at_every_stage_and_go_on(make_workspace: Callable[..., Path]) -> None:
    root = make_workspace()
    digests: dict[str, str] = {}
    for name in STAGE_NAMES:
        process = _start(root, "tasks", name, CELL, "--root", str(root))
        _wait_for(root, f"artifacts/.tmp/{name}.{SLUG}.new-*", process)
        time.sleep(0.3)
        _kill_group(process)
        assert not (root / "artifacts" / name / SLUG).exists(), f"{name} left something that looks finished"
        for before, digest in digests.items():
            assert (root / "artifacts" / before / SLUG / "record.json").read_text() == digest
        assert "made" in stage(root, name).stdout
        digests[name] = (root / "artifacts" / name / SLUG / "record.json").read_text()
        assert not list((root / "artifacts" / ".tmp").glob("*"))
    card = json.loads((root / "artifacts" / "evaluate" / SLUG / "scorecard.json").read_text())
    assert card["accuracy"]["built"] == card["accuracy"]["source"]


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
    tvmflow(root, "run", CELL)
    after = read_records(log)
    assert after[: len(kept)] == kept
    seen = [(record.workload, tuple(sorted(record.knobs.items()))) for record in after]
    twice = [key for key in seen if seen.count(key) > 1]
    assert not twice, f"measured twice: {[r for r in after if (r.workload, tuple(sorted(r.knobs.items()))) in twice]}"


def test_ctrl_c_ends_at_once_and_leaves_no_process(copy_of_finished: Path, with_prefect_server: str) -> None:
    import psutil

    root = copy_of_finished
    (root / "params.yaml").write_text(
        (root / "params.yaml")
        .read_text()
        .replace("min_seconds: 0.2", "min_seconds: 30.0")
        .replace("max_seconds: 2.0", "max_seconds: 60.0")
    )
    process = _start(root, "tvmflow", "--root", str(root), "run", CELL)
    _wait_for(root, f"artifacts/.tmp/evaluate.{SLUG}.new-*", process, 120)
    time.sleep(3)
    family = psutil.Process(process.pid).children(recursive=True)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert time.monotonic() - started < 20
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive, [p.cmdline() for p in alive]
