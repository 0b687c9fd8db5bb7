"""Ask an RPC tracker for a device by its key, without ever waiting for ever."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from tvmflow.bounds import Host
from tvmflow.devices.rpc import RpcTransport
from tvmflow.devices.transport import DeviceState, Link, SessionLimits
from tvmflow.errors import DeviceBusyError, DeviceUnknownError, TrackerError, UsageError, first_line
from tvmflow.options import Options, read_options
from tvmflow.params import DeviceEntry
from tvmflow.targets.resolve import ResolvedTarget

CONNECT_TIMEOUT_S = 5.0
MAX_SUMMARY_BYTES = 16 << 20
_MAGIC, _SUMMARY = 0x2F271, 6  # of the tracker's protocol (tvm/rpc/base.py)


class TrackerOptions(Options):
    """The tracker's address, where TVM_TRACKER_HOST and TVM_TRACKER_PORT do not say it."""

    host: Host | None = None
    port: Annotated[int, Field(gt=0, lt=65536)] | None = None


class TrackerTransport(RpcTransport):
    """Devices that registered themselves with an RPC tracker, as many of one key as there are."""

    options = TrackerOptions

    @contextlib.contextmanager
    def connect(self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits) -> Iterator[Link]:
        yield request_session(self._address(device), device.key, limits.session_timeout_s, limits.wait_s)

    def state(self, device: DeviceEntry) -> DeviceState:
        counts = queue_of(self._address(device)).get(device.key, {"total": 0, "free": 0, "pending": 0})
        text = f"{counts['free']} of {counts['total']} free, {counts['pending']} waiting"
        return DeviceState(counts["total"] > 0, text, counts)

    def _address(self, device: DeviceEntry) -> TrackerAddress:
        options = read_options(TrackerOptions, device.options, "device")
        return TrackerAddress.find(options.host, options.port)


@dataclass(frozen=True)
class TrackerAddress:
    host: str
    port: int

    @staticmethod
    def find(host: str | None, port: int | None) -> TrackerAddress:
        """Return the address: TVM_TRACKER_HOST / TVM_TRACKER_PORT where set, else what params.yaml says."""
        named_host = os.environ.get("TVM_TRACKER_HOST") or host
        named_port = os.environ.get("TVM_TRACKER_PORT") or port
        if not named_host or not named_port:
            raise UsageError(
                "a device that is reached through a tracker, and no tracker address",
                "host: and port: of the device in params.yaml, or TVM_TRACKER_HOST and TVM_TRACKER_PORT",
            )
        try:
            return TrackerAddress(named_host, int(named_port))
        except ValueError:
            raise UsageError(f"tracker port {named_port!r}", "a number") from None


def connect(address: TrackerAddress) -> Any:
    """Return TVM's tracker session. Raises TrackerError when nobody responds there."""
    try:
        socket.create_connection(
            (address.host, address.port), timeout=CONNECT_TIMEOUT_S
        ).close()  # TVM itself tries for 60 s
        from tvm import rpc

        return rpc.connect_tracker(address.host, address.port)
    except Exception as error:  # RuntimeError, OSError, or a protocol error from something that is no tracker
        raise _no_tracker(address, error) from error


def _no_tracker(address: TrackerAddress, error: Exception) -> TrackerError:
    return TrackerError(
        f"no RPC tracker at {address.host}:{address.port} ({first_line(error, 120)})",
        "a running tracker",
        f"start one: python -m tvm.exec.rpc_tracker --host {address.host} --port {address.port} "
        f"--port-end {address.port + 1}",
    )


