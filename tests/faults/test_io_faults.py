"""Test that after each fault of a file system there is one error, nothing half-written, and the next run repairs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.heavy


def _inject(*words: str) -> int:
    """Return how many faults were injected."""
    command = [sys.executable, "-m", "tests.faults.io_faults", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert found["refused"] > found["injected"] // 2 and found.get("failed", 0) == 0
    return found["injected"]


def test_some_faults_are_one_error_and_are_repaired() -> None:
    assert _inject("--step", "29") > 20


@pytest.mark.slow
def test_every_fault_is_one_error_and_is_repaired() -> None:
    assert _inject() >= 1000
