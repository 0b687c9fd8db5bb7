"""The agent as a program: compiled for a device's processor, started on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvmflow.support.errors import DeviceError, last_words

START_TIMEOUT_S = 30.0


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
    command: Sequence[str],
    folder: str,
    options: Sequence[str] = (),
    secret: bytes | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningAgent]:
    """Start an agent and end it with this. command: what starts the program, of its emulator too; environment: beside
    this one's. Raises DeviceError.
    """
    secret = secret or new_secret()
    process = subprocess.Popen(
        [*command, "--folder", folder, "--life-line", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
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
    """Give an agent that was just started its secret; returns the port that it says. Raises DeviceError with what it
    said instead.
    """
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
