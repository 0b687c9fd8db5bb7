"""Simulate a phone: speak adb's device protocol on loopback and run commands as programs of this machine.

/data/local/tmp is a separate folder; getprop, dumpsys and svc are scripts. Only the requests of adb 29 to 36 are
supported: shell v2, sync v1, streams to ports.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import socket
import struct
import subprocess
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

CNXN, OPEN, OKAY, WRTE, CLSE, AUTH = (
    int.from_bytes(name, "little") for name in (b"CNXN", b"OPEN", b"OKAY", b"WRTE", b"CLSE", b"AUTH")
)
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = range(5)
_MAX = 1 << 18


class FakePhone:
    """Use as a context manager. serial: 127.0.0.1:PORT. authorized: whether somebody confirmed this computer.

    emulator: what goes before the agent, which is then a program of another processor.
    """

    def __init__(
        self,
        folder: Path,
        properties: dict[str, str] | None = None,
        authorized: bool = True,
        emulator: Sequence[str] = (),
    ) -> None:
        self.folder, self.authorized, self.emulator = folder, authorized, emulator
        self.disk_is_full = False
        (folder / "data").mkdir(parents=True)
        (folder / "bin").mkdir()
        self.properties = {
            "ro.product.model": "Fake 7",
            "ro.build.version.release": "15",
            "ro.soc.model": "SM0000",
            "ro.product.cpu.abi": "x86_64",
            "ro.build.fingerprint": "fake/fake/7:15/1",
            **(properties or {}),
        }
        cases = "".join(f"{name}) echo '{value}';;\n" for name, value in self.properties.items())
        self._script("getprop", f'case "$1" in\n{cases}esac')
        self._script("dumpsys", "echo '  level: 73'; echo '  temperature: 312'")
        self._script("svc", f'echo "svc $*" >> {folder}/calls')
        self._script("settings", f'echo "settings $*" >> {folder}/calls; [ "$1" = get ] && echo 0; true')
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._connections: list[_Connection] = []
        self._plugged = True
        self.reboot(restart=False)

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _script(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def __enter__(self) -> FakePhone:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()
        self.vanish()

    def unplug(self) -> None:
        """Break every connection and take no new one; what ran on the phone ends, as when adbd loses its host."""
        self._plugged = False
        for connection in self._connections:
            connection.end()
        self._connections.clear()

    def vanish(self) -> None:
        """Refuse every new connection, for good."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone leaves a thread that accepts one more
        self._listener.close()

    def plug_in(self) -> None:
        self._plugged = True

    def reboot(self, restart: bool = True) -> None:
        """End all that runs, and begin anew."""
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        if restart:
            self.unplug()
            self.plug_in()

    def local(self, text: str) -> str:
        """Return a path or a command with this machine's places."""
        if self.emulator:
            text = text.replace("exec /data", f"exec {shlex.join(self.emulator)} /data")
        if (self.folder / "cpuinfo").exists():
            text = text.replace("/proc/cpuinfo", f"{self.folder}/cpuinfo")
        return text.replace("/data/local/tmp", f"{self.folder}/data").replace(
            "/proc/sys/kernel/random/boot_id", f"{self.folder}/boot_id"
        )

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not self._plugged:
                    connection.close()
                    continue
                made = _Connection(self, connection)
                self._connections.append(made)
                threading.Thread(target=made.serve, daemon=True).start()


