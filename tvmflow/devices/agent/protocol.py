"""What host and agent say to each other, on the host's side: frames over a socket, statuses as errors.

runtime/agent/wire.h is the definition. Knows nothing of networks, kernels or how an agent came to its device.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

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
)

VERSION = 1  # AGENT_VERSION of runtime/agent/wire.h
CONNECT_TIMEOUT_S = 10.0
_MAGIC = b"tvmflow agent\n\0\0"
_NONCE = 32
_REQUEST, _DATA, _REPLY = 1, 2, 3
_MAX_DATA = 1 << 20
_SLACK_S = 35.0  # beyond the time that the agent gives a request: it says itself when that is over
_SHORTEST_S, _LONGEST_S = 0.001, 3600.0  # that a request may take (session.c)


class AgentConnection:
    """A connection that knows that the other side has the secret. One request at a time; another thread waits.

    Raises AgentVersionError, DeviceRefusedError where the secret is another, and DeviceLostError, which may be tried
    again.
    """

    def __init__(self, host: str, port: int, secret: bytes, name: str) -> None:
        self.name, self.place, self._lock = name, f"{host}:{port}", threading.Lock()
        self.closed = False
        self._ended: list[int] = []  # libraries that nobody uses any more
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
        """End the session, also while another thread waits for a reply."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def ask(self, request: str, doing: str, library: int = 0, within_s: float = 60.0) -> dict[str, Any]:
        """Send a request and return its reply. within_s: the agent ends the library's process after so long."""
        return self._asked(request, doing, library, within_s, ())[0]

    def ask_if_known(self, request: str, doing: str, library: int) -> dict[str, Any] | None:
        """Send a request that agents of an earlier tvmflow do not take; None from those."""
        reply, _ = self._exchanged(request, doing, library, 60.0, ())
        if reply["status"] == "bad_request":
            return None
        self._check(reply, doing)
        return reply

    def send(self, request: str, doing: str, library: int, content: memoryview) -> None:
        """Send a request with bytes behind it."""
        self._asked(f"{request} size={len(content)}", doing, library, 60.0, (content,))

    def receive(self, request: str, doing: str, library: int) -> bytes:
        """Send a request and return the bytes that come before its reply."""
        return self._asked(request, doing, library, 60.0, ())[1]

    def end(self, library: int) -> None:
        """Close a library with the next request: this may be called by a destructor, in the middle of another one."""
        self._ended.append(library)

    def upload(self, content: Path | bytes, name: str) -> str:
        """Bring a file to the device, from where an earlier upload of it stopped; returns its digest."""
        digest, size = _digest_and_size(content)
        with self._lock, self._translated(f"uploading {name}"), _opened(content) as file:
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

    def _asked(
        self, request: str, doing: str, library: int, within_s: float, parts: tuple[memoryview, ...]
    ) -> tuple[dict[str, Any], bytes]:
        reply, data = self._exchanged(request, doing, library, within_s, parts)
        self._check(reply, doing)
        return reply, data

    def _exchanged(
        self, request: str, doing: str, library: int, within_s: float, parts: tuple[memoryview, ...]
    ) -> tuple[dict[str, Any], bytes]:
        within_s = min(max(within_s, _SHORTEST_S), _LONGEST_S)
        with self._lock, self._translated(doing):
            while self._ended:
                self._write("close", self._ended.pop())
                self._reply()
            self._socket.settimeout(within_s + _SLACK_S)
            self._write(f"{request} within_ms={round(within_s * 1e3)}", library)
            for part in parts:
                for at in range(0, len(part), _MAX_DATA):
                    self._frame(_DATA, library, part[at : at + _MAX_DATA])
            return self._reply()

    def _write(self, request: str, library: int) -> None:
        self._frame(_REQUEST, library, request.encode("ascii"))

    def _frame(self, kind: int, library: int, content: bytes | memoryview) -> None:
        # At once: adb waits for the phone after each of two pieces.
        self._socket.sendall(b"".join((struct.pack("<BBHI", kind, library, 0, len(content)), content)))

    def _reply(self) -> tuple[dict[str, Any], bytes]:
        data = bytearray()
        while True:
            kind, library, zero, size = struct.unpack("<BBHI", self._read(8))
            if kind not in (_DATA, _REPLY) or zero or size > _MAX_DATA:
                raise ValueError("what answers is no agent")
            if kind == _DATA:
                data += self._read(size)
                continue
            reply = json.loads(self._read(size))
            if not isinstance(reply, dict) or not isinstance(reply.get("status"), str):
                raise ValueError("what answers is no agent")
            return {"library": library, **reply}, bytes(data)

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(min(size - len(found), 1 << 16))
            if not part:
                raise OSError("it closed the connection")
            found += part
        return bytes(found)

    def _hello(self, secret: bytes) -> None:
        nonce = secrets.token_bytes(_NONCE)
        with self._translated("saying who we are"):
            self._socket.sendall(_MAGIC + struct.pack("<I", VERSION) + nonce)
            answer = self._read(len(_MAGIC) + 4 + _NONCE)
            if not answer.startswith(_MAGIC):
                raise ValueError("what answers is no agent")
            version = struct.unpack_from("<I", answer, len(_MAGIC))[0]
            if version != VERSION:
                raise AgentVersionError(
                    f"the agent of device {self.name!r} at {self.place} has version {version}, and this "
                    f"tvmflow speaks version {VERSION}",
                    "an agent of the same tvmflow",
                    "end it, and compile and start runtime/agent of this tvmflow",
                )
            nonces = nonce + answer[-_NONCE:]
            self._socket.sendall(_proof(secret, b"host", nonces))
            reply, _ = self._reply()
        proof = str(reply.get("proof", ""))
        if reply["status"] == "ok" and hmac.compare_digest(proof, _proof(secret, b"agent", nonces).hex()):
            return
        raise DeviceRefusedError(
            f"the agent of device {self.name!r} at {self.place} has another secret",
            "the secret with which it was started",
            "give its file as secret_file: of the device",
        )

    # -- errors --

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
            raise self._lost(doing, error) from error

    def _lost(self, doing: str, error: Exception) -> DeviceError:
        return DeviceLostError(
            f"device {self.name!r} at {self.place} failed while {doing}: {first_line(error, 160)}",
            "an agent that responds until the end",
            "look at the device and its agent; the stage can be run again and goes on from what is stored",
        )

    def _check(self, reply: dict[str, Any], doing: str) -> None:
        status = reply["status"]
        if status != "ok":
            raise _error(self.name, doing, status, str(reply.get("text", "")), reply.get("signal"))


