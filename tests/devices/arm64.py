"""Build libraries for arm64 with a cross compiler, and run them under qemu by runtime/emulator/run.c."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtime.test_network import _network
from tvmflow.backends.backend import Backend
from tvmflow.codegen.compile import Scheduled
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.compilers import compiler_for

TRIPLE = "aarch64-linux-gnu"


def target(processor: str) -> ResolvedTarget:
    return ResolvedTarget("llvm", processor, TRIPLE, (), 1, compiler_for(TRIPLE))


def compiled_runner(path: Path) -> Path:
    """Compile the program that runs a network. Raises ToolchainError where there is no cross compiler."""
    include = f"-I{RUNTIME / 'include'}"
    line = target("cortex-a53").compiler.line(
        "-O2", include, str(RUNTIME / "emulator" / "run.c"), "-o", str(path), "-ldl"
    )
    subprocess.run(line, check=True, timeout=300)
    return path


def linked(folder: Path, scheduled: Scheduled, outputs: int, backend: Backend) -> Path:
    """Return the network.so of a module with so many outputs."""
    path = folder / f"{backend.target.mcpu}.so"
    names = tuple(f"y{at}" for at in range(outputs))
    write_network(path, scheduled, _network(scheduled.module, names, 1), backend.target.compiler)
    return path


def ran(
    library: Path, runner: Path, system: EmulatedSystem, processor: str, inputs: list[np.ndarray[Any, Any]]
) -> bytes:
    """Run a network once; return its outputs, one behind the other."""
    given, found = library.with_suffix(".in"), library.with_suffix(".out")
    given.write_bytes(b"".join(x.tobytes() for x in inputs))
    words = [*system.command(processor), str(runner), str(library), "1", str(given), str(found)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return found.read_bytes()
