"""Test how a self-contained library chooses the threads of each kernel: on a simulated machine and in networks."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tvmflow.codegen.network.runtime_sources import RUNTIME

_FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined")


def test_the_teams_that_are_fastest_are_chosen(tmp_path: Path) -> None:
    program = tmp_path / "teams"
    sources = [Path(__file__).parent / "teams" / "main.c", RUNTIME / "src" / "teams.c"]
    subprocess.run(["gcc", *_FLAGS, f"-I{RUNTIME / 'src'}", "-o", program, *sources], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stderr
