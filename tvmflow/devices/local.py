"""This machine as a device: a tracker and an RPC server of our own on loopback, gone when the session ends."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

from tvmflow.devices.tracker import TrackerAddress
from tvmflow.errors import TrackerError
from tvmflow.recipe import CODE_ROOT
from tvmflow.vta.config import VtaConfig

START_TIMEOUT_S = 90.0


@contextlib.contextmanager
def local_tracker(
    key: str, threads: int, vta: VtaConfig | None = None, python: str = sys.executable
) -> Iterator[TrackerAddress]:
    """Start a tracker and a server on loopback with a key and a number of threads; yield the tracker's address.

    vta: the server simulates an accelerator of this design. `python` may be the interpreter of another environment, so that another TVM serves. Raises TrackerError.
    """
    design = ["--vta", json.dumps(vta.to_json())] if vta is not None else []
    process = subprocess.Popen(
        [python, "-m", "tvmflow.devices.rpc_host", "--key", key, "--threads", str(threads), *design],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(CODE_ROOT), "TVM_NUM_THREADS": str(threads)},
    )  # fmt: skip
    try:
        import tvm  # noqa: F401  (takes seconds, while the server imports it as well)

        yield TrackerAddress("127.0.0.1", _port_of(process))
    finally:
        _end(process)


def _port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    try:
        return int(json.loads(line)["port"])
    except (ValueError, KeyError):
        raise TrackerError(
            f"the local tracker and server did not start (exit {process.poll()})",
            f"both up within {START_TIMEOUT_S:g} s",
            "run 'tvmflow doctor': it checks TVM's RPC parts and free ports",
        ) from None


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
