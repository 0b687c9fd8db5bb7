"""Simulate tuning devices that take a fixed time per kernel: RPC servers on this machine under one key."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tvmflow.backends.cpu import host_backend
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.registry import open_session
from tvmflow.devices.rpc.tracker_requests import connect, queue_of
from tvmflow.devices.session import DeviceSession, RemoteKernel, SessionLimits, WorkloadBench
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.support.errors import TrackerError

KEY = "bench"
# What a phone takes for a kernel, upload and repeats included; with less, the two cores that build decide.
DEVICE_S = 1.5


@contextlib.contextmanager
def servers(count: int) -> Iterator[tuple[int, list[subprocess.Popen[bytes]]]]:
    """Run a tracker and `count` RPC servers under one key; yield the tracker's port, and all processes, the tracker
    first.
    """
    port = 19400

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env={**os.environ, "TVM_NUM_THREADS": str(host_backend().target.threads)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    processes = [start("tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1))]
    try:
        address = TrackerAddress("127.0.0.1", port)
        wait_until(lambda: connect(address) is not None)
        for at in range(count):
            first = 19500 + 20 * at
            processes.append(
                start(
                    "tvm.exec.rpc_server",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(first),
                    "--port-end",
                    str(first + 19),
                    "--tracker",
                    f"127.0.0.1:{port}",
                    "--key",
                    KEY,
                )
            )
        wait_until(lambda: queue_of(address).get(KEY, {}).get("total", 0) >= count)
        yield port, processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def wait_until(ready: Callable[[], bool]) -> None:
    """Wait until something is ready, for a minute at most: then the program ends."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(TrackerError):
            if ready():
                return
        if time.monotonic() > deadline:
            raise SystemExit("tracker and servers did not start")
        time.sleep(0.2)


@contextlib.contextmanager
def slow_session(port: int) -> Iterator[DeviceSession]:
    """Open a session with a device that takes DEVICE_S for each kernel, so that the host's cores do not decide."""
    device = DeviceEntry.model_validate({"transport": "tracker", "key": KEY, "host": "127.0.0.1", "port": port})
    with open_session(device, host_backend(), SessionLimits(3600.0, 60.0)) as session:
        bench = session.bench
        session.bench = lambda arrays: _SlowBench(bench(arrays))  # type: ignore[method-assign]
        yield session


class _SlowBench(WorkloadBench):
    def __init__(self, bench: WorkloadBench) -> None:
        self.bench = bench

    def load(self, library: Path) -> RemoteKernel:
        time.sleep(DEVICE_S)
        return self.bench.load(library)
