"""Test that a network goes on in a child of fork, as Python's multiprocessing makes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.runtime.test_c import RUNTIME, _sources

APP = """
import _ctypes, ctypes, multiprocessing, os, signal, sys
import numpy as np
from tvmflow_network import Network

network, x = Network(sys.argv[1], threads=2), np.arange(1000, dtype=np.float32).reshape(1, 1000)
expected = [y.tobytes() for y in network(x)]

def run(_):
    signal.alarm(20)
    return [[y.tobytes() for y in network(x)] for _ in range(20)] == [expected] * 20

child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if run(0) else 1)
assert os.waitpid(child, 0)[1] == 0, "os.fork"
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(run, range(4)) == [True] * 4
assert run(0)
network.close()
library = ctypes.CDLL(sys.argv[1])
for _ in range(2):  # the binding opened it, too
    _ctypes.dlclose(library._handle)
assert sys.argv[1] not in open("/proc/self/maps").read()
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_computes_the_same(tmp_path: Path) -> None:
    sources = [str(path) for path in _sources(".") if path.name != "driver.c"]
    folders = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}"]
    command = ["gcc", "-std=c11", "-O2", "-shared", "-fPIC", *folders, *sources, "-o", "network.so", "-pthread", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", APP, str(tmp_path / "network.so")],
        env={"PYTHONPATH": str(RUNTIME / "python"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
