"""Use this machine as a device: one measurement at a time, without stages beside it."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvmflow.devices.device_lock import hold
from tvmflow.devices.waiting import WAITS_HERE

_HOST, _WHAT = "this-host", "this machine"
_stage_holds_host = False  # in the process of a stage


@contextlib.contextmanager
def hold_host_for_stage(alone: bool) -> Iterator[None]:
    """Hold this machine for the stage of this process: many work beside each other, one that measures here works alone.

    Nothing is waited for twice: sessions on this machine within the stage rely on it.
    """
    global _stage_holds_host
    with hold(_HOST, _WHAT, shared=not alone):
        _stage_holds_host = True
        try:
            yield
        finally:
            _stage_holds_host = False


@contextlib.contextmanager
def measure_on_this_host(wait_s: float | None) -> Iterator[None]:
    """Hold this machine for one session. Raises DeviceBusyError after `wait_s`."""
    with contextlib.ExitStack() as stack:
        if not _stage_holds_host:
            stack.enter_context(hold(_HOST, _WHAT, wait_s))
        stack.enter_context(hold("local", _WHAT, wait_s))
        stack.enter_context(WAITS_HERE.holding())
        yield


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
