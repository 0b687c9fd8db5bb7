"""Reach one RPC server of TVM by its host and port, without a tracker."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from tvmflow.config.options import Options, read_options
from tvmflow.config.params import DeviceEntry
from tvmflow.config.value_types import Host
from tvmflow.devices.device_lock import hold
from tvmflow.devices.rpc.session import RpcTransport, end_link
from tvmflow.devices.session import SessionLimits
from tvmflow.devices.tracker_protocol import CONNECT_TIMEOUT_S
from tvmflow.devices.transport import DeviceState, Link
from tvmflow.devices.waiting import WAITS_HERE
from tvmflow.support.errors import DeviceUnknownError, TrackerError, first_line
from tvmflow.targets.resolve import ResolvedTarget


class DirectOptions(Options):
    """The server's address."""

    host: Host
    port: Annotated[int, Field(gt=0, lt=65536)]


class DirectTransport(RpcTransport):
    """A server that was started with the device's key and without a tracker; one session at a time."""

    options = DirectOptions

    def runs_code_of_strangers(self, device: DeviceEntry) -> bool:
        return True

    @contextlib.contextmanager
    def connect(self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits) -> Iterator[Link]:
        place = _place(device)
        with hold(f"direct-{place}", f"the device at {place}", limits.wait_s), WAITS_HERE.holding():
            link = Link(_connect(device, limits.session_timeout_s), place)
            try:
                yield link
            finally:
                end_link(link)  # the server takes the next one then

    def state(self, device: DeviceEntry) -> DeviceState:
        try:
            _knock(device)
        except DeviceUnknownError as error:
            return DeviceState(False, error.found, {}, error.hint)
        return DeviceState(True, f"listens at {_place(device)}", {})


def _options(device: DeviceEntry) -> DirectOptions:
    return read_options(DirectOptions, device.options, "device")


def _place(device: DeviceEntry) -> str:
    options = _options(device)
    return f"{options.host}:{options.port}"


def _knock(device: DeviceEntry) -> None:
    """Raise DeviceUnknownError if nothing listens there; TVM itself would retry for a minute."""
    options = _options(device)
    try:
        socket.create_connection((options.host, options.port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise DeviceUnknownError(
            f"nothing listens at {_place(device)} ({error.strerror or error})",
            f"an RPC server of the device {device.key!r}",
            f"start it there: python -m tvm.exec.rpc_server --host {options.host} --port {options.port} "
            f"--key {device.key}",
        ) from None


def _connect(device: DeviceEntry, session_timeout_s: float) -> object:
    from tvm import rpc

    _knock(device)
    options = _options(device)
    try:
        return rpc.connect(options.host, options.port, device.key, session_timeout_s)
    except Exception as error:  # RuntimeError, OSError or a type of TVM's
        raise TrackerError(
            f"the server at {_place(device)} refuses a session: {first_line(error)}",
            f"an RPC server with the key {device.key!r}",
            "start it with that --key, or correct key: of the device",
        ) from None
