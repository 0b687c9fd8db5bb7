"""Serve this machine as a device, by a tracker and RPC server on loopback that end with the session."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

from tvmflow.config.params import DeviceEntry
from tvmflow.devices.rpc.session import RpcTransport
from tvmflow.devices.rpc.tracker import request_session
from tvmflow.devices.session import SessionLimits
from tvmflow.devices.this_host import end_process, measure_on_this_host, this_unit
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.devices.transport import DeviceState, Link
from tvmflow.support.errors import DeviceError, TrackerError, last_words
from tvmflow.support.json_values import to_json
from tvmflow.support.paths import CODE_ROOT
from tvmflow.support.temporary import temporary_folder
from tvmflow.targets.resolve import ResolvedTarget

_MOST_SAID = 20_000  # bytes at the end of a server's output that are read


@dataclass(frozen=True)
class Served:
    """The Python that runs a server. python: the interpreter with its command prefix; environment: added to this
    process's.
    """

    python: tuple[str, ...] = (sys.executable,)
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 90.0


class LocalTransport(RpcTransport):
    """This machine, one session at a time."""

    is_this_host = True

    @contextlib.contextmanager
    def connect(self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits) -> Iterator[Link]:
        with (
            measure_on_this_host(limits.wait_s),
            local_tracker(device.key, target.threads, target) as address,
        ):
            remote = request_session(address, device.key, limits.session_timeout_s, limits.wait_s).remote
            yield Link(remote, this_unit())

    def state(self, device: DeviceEntry) -> DeviceState:
        return DeviceState(True, "this machine", {})


@contextlib.contextmanager
def local_tracker(
    key: str, threads: int, target: ResolvedTarget | None = None, served: Served = Served()
) -> Iterator[TrackerAddress]:
    """Start a tracker and a server on loopback with a key and a number of threads; yield the tracker's address.

    target: the server provides the functions that libraries of this target call. served: the Python that runs it, by
    default this one. Raises TrackerError.
    """
    provided = ["--target", json.dumps(to_json(target))] if target is not None else []
    # Sessions of TVM's server are killed, and leave what was uploaded to them.
    with temporary_folder("server") as folder, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [
                *served.python,
                "-m",
                "tvmflow.devices.rpc.local_server",
                "--key",
                key,
                "--threads",
                str(threads),
                *provided,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(CODE_ROOT),
                "TVM_NUM_THREADS": str(threads),
                "TMPDIR": str(folder),
                **served.environment,
            },
        )
        try:
            import tvm  # noqa: F401  (takes seconds, while the server imports it as well)

            port = _port_of(process, said, served.start_timeout_s)
            try:
                yield TrackerAddress("127.0.0.1", port)
            except DeviceError as error:
                if process.poll() is None:
                    raise
                why = f"{error.found}; the local server ended{_describe_exit(process, said)}"
                raise type(error)(why, error.expected, error.hint) from error
        finally:
            end_process(process)


def _describe_exit(process: subprocess.Popen[str], said: IO[bytes]) -> str:
    """Return the exit code of a server and the last line of its output."""
    size = os.fstat(said.fileno()).st_size
    words = last_words(
        os.pread(said.fileno(), _MOST_SAID, max(0, size - _MOST_SAID))
    )  # the server writes at the file's offset
    return f" (exit {process.poll()})" + (f": {words}" if words else "")


def _port_of(process: subprocess.Popen[str], said: IO[bytes], timeout_s: float) -> int:
    assert process.stdout is not None
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    try:
        return int(json.loads(line)["port"])
    except (ValueError, KeyError):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)  # its output ends slightly before the process
        raise TrackerError(
            f"the local tracker and server did not start{_describe_exit(process, said)}",
            f"both up within {timeout_s:g} s",
            "run 'tvmflow doctor': it checks TVM's RPC parts and free ports",
        ) from None
