"""Lock devices on this machine, so that each runs one measurement at a time."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tvmflow.support.errors import DeviceBusyError


@contextlib.contextmanager
def lock_device(name: str, wait_s: float) -> Iterator[None]:
    """Hold the lock of a device against other tvmflow processes of this user. Raises DeviceBusyError after `wait_s`."""
    path = Path.home() / ".cache" / "tvmflow" / "locks" / f"device-{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise DeviceBusyError(
            f"device {name!r} was in use by another tvmflow process for {wait_s:g} s",
            "one measurement per device at a time",
            "wait for it to end, or raise deploy.device_wait_s in params.yaml",
        ) from None
    try:
        yield
    finally:
        lock.release()


def end_process(process: subprocess.Popen[Any]) -> None:
    """End a process that ends with its standard input, by force after some seconds, and close its outputs."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def this_unit() -> str:
    """Return an identifier of this machine that does not contain its name."""
    try:
        name = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        name = ""
    return f"host-{hashlib.sha256((name or platform.node()).encode()).hexdigest()[:12]}"