def _summary(address: TrackerAddress) -> dict[str, Any]:
    """Return what the tracker knows, in its own protocol: importing TVM for it takes seconds. Raises TrackerError."""
    try:
        with socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT_S) as connection:
            connection.sendall(struct.pack("<i", _MAGIC))
            if struct.unpack("<i", _read(connection, 4))[0] != _MAGIC:
                raise ValueError("what answers is no tracker")
            request = json.dumps([_SUMMARY]).encode()
            connection.sendall(struct.pack("<i", len(request)) + request)
            size = struct.unpack("<i", _read(connection, 4))[0]
            if not 0 < size <= MAX_SUMMARY_BYTES:
                raise ValueError("what answers is no tracker")
            code, found = json.loads(_read(connection, size))
            if code != 0 or not {"server_info", "queue_info"} <= set(found):
                raise ValueError("what answers is no tracker")
            return dict(found)
    except (OSError, ValueError, TypeError, struct.error) as error:
        raise _no_tracker(address, error) from error


def _read(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 1 << 16))
        if not part:
            raise OSError("it closed the connection")
        found += part
    return bytes(found)


def queue_of(address: TrackerAddress) -> dict[str, dict[str, int]]:
    """Return key -> total, free and pending devices, as the tracker counts them."""
    summary = _summary(address)
    total: dict[str, int] = {}
    for entry in summary["server_info"]:
        key = str(entry["key"]).removeprefix("server:")
        total[key] = total.get(key, 0) + 1
    queue = summary["queue_info"]
    return {
        key: {
            "total": total.get(key, 0),
            "free": int(queue.get(key, {}).get("free", 0)),
            "pending": int(queue.get(key, {}).get("pending", 0)),
        }
        for key in sorted({*total, *queue})
    }


def request_session(address: TrackerAddress, key: str, session_timeout_s: float, wait_s: float) -> Link:
    """Return a session with a device of that key. Raises DeviceUnknownError, DeviceBusyError or TrackerError.

    TVM's own request blocks for ever on a key that nobody serves and on a device that stays busy; so the key is looked
    up first, and the waiting is done here.
    """
    deadline = time.monotonic() + wait_s
    while True:
        queue = queue_of(address)
        if queue.get(key, {}).get("total", 0) == 0:
            raise DeviceUnknownError(
                f"no device with key {key!r} at tracker {address.host}:{address.port}",
                "one of " + (", ".join(k for k, v in queue.items() if v["total"]) or "(none is registered)"),
                f"register it: python -m tvm.exec.rpc_server --tracker {address.host}:{address.port} --key {key}",
            )
        if queue[key]["free"]:
            return _request(address, key, session_timeout_s, max(deadline - time.monotonic(), 1.0))
        if time.monotonic() > deadline:
            raise _busy(key, wait_s)
        time.sleep(0.2)


def _request(address: TrackerAddress, key: str, session_timeout_s: float, wait_s: float) -> Link:
    reply: list[Link | Exception] = []

    def ask() -> None:
        try:
            reply.append(_ask(address, key, session_timeout_s))
        except Exception as error:
            reply.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(wait_s)
    if not reply:
        raise _busy(key, wait_s)
    if isinstance(reply[0], TrackerError):
        raise reply[0]
    if isinstance(reply[0], Exception):
        raise TrackerError(
            f"the tracker gave device {key!r} away, but it does not respond: {first_line(reply[0])}",
            "a device that accepts the session",
            "look at the RPC server on the device; restart it",
        ) from reply[0]
    return reply[0]


def _ask(address: TrackerAddress, key: str, session_timeout_s: float) -> Link:
    """Do what TVM's own request does, and keep what that drops: which of the servers responds.

    A tracker knows a server by its address only, so that is the unit: another one after the board got another address.
    """
    from tvm import rpc
    from tvm.rpc import base

    tracker = connect(address)
    base.sendjson(tracker._sock, [base.TrackerCode.REQUEST, key, "", 1])
    code, value = base.recvjson(tracker._sock)
    if code != base.TrackerCode.SUCCESS:
        raise RuntimeError(f"the tracker refused: {value}")
    host, port, matched = value
    return Link(rpc.connect(host, port, matched, session_timeout_s), f"{host}:{port}")


def _busy(key: str, wait_s: float) -> DeviceBusyError:
    return DeviceBusyError(
        f"every device with key {key!r} stayed busy for {wait_s:.0f} s",
        "a free device",
        "wait, add a device of that key, or raise deploy.device_wait_s in params.yaml",
    )
