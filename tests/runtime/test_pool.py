"""Test the thread pool of network.so alone, under the thread and memory sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tvmflow.codegen.network.runtime_sources import RUNTIME

_FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_each_step_of_a_loop_runs_once(sanitizer: str, tmp_path: Path) -> None:
    program = tmp_path / "pool"
    folders = [f"-I{RUNTIME / folder}" for folder in ("src", "include")]
    sources = [Path(__file__).parent / "pool" / "main.c", RUNTIME / "src" / "pool.c"]
    subprocess.run(["gcc", *_FLAGS, f"-fsanitize={sanitizer}", *folders, "-o", program, *sources], check=True)
    for threads in (1, 2, 4, 5, 9, 16):
        done = subprocess.run([program, str(threads)], capture_output=True, text=True, timeout=300, check=False)
        assert not done.returncode, f"{threads} threads: {done.stdout}{done.stderr[-2000:]}"