def _proof(secret: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, side.ljust(8, b"\0") + nonces, "sha256")


def _error(name: str, doing: str, status: str, text: str, signal: Any) -> DeviceError | StageError:
    """Return what a status of the agent means for who asked."""
    said = f"device {name!r}, {doing}: {text or status}"
    if status == "wrong_abi" or signal == 4:
        return WrongProcessorError(
            said,
            "a library for the processor of that device",
            "correct mcpu, mattr and mtriple of the target ('tvmflow devices' says what it has)",
        )
    if status == "refused":
        return StageError(f"the library without TVM cannot be used on {said}")
    if status in ("full", "too_large"):
        return DeviceFullError(said, "room for the library on the device", "delete something there")
    if status == "busy":
        return DeviceBusyError(said, "one host at a time", "wait, or raise deploy.device_wait_s in params.yaml")
    if status in ("crashed", "timed_out", "digest", "no_such_file"):
        return DeviceLostError(
            said, "a library that runs to its end", "run the stage again; look at the device if it comes back"
        )
    return DeviceError(said, "a request that the agent takes")


def _digest_and_size(content: Path | bytes) -> tuple[str, int]:
    with _opened(content) as file:
        found = hashlib.sha256()
        while part := file.read(_MAX_DATA):
            found.update(part)
        return found.hexdigest(), file.tell()


@contextlib.contextmanager
def _opened(content: Path | bytes) -> Iterator[BinaryIO]:
    import io

    if isinstance(content, bytes):
        yield io.BytesIO(content)
        return
    with content.open("rb") as file:
        yield file
