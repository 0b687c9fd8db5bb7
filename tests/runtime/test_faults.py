"""Test the library and apps while one call of the C library fails, each in turn: memory, threads, locks, files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.test_apps import PIXELS, _copied, _frame, tiny
from tests.runtime.test_c import _sources
from tvmflow.codegen.network.runtime_sources import RUNTIME

__all__ = ["tiny"]  # a fixture
FOLDER = Path(__file__).parent / "faults"
FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{RUNTIME / 'include'}", "-pthread")


def build_program(folder: Path) -> Path:
    """Compile the program that uses a library while a call fails."""
    sources = [str(FOLDER / name) for name in ("shim.c", "main.c")]
    subprocess.run(["gcc", *FLAGS, "-rdynamic", *sources, "-o", str(folder / "faults"), "-ldl"], check=True)
    return folder / "faults"


def calls_that_fail(program: Path, library: Path, *driver: Path) -> int:
    """Return how many calls failed, one after the other."""
    done = subprocess.run([program, library, *driver], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[0])


def test_every_call_may_fail(tiny: Path, tmp_path: Path) -> None:
    program, own = build_program(tmp_path), [str(path) for path in _sources(".") if path.name != "driver.c"]
    command = ["gcc", *FLAGS, f"-I{RUNTIME / 'src'}", "-shared", "-fPIC", *own, "-o", str(tmp_path / "hand.so"), "-lm"]
    subprocess.run(command, check=True)
    assert calls_that_fail(program, tmp_path / "hand.so") > 40  # loops, workspaces, a profile
    assert calls_that_fail(program, tiny) > 20  # images


@pytest.mark.parametrize("app", ["c", "cpp"])
def test_an_app_ends_with_one_line(app: str, tiny: Path, tmp_path: Path) -> None:
    folder, shim, count = _copied(app, tmp_path, tiny), tmp_path / "shim.so", tmp_path / "count"
    subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", str(FOLDER / "shim.c"), "-o", str(shim), "-ldl"], check=True)
    given = _frame(tmp_path, PIXELS)
    if app == "c":
        np.array([3, 1, 9, 0, 7, 2], np.float32).tofile(tmp_path / "input.bin")
        given = tmp_path / "input.bin"

    def run(at: int) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LD_PRELOAD": str(shim), "FAULT_AT": str(at), "FAULT_COUNT": str(count)}
        command = ["./app", str(given)]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    expected = run(10**6)
    calls, refused = int(count.read_text()), 0
    for at in range(1, calls + 1):
        done = run(at)
        if done.returncode == 0:
            assert (done.stdout, done.stderr) == (expected.stdout, ""), at
            continue
        refused += 1
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and not done.stdout, (at, done)
    assert expected.returncode == 0 and calls > 15 and refused > 8, (calls, refused)
