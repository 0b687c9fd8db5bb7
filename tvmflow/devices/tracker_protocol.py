"""Speak the protocol of TVM's RPC tracker (length-prefixed JSON) without importing TVM, which takes seconds.

registration.py registers agents with a tracker, tracker.py requests devices from it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from tvmflow.support.errors import TrackerError, UsageError, first_line

CONNECT_TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = 16 << 20
# Of the tracker's protocol (tvm/rpc/base.py).
_MAGIC, SUCCESS = 0x2F271, 0
PUT, REQUEST, UPDATE_INFO, SUMMARY, PENDING = 3, 4, 5, 6, 7


@dataclass(frozen=True)
class TrackerAddress:
    host: str
    port: int

    @staticmethod
    def find(host: str | None, port: int | None) -> TrackerAddress:
        """Return the address from TVM_TRACKER_HOST and TVM_TRACKER_PORT, or else from params.yaml."""
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


class TrackerConnection:
    """A connection to a tracker; its registrations end with it. Raises TrackerError."""

    def __init__(self, address: TrackerAddress) -> None:
        self.address = address
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            raise no_tracker(address, error) from error
        try:
            self._socket.sendall(struct.pack("<i", _MAGIC))
            if struct.unpack("<i", read_exactly(self._socket, 4, CONNECT_TIMEOUT_S))[0] != _MAGIC:
                raise ValueError("the reply is not from a tracker")
        except (OSError, ValueError) as error:
            self.close()
            raise no_tracker(address, error) from error

    def close(self) -> None:
        self._socket.close()

    def ask(self, *message: Any, within_s: float = CONNECT_TIMEOUT_S) -> Any:
        """Send a message and return its reply. Raises TimeoutError without a reply within that time."""
        self.send(*message)
        return self.receive(within_s)

    def send(self, *message: Any) -> None:
        """Send a message."""
        request = json.dumps(message).encode()
        try:
            self._socket.settimeout(CONNECT_TIMEOUT_S)
            self._socket.sendall(struct.pack("<i", len(request)) + request)
        except OSError as error:
            raise no_tracker(self.address, error) from error

    def has_reply(self, within_s: float) -> bool:
        """Return whether a reply begins, or the connection ends, within that time."""
        return bool(select.select([self._socket], [], [], within_s)[0])

    def receive(self, within_s: float = CONNECT_TIMEOUT_S) -> Any:
        """Return the reply to a message. Raises TimeoutError if it does not begin within that time."""
        try:
            size = struct.unpack("<i", read_exactly(self._socket, 4, within_s))[0]
            if not 0 < size <= MAX_MESSAGE_BYTES:
                raise ValueError("the reply is not from a tracker")
            return json.loads(read_exactly(self._socket, size, CONNECT_TIMEOUT_S))
        except TimeoutError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise no_tracker(self.address, error) from error


def read_exactly(connection: socket.socket, size: int, within_s: float) -> bytes:
    """Return the next bytes of a connection. Raises OSError when it is closed before, TimeoutError without all of them
    within that time: a byte now and then does not count.
    """
    found, end = bytearray(), time.monotonic() + within_s
    while len(found) < size:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{len(found)} of {size} bytes arrived within {within_s:g} s")
        connection.settimeout(left)
        part = connection.recv(min(size - len(found), 1 << 16))
        if not part:
            raise OSError("it closed the connection")
        found += part
    return bytes(found)


def no_tracker(address: TrackerAddress, error: Exception) -> TrackerError:
    return TrackerError(
        f"no RPC tracker at {address.host}:{address.port} ({first_line(error, 120)})",
        "a running tracker",
        f"start one: python -m tvm.exec.rpc_tracker --host {address.host} --port {address.port} "
        f"--port-end {address.port + 1}",
    )
