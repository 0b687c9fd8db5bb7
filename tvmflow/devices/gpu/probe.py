"""Find the GPUs that a system can compute on, by the self-tests of runtime/gpu in a separate process.

Drivers crash, hang and claim features that do not work: a GPU is usable when its self-tests pass, not when it is
listed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from tvmflow.devices.gpu_facts import _MOST_BYTES, Probed, describe_signal, read_probe
from tvmflow.devices.programs import probe_sources, run_compiler
from tvmflow.support.errors import DeviceError
from tvmflow.support.files import digest_of, sha256_of
from tvmflow.support.paths import RUNTIME
from tvmflow.toolchain.environments import cache_folder

TIME_LIMIT_S = 60.0
"""API -> self-tests without which a GPU is of no use."""
_COMPILE = ("-std=c11", "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-s")


def probe_program(compiler: Sequence[str] = ("gcc",)) -> Path:
    """Return the probe program, compiled if necessary. Raises ToolchainError."""
    sources = [RUNTIME / "gpu" / "main.c", *probe_sources()]
    digests = {file.name: sha256_of(file) for file in (RUNTIME / "gpu").iterdir() if file.is_file()}
    folder = cache_folder() / "gpu-probe" / digest_of([digests, list(compiler)])[:16]
    program = folder / "gpu-probe"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not program.exists():
            unfinished = folder / "unfinished"
            command = [*compiler, *_COMPILE, "-o", str(unfinished), *map(str, sources), "-ldl"]
            run_compiler(command, "the GPU probe", "install gcc")
            unfinished.replace(program)
    return program


def probe(
    program: Path,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    limit_s: float = TIME_LIMIT_S,
) -> Probed:
    """Run the probe; if a driver crashes or hangs, only the remaining output is lost. Raises DeviceError if it does not
    start.
    """
    command = [str(program), *options]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except OSError as error:
        raise DeviceError(f"the GPU probe does not start: {error.strerror}", "a program of this machine") from None
    ended = ""
    try:
        output, _ = process.communicate(timeout=limit_s)
        if process.returncode:
            code = process.returncode
            ended = describe_signal(-code) if code < 0 else f"it ended with exit code {code}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        ended = f"it did not end within {limit_s:g} s"
    return read_probe(output[:_MOST_BYTES].decode("ascii", errors="replace"), ended)
