"""Register a VTA device with a tracker: an RPC server that provides `tvmflow.vta.run` to libraries.

    python -m tvmflow.devices.rpc.vta_server --tracker HOST:PORT --key vta-sim [--config vta_config.json] [--driver sim]

With `--driver sim` the accelerator is simulated. With `--driver pynq`, `ultra96` or `zcu104` it is the one in the FPGA
of the board that this runs on, whose bitstream must be loaded. The key is that of the target's device: in
params.yaml.
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
    parser.add_argument("--tracker", required=True, help="host:port")
    parser.add_argument("--key", required=True, help="the name under which targets ask for this device")
    parser.add_argument("--config", type=Path, help="a vta_config.json; without one VTA's defaults for the driver")
    parser.add_argument("--driver", choices=DRIVERS, default="sim")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on, as the tracker's clients reach it"
    )
    parser.add_argument("--port", type=int, default=9090)
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
    """Register the accelerator, then the server; return when a signal stops it. Raises TrackerError, ParamsError."""
    host, _, port = options.tracker.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"tracker {options.tracker!r}", "HOST:PORT")
    tracker = TrackerAddress(host, int(port))
    design(options.config, options.driver)
    queue_of(tracker)
    from tvm.rpc.server import PopenRPCServerState

    from tvmflow.vta.runtime.device import SimulatorDriver
    from tvmflow.vta.runtime.runtime import register
    from tvmflow.vta.runtime.zynq_driver import BoardDriver

    config = design(options.config, options.driver)
    register(config, SimulatorDriver() if options.driver == "sim" else BoardDriver.of_this_board(options.driver))
    keep_serving_after_a_crash()
    own = os.getpid()
    state = PopenRPCServerState(
        options.host,
        options.port,
        options.port + 100,
        tracker_addr=(tracker.host, tracker.port),
        key=options.key,
        silent=True,
    )
    deadline = time.monotonic() + REGISTER_TIMEOUT_S
    while not queue_of(tracker).get(options.key, {}).get("total", 0):
        if time.monotonic() > deadline:
            raise TrackerError(f"the tracker at {options.tracker} does not list {options.key!r}", "a registered server")
        time.sleep(0.1)
    print(json.dumps({"key": options.key, "port": state.port, "config": config.name}), flush=True)  # noqa: T201
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _stop(own))
    while True:
        signal.pause()


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
