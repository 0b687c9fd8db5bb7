"""Run TVM's tracker and one of its servers on loopback, as who names a tracker in params.yaml does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.conftest import REPOSITORY
from tvmflow.devices.this_host import end_process
from tvmflow.devices.tracker_protocol import TrackerAddress


@contextlib.contextmanager
def local_tracker(key: str, threads: int) -> Iterator[TrackerAddress]:
    """Start both in a process that ends with this context; yield the tracker's address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.devices.local_tracker", key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TVM_NUM_THREADS": str(threads)},
    )
    try:
        assert process.stdout is not None
        yield TrackerAddress("127.0.0.1", int(json.loads(process.stdout.readline())["port"]))
    finally:
        end_process(process)


def main() -> None:
    from tvmflow.devices.rpc.local_server import keep_serving_after_a_crash
    from tvmflow.support.tvm_import import prepare_import_of_tvm

    prepare_import_of_tvm()
    from tvm import rpc
    from tvm.rpc.server import PopenRPCServerState
    from tvm.rpc.tracker import PopenTrackerServerState

    key = sys.argv[1]
    keep_serving_after_a_crash()
    # Both are threads of this process: no orphaned children, and TVM is imported once.
    tracker = PopenTrackerServerState("127.0.0.1", 19190, 19990, silent=True)
    PopenRPCServerState("127.0.0.1", 19191, 19991, tracker_addr=("127.0.0.1", tracker.port), key=key, silent=True)
    client = rpc.connect_tracker("127.0.0.1", tracker.port)
    deadline = time.monotonic() + 60
    while not any(entry["key"] == f"server:{key}" for entry in client.summary()["server_info"]):
        assert time.monotonic() < deadline, "the server did not register"
        time.sleep(0.02)
    print(json.dumps({"port": tracker.port}), flush=True)
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