class _Connection:
    """One host. Each stream has a thread; what it writes waits for the host's OKAY."""

    def __init__(self, phone: FakePhone, connection: socket.socket) -> None:
        self.phone, self.connection = phone, connection
        self.streams: dict[int, _Stream] = {}
        self.lock = threading.Lock()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: list[socket.socket] = []

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        for stream in list(self.streams.values()):
            stream.incoming.put(None)
            stream.ready.set()
        for process in self.processes:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def send(self, command: int, one: int, two: int, content: bytes = b"") -> None:
        head = struct.pack("<6I", command, one, two, len(content), sum(content) & 0xFFFFFFFF, command ^ 0xFFFFFFFF)
        with self.lock, contextlib.suppress(OSError):
            self.connection.sendall(head + content)

    def _read(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            part = self.connection.recv(size - len(content))
            if not part:
                raise OSError("the host is gone")
            content += part
        return bytes(content)

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                command, one, two, size, _, _ = struct.unpack("<6I", self._read(24))
                self._answer(command, one, two, self._read(size))
        self.end()

    def _answer(self, command: int, one: int, two: int, content: bytes) -> None:
        if command in (CNXN, AUTH):
            if not self.phone.authorized:
                self.send(AUTH, 1, 0, os.urandom(20))
                return
            names = (("name", "fake"), ("model", self.phone.properties["ro.product.model"]), ("device", "fake"))
            facts = "".join(f"ro.product.{key}={value};" for key, value in names)
            self.send(CNXN, 0x01000001, _MAX, f"device::{facts}features=shell_v2,cmd,stat_v2".encode())
        elif command == OPEN:
            stream = _Stream(self, one)
            self.streams[stream.number] = stream
            threading.Thread(target=stream.serve, args=(content.rstrip(b"\0").decode(),), daemon=True).start()
        elif two in self.streams:
            stream = self.streams[two]
            if command == OKAY:
                stream.ready.set()
            elif command == WRTE:
                stream.incoming.put(content)
                self.send(OKAY, two, one)
            elif command == CLSE:
                stream.incoming.put(None)
                stream.closed = True
                stream.ready.set()


class _Stream:
    count = 0

    def __init__(self, connection: _Connection, remote: int) -> None:
        _Stream.count += 1
        self.connection, self.remote, self.number = connection, remote, _Stream.count
        self.incoming: queue.Queue[bytes | None] = queue.Queue()
        self.ready, self.closed = threading.Event(), False
        self.turn = threading.Lock()
        self._rest = b""

    def serve(self, service: str) -> None:
        serve = {"shell": self._shell, "exec": self._shell, "sync": self._sync, "tcp": self._tcp}.get(
            service.split(",")[0].split(":")[0]
        )
        if serve is None:
            self.connection.send(CLSE, 0, self.remote)
            return
        try:
            serve(service)
        except (OSError, EOFError):
            pass
        finally:
            self.connection.send(CLSE, self.number, self.remote)
            self.connection.streams.pop(self.number, None)

    def accept(self) -> None:
        self.ready.set()
        self.connection.send(OKAY, self.number, self.remote)

    def write(self, content: bytes) -> None:
        with self.turn:
            for at in range(0, len(content), _MAX):
                self.ready.wait()
                if self.closed:
                    raise EOFError
                self.ready.clear()
                self.connection.send(WRTE, self.number, self.remote, content[at : at + _MAX])

    def finish(self) -> None:
        with self.turn:
            self.ready.wait()

    def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            part = self.incoming.get()
            if part is None:
                raise EOFError
            self._rest += part
        content, self._rest = self._rest[:size], self._rest[size:]
        return content

    # -- services --

    def _shell(self, service: str) -> None:
        phone = self.connection.phone
        command = phone.local(service.partition(":")[2])
        environment = {**os.environ, "PATH": f"{phone.folder / 'bin'}:{os.environ['PATH']}"}
        process = subprocess.Popen(
            ["sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=phone.folder,
            env=environment,
            start_new_session=True,
        )
        self.connection.processes.append(process)
        self.accept()
        threading.Thread(target=self._feed, args=(process,), daemon=True).start()
        pumps = [
            threading.Thread(target=self._pump, args=pair, daemon=True)
            for pair in ((process.stdout, _STDOUT), (process.stderr, _STDERR))
        ]
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        code = process.wait() & 0xFF
        self.connection.processes.remove(process)
        self.write(struct.pack("<BIB", _EXIT, 1, code))
        self.finish()

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, size = struct.unpack("<BI", self.read(5))
                content = self.read(size)
                if kind == _CLOSE_STDIN:
                    break
                if kind == _STDIN:
                    process.stdin.write(content)
                    process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _pump(self, pipe: object, kind: int) -> None:
        with contextlib.suppress(EOFError, OSError, ValueError):
            while content := os.read(pipe.fileno(), 1 << 16):  # type: ignore[attr-defined]
                self.write(struct.pack("<BI", kind, len(content)) + content)

    def _sync(self, _: str) -> None:
        self.accept()
        while True:
            name, size = struct.unpack("<4sI", self.read(8))
            path = self.connection.phone.local(self.read(size).decode()) if name != b"QUIT" else ""
            if name == b"QUIT":
                return
            if name == b"STAT":
                self.write(struct.pack("<4s3I", b"STAT", *self._stat(path)))
            elif name in (b"STA2", b"LST2"):
                mode, length, when = self._stat(path)
                self.write(
                    struct.pack("<4sIQQIIIIQqqq", name, 0 if mode else 2, 0, 0, mode, 1, 0, 0, length, when, when, when)
                )
            elif name == b"SEND":
                self._receive(path.rpartition(",")[0])
            else:
                self._fail(f"{name!r} is not there")

    @staticmethod
    def _stat(path: str) -> tuple[int, int, int]:
        try:
            facts = Path(path).stat()
        except OSError:
            return 0, 0, 0
        return facts.st_mode, facts.st_size, int(facts.st_mtime)

    def _receive(self, path: str) -> None:
        parts = []
        while True:
            name, size = struct.unpack("<4sI", self.read(8))
            if name == b"DONE":
                break
            parts.append(self.read(size))
        if self.connection.phone.disk_is_full:
            self._fail("No space left on device")
            return
        Path(path).write_bytes(b"".join(parts))
        self.write(struct.pack("<4sI", b"OKAY", 0))

    def _fail(self, words: str) -> None:
        self.write(struct.pack("<4sI", b"FAIL", len(words)) + words.encode())

    def _tcp(self, service: str) -> None:
        peer = socket.create_connection(("127.0.0.1", int(service.partition(":")[2])), timeout=5)
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.sockets.append(peer)
        self.accept()

        def feed() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    peer.sendall(self.read(1))
                    content, self._rest = self._rest, b""
                    peer.sendall(content)
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=feed, daemon=True).start()
        with contextlib.suppress(OSError):
            while content := peer.recv(1 << 16):
                self.write(content)
        peer.close()
