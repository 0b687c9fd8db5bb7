"""The agent as a program: compiled for a device's processor, started on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmflow.support.errors import DeviceError, ToolchainError, error_words, last_words
from tvmflow.support.paths import RUNTIME

START_TIMEOUT_S = 30.0
_COMPILE = ("-x", "c", "-std=c11", "-O2", "-Wall", "-Wextra", "-fPIE", "-D_FILE_OFFSET_BITS=64")
_LINK = ("-pie", "-Wl,--as-needed", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,max-page-size=16384", "-s")


def probe_sources() -> list[Path]:
    """Return the files that the probe of GPUs is compiled of, without its main program: the others of the folder run networks."""
    return [RUNTIME / "gpu" / f"{name}.c" for name in ("gpu_probe", "opencl", "probe_opencl", "probe_vulkan", "vulkan")]


def agent_sources() -> list[Path]:
    """Return the files that the agent is compiled of: its own, what looks at the processor, and the probe of GPUs."""
    return sorted([*(RUNTIME / "agent").glob("*.c"), *(RUNTIME / "measure").glob("*.c"), *probe_sources()])


def build_agent(path: Path, compiler: Sequence[str]) -> Path:
    """Compile the agent. compiler: of C, with what chooses its processor. Raises ToolchainError."""
    include = [
        *(f"-I{RUNTIME / name}" for name in ("include", "gpu", "measure")),
        f"-ffile-prefix-map={RUNTIME}=runtime",
    ]
    with tempfile.TemporaryDirectory(prefix="tvmflow-agent-") as folder:
        objects = []
        for source in agent_sources():
            objects.append(f"{folder}/{source.stem}.o")
            run_compiler([*compiler, *_COMPILE, *include, "-c", str(source), "-o", objects[-1]], "the agent")
        run_compiler([*compiler, *_LINK, "-o", str(path), *objects, "-pthread", "-ldl"], "the agent")
    return path


def run_compiler(command: Sequence[str], what: str, hint: str = "set cc: of the target") -> None:
    """Compile a program for a device. Raises ToolchainError, which says what could not be compiled, with a hint."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{what} cannot be compiled: {error}", "a compiler of C for the device", hint) from None
    if done.returncode:
        raise ToolchainError(
            f"{command[0]} does not compile {what}: {error_words(done.stderr)}", "a compiler of C11 for the device"
        )


def new_secret() -> bytes:
    """Return a secret that nobody can guess, as text in one line."""
    return secrets.token_hex(32).encode()


@dataclass(frozen=True)
class RunningAgent:
    """An agent on this machine. process: ends with its standard input."""

    process: subprocess.Popen[bytes]
    port: int
    secret: bytes


@contextlib.contextmanager
def running_agent(
    command: Sequence[str], folder: str, options: Sequence[str] = (), secret: bytes | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningAgent]:  # fmt: skip
    """Start an agent and end it with this. command: what starts the program, of its emulator too; environment: beside this one's. Raises DeviceError."""
    secret = secret or new_secret()
    process = subprocess.Popen(
        [*command, "--folder", folder, "--life-line", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        yield RunningAgent(process, told_port(process, secret), secret)
    finally:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


def told_port(process: subprocess.Popen[bytes], secret: bytes) -> int:
    """Give an agent that was just started its secret; returns the port that it says. Raises DeviceError with what it said instead."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    with contextlib.suppress(OSError):
        process.stdin.write(secret + b"\n")
        process.stdin.flush()
    line = process.stdout.readline(1000)
    timer.cancel()
    try:
        return int(json.loads(line)["port"])
    except (ValueError, KeyError, TypeError):
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.kill()
        said = last_words(line + b"\n" + process.stderr.read(20_000)) or "nothing"
        raise DeviceError(
            f"the agent did not start; it said: {said}",
            "a program for the device's processor, and a folder that it may write",
        ) from None
