"""Test that importing TVM neither imports PyTorch, which works alongside in any order, nor installs its handler of
segmentation faults.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAD = "import sys; from tvmflow.support.tvm_import import prepare_import_of_tvm; prepare_import_of_tvm()\n"
_BOTH = """
import numpy, torch, tvm
print(torch.from_dlpack(tvm.runtime.tensor(numpy.arange(3.0))).sum().item())
print(tvm.runtime.from_dlpack(torch.arange(4.0)).numpy().sum())
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _HEAD + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("first", ["import tvm\nassert 'torch' not in sys.modules", "import torch\nimport tvm"])
def test_tvm_does_not_bring_torch_along(first: str) -> None:
    done = _run(f"{first}\n{_BOTH}")
    assert done.returncode == 0 and done.stdout.split() == ["3.0", "6.0"], done.stderr


_CRASHES = """
import os, random, signal, time
for _ in range(60):
    if not (pid := os.fork()):
        while True:  # most of its time it allocates and frees, which its handler must not wait for
            [b"x" * random.randrange(600, 4000) for _ in range(1000)]
    time.sleep(random.uniform(0.003, 0.01))
    os.kill(pid, signal.SIGSEGV)
    end = time.monotonic() + 20
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            sys.exit("it did not end")
        time.sleep(0.002)
    assert os.waitstatus_to_exitcode(ended[1]) == -signal.SIGSEGV
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import tvm_ffi",
        "import faulthandler; faulthandler.enable(); import tvm",
        "sys.meta_path.pop(0); import tvm_ffi; prepare_import_of_tvm()",
    ],
)
def test_a_segmentation_fault_ends_the_process_and_names_where(imports: str) -> None:
    """TVM's handler deadlocks where the fault was in an allocation."""
    done = _run(f"{imports}\n{_CRASHES}")
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stderr.count("Fatal Python error: Segmentation fault") == 60


@pytest.mark.parametrize(
    "module",
    [
        "tasks.__main__",
        "tasks.server",
        "tasks.stage_elsewhere",
        "tvmflow.cli.app",
        "tvmflow.devices.rpc.local_server",
        "tvmflow.devices.rpc.vta_server",
        "tvmflow.sandbox.child",
        "tvmflow.tuning.measure.build_worker",
    ],
)
def test_a_program_prepares_before_it_imports_tvm(module: str) -> None:
    done = _run(f"import {module}\nassert not sys.modules.keys() & {{'tvm', 'tvm_ffi', 'torch'}}")
    assert done.returncode == 0, done.stderr
