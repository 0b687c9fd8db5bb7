"""Test a search on several RPC servers of one tracker, one of which is killed during a measurement."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.devices.local_tracker import local_tracker
from tests.search_rules import QUICK_RULES, changed
from tests.wide_models import described
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.lower import lower
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.registry import open_session
from tvmflow.devices.rpc.tracker_requests import connect
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.frontends.registry import load_source
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK
from tvmflow.tuning.search.search import tune

KEY, SERVERS = "board", 3


def _start_server(address: TrackerAddress, threads: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tvm.exec.rpc_server",
            "--tracker",
            f"{address.host}:{address.port}",
            "--key",
            KEY,
            "--host",
            "127.0.0.1",
            "--port",
            "9310",
            "--port-end",
            "9899",
            "--silent",
        ],
        env={**os.environ, "TVM_NUM_THREADS": str(threads)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _registered(address: TrackerAddress) -> int:
    servers = connect(address).summary()["server_info"]
    return sum(server["key"] == f"server:{KEY}" for server in servers)


@pytest.fixture
def device_pool() -> Iterator[tuple[DeviceEntry, list[subprocess.Popen[bytes]]]]:
    """Start a tracker with several servers of one key; yield the device, and the processes of all but the first
    server.
    """
    threads = host_backend().target.threads
    with local_tracker(KEY, threads) as address:
        processes = [_start_server(address, threads) for _ in range(SERVERS - 1)]
        try:
            deadline = time.monotonic() + 120
            while _registered(address) < SERVERS:
                assert time.monotonic() < deadline, "the servers did not register"
                time.sleep(0.1)
            yield DeviceEntry(transport="tracker", key=KEY, host=address.host, port=address.port), processes
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_a_search_uses_all_servers_and_survives_the_loss_of_one(
    device_pool: tuple[DeviceEntry, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    device, processes = device_pool
    backend = host_backend()
    packed: Any = PackChannels(16)
    module = packed(canonicalize(load_source(tmp_path, described("two", "onnx", tmp_path)).to_relax()))
    workloads = [w for w in extract_workloads(lower(module, backend)) if backend.template_for(w.function)]
    units, killed = Counter[str](), []

    @contextlib.contextmanager
    def opened() -> Iterator[DeviceSession]:
        with open_session(device, backend, SessionLimits(120.0, 30.0)) as session:
            units[session.unit] += 1
            yield session

    def say(_what: str, done: int, _total: int) -> None:
        if done and not killed:
            killed.append(processes[0])
            os.killpg(processes[0].pid, signal.SIGKILL)

    rules = changed(QUICK_RULES, trials_per_workload=6, on_this_host=False, devices=SERVERS, give_up_s=60.0)
    tuning_log = TuningLog(tmp_path / "log.jsonl", backend.kernel_kind, {"test": "1"})
    report = tune(workloads, opened, backend, rules, tuning_log, tmp_path, say)
    records = tuning_log.known()
    assert killed and len(units) > 1, f"sessions on {dict(units)}"
    assert records and {record.status for record in records} == {OK}, "the loss of a device is nobody's schedule"
    assert report.measured == len(records) and set(report.best) == {workload.key for workload in workloads}
