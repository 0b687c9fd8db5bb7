"""Start an agent on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmflow.devices.this_host import end_process
from tvmflow.support.errors import DeviceError, last_words

START_TIMEOUT_S = 30.0


def new_secret() -> bytes:
    """Return an unguessable secret as one line of text."""
    return secrets.token_hex(32).encode()


@dataclass(frozen=True)
class AgentProcess:
    """An agent process on this machine. process: ends with its standard input."""

    process: subprocess.Popen[bytes]
    port: int
    secret: bytes


@contextlib.contextmanager
def start_agent(
    command: Sequence[str],
    folder: Path | str,
    options: Sequence[str] = (),
    secret: bytes | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[AgentProcess]:
    """Start an agent that ends with this context. command: the program with its emulator, if any; environment: added to
    this process's. Raises DeviceError.
    """
    secret = secret or new_secret()
    process = subprocess.Popen(
        [*command, "--folder", str(folder), "--life-line", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield AgentProcess(process, exchange_secret(process, secret), secret)
    finally:
        end_process(process)


def exchange_secret(process: subprocess.Popen[bytes], secret: bytes) -> int:
    """Send a new agent its secret and return the port that it prints. Raises DeviceError with its output otherwise."""
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
            "a program for the device's processor, and a folder that it can write",
        ) from None
