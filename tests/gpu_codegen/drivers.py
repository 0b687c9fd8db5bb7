"""Run networks on software GPU drivers, each in a process whose environment selects the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.support.paths import RUNTIME
from tvmflow.toolchain.software_gpus import SoftwareDriver

# Runs a library on samples as often as asked, on a GPU of these options; writes all outputs, and prints what it was
# made of.
_PROGRAM = """
import sys, time
import numpy as np
from tvmflow_network import Gpu, Network
library, samples, found, times, options = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), eval(sys.argv[5])
held = np.load(samples)
inputs = [held[name] for name in held.files]
begin = time.perf_counter()
with Network(library, gpu=Gpu(**options)) as network:
    opened = time.perf_counter() - begin
    outputs = []
    for _ in range(times):
        one = network(*inputs)
        outputs += one if isinstance(one, tuple) else (one,)
    network.profile()
    network(*inputs)
    rows = network.profile(False)
np.savez(found, *outputs)
print(opened, len(rows), sum(took for _, _, took in rows))
"""


def run_on(
    driver: SoftwareDriver, library: Path, inputs: tuple[Any, ...], folder: Path, times: int = 2, /, **options: str
) -> list[Any]:
    """Return the outputs of each run, one run's behind the other. Raises RuntimeError with what the library said."""
    samples, found = folder / "samples.npz", folder / "found.npz"
    np.savez(samples, *inputs)
    environment = {**os.environ, **driver.environment, "PYTHONPATH": str(RUNTIME / "python")}
    command = [sys.executable, "-c", _PROGRAM, str(library), str(samples), str(found), str(times), repr(options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else f"status {done.returncode}")
    held = np.load(found)
    return [held[name] for name in held.files]


# Runs a library for the CPU with one for a GPU beside it; writes the outputs, and prints who computed them.
_BESIDE = """
import sys
import numpy as np
from tvmflow_network import Network
cpu, gpu, samples, found = sys.argv[1:]
held = np.load(samples)
with Network(cpu, gpu_library=gpu) as network:
    np.savez(found, *network(*(held[name] for name in held.files)))
    print(network.processor.kind, network.processor.reason)
"""


def run_beside(
    driver: SoftwareDriver, cpu: Path, gpu: Path, inputs: tuple[Any, ...], folder: Path
) -> tuple[list[Any], str]:
    """Return the outputs of a library for the CPU that has one for a GPU beside it, and who computed them and why."""
    samples, found = folder / "samples.npz", folder / "found.npz"
    np.savez(samples, *inputs)
    environment = {**os.environ, **driver.environment, "PYTHONPATH": str(RUNTIME / "python")}
    command = [sys.executable, "-c", _BESIDE, *map(str, (cpu, gpu, samples, found))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
    held = np.load(found)
    return [held[name] for name in held.files], done.stdout.strip()


def fake_driver(source: Path, folder: Path, fault: str, *defines: str) -> Path:
    """Compile a driver of OpenCL that does one thing wrong, FAULT; return its library."""
    path = folder / f"libfake-{ord(fault)}.so"
    command = ["gcc", "-shared", "-fPIC", f"-DFAULT='{fault}'", *defines, f"-I{RUNTIME / 'gpu'}"]
    subprocess.run([*command, "-o", str(path), str(source)], check=True)
    return path
