"""Fuzz the readers for a few seconds from valid files, guided by coverage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.conftest import REPOSITORY
from tests.fuzz.seeds import params_bytes, symbol_json


def test_no_bytes_make_the_mxnet_readers_raise_anything_else(tmp_path: Path) -> None:
    arrays = {"arg:w": np.ones((2, 3), np.float32), "aux:m": np.ones(2, np.float16)}
    for version in range(4):
        (tmp_path / f"p{version}").write_bytes(b"\0" + params_bytes(arrays, version))
    (tmp_path / "s").write_bytes(b"\xff" + symbol_json([("null", "data", {}, []), ("relu", "a", {}, [0])], 1).encode())
    command = [
        "sh",
        "-c",
        '"$@"; exit $?',
        "sh",  # Linux counts the memory of who starts a program as the program's peak
        sys.executable,
        "-m",
        "tests.fuzz.fuzz_mxnet",
        "-max_total_time=10",
        "-rss_limit_mb=1500",
        "-seed=1",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "cov:" in done.stderr  # it did look at what the readers execute
