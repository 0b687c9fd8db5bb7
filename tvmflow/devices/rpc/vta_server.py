"""Serve a VTA device: an RPC server that provides `tvmflow.vta.run` to libraries, alone or registered with a tracker.

    python -m tvmflow.devices.rpc.vta_server --key vta-sim --port 9091 [--driver sim] [--config vta_config.json]
    python -m tvmflow.devices.rpc.vta_server --key vta-sim --tracker HOST:PORT

With `--driver sim` the accelerator is simulated. With `--driver pynq`, `ultra96` or `zcu104` it is the one in the FPGA
of the board that this runs on. Its bitstream is loaded already, or comes with a session whose target names one. The
key is that of the target's device: in params.yaml. Sessions choose the design, unless --config fixes it.
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

from tvmflow.devices.rpc.local_server import keep_serving_after_a_crash
from tvmflow.devices.rpc.tracker_requests import queue_of
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.support.errors import ParamsError, TrackerError, TvmflowError, UsageError
from tvmflow.support.tvm_import import prepare_import_of_tvm
from tvmflow.vta.isa.config import VtaConfig

REGISTER_TIMEOUT_S = 30.0
DRIVERS = ("sim", "pynq", "ultra96", "zcu104")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracker", help="host:port; without one, targets name this host and port")
    parser.add_argument("--key", required=True, help="the name under which targets ask for this device")
    parser.add_argument("--config", type=Path, help="a vta_config.json: serve this design only")
    parser.add_argument("--driver", choices=DRIVERS, default="sim")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on, as the tracker's clients reach it"
    )
    parser.add_argument("--port", type=int, default=9090)
    parser.add_argument(
        "--system-root",
        type=Path,
        help="where the board's /sys, /lib, /dev and /run are, as in a container: programs "
        "the FPGA there; by default / with a board's driver",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    prepare_import_of_tvm()
    try:
        serve(options)
    except TvmflowError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


def serve(options: argparse.Namespace) -> None:
    """Start the server and register it; return when a signal stops it. Raises TrackerError, ParamsError."""
    tracker = _tracker(options.tracker)
    config = design(options.config, options.driver)
    _provide(options, config)
    from tvm.rpc.server import PopenRPCServerState

    keep_serving_after_a_crash()
    own = os.getpid()
    state = PopenRPCServerState(
        options.host,
        options.port,
        options.port + 100,
        tracker_addr=(tracker.host, tracker.port) if tracker else None,
        key=options.key,
        silent=True,
    )
    if tracker:
        _wait_until_listed(tracker, options.key)
    print(json.dumps({"key": options.key, "port": state.port, "config": config.name}), flush=True)  # noqa: T201
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _stop(own))
    while True:
        signal.pause()


def _provide(options: argparse.Namespace, config: VtaConfig) -> None:
    """Register the accelerator in this process; sessions are forked, and inherit it."""
    from tvmflow.vta.runtime.configure import SIMULATED, Board
    from tvmflow.vta.runtime.device import SimulatorDriver
    from tvmflow.vta.runtime.fpga import Fpga
    from tvmflow.vta.runtime.runtime import register
    from tvmflow.vta.runtime.zynq_driver import BoardDriver

    simulated = options.driver == SIMULATED
    root = options.system_root or (None if simulated else Path("/"))
    driver = SimulatorDriver() if simulated else BoardDriver.of_this_board(options.driver)
    board = Board(options.driver, Fpga(root) if root else None, config if options.config else None)
    register(config, driver, board)


def _tracker(text: str | None) -> TrackerAddress | None:
    """Return the tracker's address, which responds; None without one. Raises UsageError, TrackerError."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"tracker {text!r}", "HOST:PORT")
    tracker = TrackerAddress(host, int(port))
    queue_of(tracker)
    return tracker


def _wait_until_listed(tracker: TrackerAddress, key: str) -> None:
    deadline = time.monotonic() + REGISTER_TIMEOUT_S
    while not queue_of(tracker).get(key, {}).get("total", 0):
        if time.monotonic() > deadline:
            place = f"{tracker.host}:{tracker.port}"
            raise TrackerError(f"the tracker at {place} does not list {key!r}", "a registered server")
        time.sleep(0.1)


def _stop(own: int) -> None:
    """End the server and its sessions; in a session process, which inherits this handler, end that process only."""
    if os.getpid() == own:
        for session in multiprocessing.active_children():
            session.kill()
    os._exit(0)  # the server's threads do not end


def design(path: Path | None, driver: str) -> VtaConfig:
    """Return the design of a driver. Raises ParamsError for a design of another board."""
    config = read_config(path) if path is not None else VtaConfig(target=driver)
    if driver not in ("sim", config.target):
        raise ParamsError(f"a design for {config.target} on driver {driver}", f"one whose TARGET is {driver}")
    return config


def read_config(path: Path) -> VtaConfig:
    """Read a vta_config.json. Raises UsageError, ParamsError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "a vta_config.json") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds {type(data).__name__}", "a JSON object of VTA's fields")
    return VtaConfig.from_json(data)


if __name__ == "__main__":
    main()
