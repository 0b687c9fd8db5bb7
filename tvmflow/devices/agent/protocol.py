"""Speak the agent's protocol on the host's side: frames over a socket, statuses as errors.

The protocol is defined in runtime/agent/wire.h. Independent of networks, kernels and transports.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tvmflow.devices.tracker_protocol import read_exactly
from tvmflow.support.errors import (
    AgentVersionError,
    DeviceBusyError,
    DeviceError,
    DeviceFullError,
    DeviceLostError,
    DeviceRefusedError,
    StageError,
    WrongProcessorError,
    first_line,
    session_expired_error,
)

VERSION = 2  # AGENT_VERSION of runtime/agent/wire.h
CONNECT_TIMEOUT_S = 10.0
_MAGIC = b"tvmflow agent\n\0\0"
_NONCE = 32
_REQUEST, _DATA, _REPLY, _BUSY = 1, 2, 3, 4
_MAX_DATA = 1 << 20
_SLACK_S = 35.0  # beyond the time limit of a request, which the agent itself enforces
_SLOWEST = 16_000  # bytes per second of a frame, as the agent has it
_LONGEST_GREETING = 1000  # bytes of a reply before the agent has proved anything
_MOST_LIMITS = 10  # times its limit that a request takes where others have the device's processors (session.c)
_SHORTEST_S, _LONGEST_S = 0.001, 3600.0  # limits of a request (session.c)


class AgentConnection:
    """A connection to an agent that has proved to know the secret. One request at a time; other threads wait.

    Raises AgentVersionError, DeviceRefusedError for a wrong secret, and DeviceLostError, which may be retried.
    """

    def __init__(self, host: str, port: int, secret: bytes, name: str) -> None:
        self.name, self.place, self._lock = name, f"{host}:{port}", threading.Lock()
        self.closed = False
        self._expired_s: float | None = None
        self._ended: list[int] = []  # libraries to close
        try:
            self._socket = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            raise self._lost("connecting", error) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._hello(secret)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session, even while another thread waits for a reply."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @contextlib.contextmanager
    def closed_after(self, seconds: float | None) -> Iterator[None]:
        """Close the connection if the context takes longer; its errors say so. None: no limit."""

        def end() -> None:
            self._expired_s = seconds
            self.close()

        timer = threading.Timer(seconds, end) if seconds is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    def ask(self, request: str, doing: str, library: int = 0, within_s: float = 60.0) -> dict[str, Any]:
        """Send a request and return its reply. within_s: the agent ends the library's process after this time."""
        return self._request(request, doing, library, within_s, ())[0]

    def ask_if_known(self, request: str, doing: str, library: int) -> dict[str, Any] | None:
        """Send a request that older agents do not know; return None from those."""
        reply, _ = self._exchange(request, doing, library, 60.0, ())
        if reply["status"] == "bad_request":
            return None
        self._check(reply, doing)
        return reply

    def send(self, request: str, doing: str, library: int, content: memoryview) -> None:
        """Send a request followed by bytes."""
        self._request(f"{request} size={len(content)}", doing, library, 60.0, (content,))

    def receive(self, request: str, doing: str, library: int, most: int) -> bytes:
        """Send a request and return the bytes that precede its reply, at most as many as given."""
        reply, data = self._exchange(request, doing, library, 60.0, (), most)
        self._check(reply, doing)
        return data

    def end(self, library: int) -> None:
        """Close a library with the next request; a destructor may call this in the middle of another request."""
        self._ended.append(library)

    def upload(self, content: Path | bytes, name: str) -> str:
        """Upload a file, resuming an interrupted upload; return its digest."""
        digest, size = _digest_and_size(content)
        with self._lock, self._convert_errors(f"uploading {name}"), _open_binary(content) as file:
            self._write(f"upload sha256={digest} size={size}", 0)
            reply, _ = self._reply()
            self._check(reply, f"uploading {name}")
            if not reply["known"]:
                file.seek(int(reply["offset"]))
                while part := file.read(_MAX_DATA):
                    self._frame(_DATA, 0, part)
                self._check(self._reply()[0], f"uploading {name}")
        return digest

    # -- frames --

    def _request(
        self, request: str, doing: str, library: int, within_s: float, parts: tuple[memoryview, ...]
    ) -> tuple[dict[str, Any], bytes]:
        reply, data = self._exchange(request, doing, library, within_s, parts)
        self._check(reply, doing)
        return reply, data

    def _exchange(
        self, request: str, doing: str, library: int, within_s: float, parts: tuple[memoryview, ...], most: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        within_s = min(max(within_s, _SHORTEST_S), _LONGEST_S)
        with self._lock, self._convert_errors(doing):
            while self._ended:
                self._write("close", self._ended.pop())
                self._reply()
            self._write(f"{request} within_ms={round(within_s * 1e3)}", library)
            for part in parts:
                for at in range(0, len(part), _MAX_DATA):
                    self._frame(_DATA, library, part[at : at + _MAX_DATA])
            return self._reply(most, within_s=within_s + _SLACK_S)

    def _write(self, request: str, library: int) -> None:
        self._frame(_REQUEST, library, request.encode("ascii"))

    def _frame(self, kind: int, library: int, content: bytes | memoryview) -> None:
        # In one write: adb waits for the phone after each piece.
        self._socket.settimeout(_SLACK_S + len(content) / _SLOWEST)
        self._socket.sendall(b"".join((struct.pack("<BBHI", kind, library, 0, len(content)), content)))

    def _reply(
        self, most: int = 0, longest: int = _MAX_DATA, within_s: float = 60.0 + _SLACK_S
    ) -> tuple[dict[str, Any], bytes]:
        """Return a reply and the data before it. most: bytes of data; longest: bytes of the reply; within_s: for the
        beginning of each frame. What is larger is not read. While frames say that it is busy, a reply may be later.
        """
        data, end = bytearray(), time.monotonic() + _MOST_LIMITS * within_s
        while True:
            kind, library, zero, size = struct.unpack("<BBHI", read_exactly(self._socket, 8, within_s))
            if kind == _BUSY and not zero and not size and time.monotonic() < end:
                continue
            if kind not in (_DATA, _REPLY) or zero or size > (_MAX_DATA if kind == _DATA else longest):
                raise ValueError("the reply is not from an agent")
            whole_s = _SLACK_S + size / _SLOWEST
            if kind == _DATA:
                if not 0 < size <= most - len(data):
                    raise ValueError(f"it sent more than {most} bytes of data")
                data += read_exactly(self._socket, size, whole_s)
                continue
            reply = json.loads(read_exactly(self._socket, size, whole_s))
            if not isinstance(reply, dict) or not isinstance(reply.get("status"), str):
                raise ValueError("the reply is not from an agent")
            return {"library": library, **reply}, bytes(data)

    def _hello(self, secret: bytes) -> None:
        nonce = secrets.token_bytes(_NONCE)
        with self._convert_errors("authenticating"):
            self._socket.sendall(_MAGIC + struct.pack("<I", VERSION) + nonce)
            answer = read_exactly(self._socket, len(_MAGIC) + 4 + _NONCE, CONNECT_TIMEOUT_S)
            if not answer.startswith(_MAGIC):
                raise ValueError("the reply is not from an agent")
            version = struct.unpack_from("<I", answer, len(_MAGIC))[0]
            if version != VERSION:
                raise AgentVersionError(
                    f"the agent of device {self.name!r} at {self.place} has version {version}, and this "
                    f"tvmflow speaks version {VERSION}",
                    "an agent of the same tvmflow",
                    "stop it, and compile and start runtime/agent of this tvmflow",
                )
            nonces = nonce + answer[-_NONCE:]
            self._socket.sendall(_proof(secret, b"host", nonces))
            reply, _ = self._reply(longest=_LONGEST_GREETING, within_s=CONNECT_TIMEOUT_S)
        proof = str(reply.get("proof", ""))
        if reply["status"] == "ok" and hmac.compare_digest(proof, _proof(secret, b"agent", nonces).hex()):
            return
        raise DeviceRefusedError(
            f"the agent of device {self.name!r} at {self.place} has another secret",
            "the secret with which it was started",
            "set its file as secret_file: of the device",
        )

    # -- errors --

    @contextlib.contextmanager
    def _convert_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
            raise self._lost(doing, error) from error

    def _lost(self, doing: str, error: Exception) -> DeviceError:
        if self._expired_s is not None:
            return session_expired_error(self.name, doing, self._expired_s)
        return DeviceLostError(
            f"device {self.name!r} at {self.place} failed while {doing}: {first_line(error, 160)}",
            "an agent that responds until the end",
            "check the device and its agent, then run the stage again; it resumes from the stored results",
        )

    def _check(self, reply: dict[str, Any], doing: str) -> None:
        status = reply["status"]
        if status != "ok":
            raise _error(self.name, doing, status, str(reply.get("text", "")), reply.get("signal"))


def _proof(secret: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, side.ljust(8, b"\0") + nonces, "sha256")


def _error(name: str, doing: str, status: str, text: str, signal: Any) -> DeviceError | StageError:
    """Return the exception for a status of the agent."""
    said = f"device {name!r}, {doing}: {text or status}"
    if status == "wrong_abi" or signal == 4:
        return WrongProcessorError(
            said,
            "a library for the processor of that device",
            "correct mcpu, mattr and mtriple of the target ('tvmflow devices' shows what it has)",
        )
    if status == "refused":
        return StageError(f"the library without TVM cannot be used on {said}")
    if status in ("full", "too_large"):
        return DeviceFullError(said, "space for the library on the device", "delete something there")
    if status == "busy":
        return DeviceBusyError(said, "one host at a time", "wait, or raise deploy.device_wait_s in params.yaml")
    if status in ("crashed", "timed_out", "digest", "no_such_file"):
        return DeviceLostError(
            said, "a library that runs to its end", "run the stage again; check the device if it happens again"
        )
    return DeviceError(said, "a request that the agent accepts")


def _digest_and_size(content: Path | bytes) -> tuple[str, int]:
    with _open_binary(content) as file:
        found = hashlib.sha256()
        while part := file.read(_MAX_DATA):
            found.update(part)
        return found.hexdigest(), file.tell()


@contextlib.contextmanager
def _open_binary(content: Path | bytes) -> Iterator[BinaryIO]:
    import io

    if isinstance(content, bytes):
        yield io.BytesIO(content)
        return
    with content.open("rb") as file:
        yield file
