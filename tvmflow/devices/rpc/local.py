"""Serve this machine as a device, by an RPC server on loopback that knows this process by a secret and ends with the
session.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from tvmflow.config.params import DeviceEntry
from tvmflow.devices.rpc.session import RpcTransport
from tvmflow.devices.session import SessionLimits
from tvmflow.devices.this_host import end_process, measure_on_this_host, this_unit
from tvmflow.devices.transport import DeviceState, Link
from tvmflow.support.errors import DeviceError, TrackerError, first_line, last_words
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
            local_server(device.key, target.threads, target) as server,
        ):
            yield Link(server.connect(limits.session_timeout_s), this_unit())

    def state(self, device: DeviceEntry) -> DeviceState:
        return DeviceState(True, "this machine", {})


@dataclass(frozen=True)
class LocalServer:
    """A server on loopback that only this process can use. name: of the device."""

    name: str
    port: int
    secret: str = field(repr=False)

    def connect(self, session_timeout_s: float) -> Any:
        """Return a session. Raises TrackerError."""
        from tvm import rpc

        try:
            return rpc.connect("127.0.0.1", self.port, self.secret, session_timeout_s)
        except Exception as error:
            why = first_line(error).replace(self.secret, "its secret")
            raise TrackerError(
                f"the local server of device {self.name!r} does not respond: {why}",
                "a server that accepts the session",
                "run the stage again",
            ) from None


@contextlib.contextmanager
def local_server(
    name: str, threads: int, target: ResolvedTarget | None = None, served: Served = Served()
) -> Iterator[LocalServer]:
    """Start a server on loopback with a number of threads for the device of this name.

    target: the server provides the functions that libraries of this target call. served: the Python that runs it, by
    default this one. Raises TrackerError.
    """
    secret = secrets.token_hex(32)  # not in the arguments, which all users see
    provided = ["--target", json.dumps(to_json(target))] if target is not None else []
    # Sessions of TVM's server are killed, and leave what was uploaded to them.
    with temporary_folder("server") as folder, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [
                *served.python,
                "-P",
                "-m",
                "tvmflow.devices.rpc.local_server",
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
            with contextlib.suppress(OSError):  # it has ended, and what it said is reported below
                assert process.stdin is not None
                process.stdin.write(f"{secret}\n")
                process.stdin.flush()
            import tvm  # noqa: F401  (takes seconds, while the server imports it as well)

            server = LocalServer(name, _port_of(process, said, served.start_timeout_s), secret)
            try:
                yield server
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
            f"the local server did not start{_describe_exit(process, said)}",
            f"a server within {timeout_s:g} s",
            "run 'tvmflow doctor': it checks TVM's RPC parts and free ports",
        ) from None
