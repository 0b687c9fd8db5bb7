"""Run a tracker and one RPC server on loopback, until standard input is closed.

Started as a separate process by `devices/rpc/local.py`. When that process ends for any reason, the pipe on standard
input closes and this one ends too. Prints one JSON line with the tracker's port when the device is registered.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tvmflow.support.tvm_import import prepare_import_of_tvm


def keep_serving_after_a_crash() -> None:
    """Patch TVM's RPC server so that its listener survives a crashed session."""
    import tvm.rpc.server as server

    serving = server._serving
    folder = Path.cwd()

    def safe(connection: Any, *args: Any, **named: Any) -> None:
        try:
            serving(connection, *args, **named)
        except RuntimeError:
            os.chdir(folder)
            connection.close()

    server._serving = safe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--target", help="a resolved target as JSON: provide what its libraries call")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; only the closed pipe ends it

    prepare_import_of_tvm()
    from tvm import rpc
    from tvm.rpc.server import PopenRPCServerState
    from tvm.rpc.tracker import PopenTrackerServerState

    keep_serving_after_a_crash()
    if options.target:
        from tvmflow.backends.registry import backend_of
        from tvmflow.support.json_values import from_json
        from tvmflow.targets.resolve import ResolvedTarget

        target = from_json(ResolvedTarget, json.loads(options.target))
        backend_of(target).provide()  # sessions are forked, and inherit it
    # Both are threads of this process: no orphaned children, and TVM is imported once.
    tracker = PopenTrackerServerState("127.0.0.1", 19190, 19990, silent=True)
    PopenRPCServerState(
        "127.0.0.1", 19191, 19991, tracker_addr=("127.0.0.1", tracker.port), key=options.key, silent=True
    )
    client = rpc.connect_tracker("127.0.0.1", tracker.port)
    deadline = time.monotonic() + 30
    while not any(entry["key"] == f"server:{options.key}" for entry in client.summary()["server_info"]):
        if time.monotonic() > deadline:
            print("the server did not register at its tracker within 30 s", file=sys.stderr, flush=True)
            os._exit(1)
        time.sleep(0.02)
    print(json.dumps({"port": tracker.port}), flush=True)
    while os.read(0, 1):  # not sys.stdin: a forked session would block on its lock
        pass
    for session in multiprocessing.active_children():
        session.kill()
    os._exit(0)  # the threads of tracker and server do not end


if __name__ == "__main__":
    main()
