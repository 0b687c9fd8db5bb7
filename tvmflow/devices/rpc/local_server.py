"""Run one RPC server of TVM on loopback for one client, until standard input is closed.

Started as a separate process by `devices/rpc/local.py`. When that process ends for any reason, the pipe on standard
input closes and this one ends too. TVM's server runs whatever its client asks for, and loopback is open to all users of
the machine. So the client has to be a process of this user, and to say the secret, which is the first line of standard
input. Prints one JSON line with the port.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import json
import multiprocessing
import os
import queue
import signal
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from tvmflow.devices.tracker_protocol import read_exactly
from tvmflow.support.tvm_import import prepare_import_of_tvm

_GREETING_S = 10.0
_MOST_GREETINGS = 16  # at a time
_LONGEST_KEY = 1000


def keep_serving_after_a_crash() -> None:
    """Patch TVM's RPC server so that its listener survives a crashed session."""
    import tvm.rpc.server as server

    serving = server._serving
    folder = Path.cwd()

    def safe(connection: Any, *args: Any, **named: Any) -> None:
        try:
            serving(connection, *args, **named)
        except RuntimeError:
            os.chdir(folder)
            connection.close()

    server._serving = safe


def user_of_peer(connection: socket.socket) -> int | None:
    """Return the id of the user at the other end of a connection over loopback, None if the system does not say."""
    ends = [_as_in_proc(*connection.getpeername()), _as_in_proc(*connection.getsockname())]
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1:3] == ends:
                return int(fields[7])
    return None


def _as_in_proc(address: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"


class Listener:
    """Accepts connections of one user who knows a secret. port: on loopback."""

    def __init__(self, secret: str) -> None:
        self._expected = f"client:{secret}".encode()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._socket.getsockname()[1])
        self._places = threading.Semaphore(_MOST_GREETINGS)
        self._ready: queue.SimpleQueue[tuple[socket.socket, list[str]]] = queue.SimpleQueue()

    def next(self) -> tuple[socket.socket, list[str]]:
        """Return the next connection, and the options that its client has sent."""
        return self._ready.get()

    def accept(self) -> None:
        """Accept connections for ever. A silent one keeps no other waiting."""
        while True:
            connection, _ = self._socket.accept()
            if user_of_peer(connection) in (None, os.geteuid()) and self._places.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        """Do the handshake of TVM's protocol, where the key is the secret."""
        import tvm.rpc.base as base

        try:
            magic, size = struct.unpack("<ii", read_exactly(connection, 8, _GREETING_S))
            if magic != base.RPC_MAGIC or not 0 < size < _LONGEST_KEY:
                raise OSError("no client of TVM")
            key, *options = read_exactly(connection, size, _GREETING_S).split(b" ")
            if not hmac.compare_digest(key, self._expected):
                connection.sendall(struct.pack("<i", base.RPC_CODE_MISMATCH))
                raise OSError("another secret")
            name = b"server:local"
            connection.sendall(struct.pack("<ii", base.RPC_CODE_SUCCESS, len(name)) + name)
            connection.settimeout(None)
            self._ready.put((connection, [option.decode() for option in options]))
        except (OSError, ValueError):
            connection.close()
        finally:
            self._places.release()


def _serve(listener: Listener) -> None:
    """Serve one session after the other, each in a forked process."""
    import tvm.rpc.server as server

    while True:
        connection, options = listener.next()
        server._serving(connection, "this machine", server._parse_server_opt(options), None)


def _read_secret() -> str:
    """Return the first line of standard input; not by sys.stdin, on whose lock a forked session would block."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--target", help="a resolved target as JSON: provide what its libraries call")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; only the closed pipe ends it
    secret = _read_secret()

    prepare_import_of_tvm()
    import tvm.rpc.server as server

    server.logger.setLevel("ERROR")
    keep_serving_after_a_crash()
    if options.target:
        from tvmflow.backends.registry import backend_of
        from tvmflow.support.json_values import from_json
        from tvmflow.targets.resolve import ResolvedTarget

        target = from_json(ResolvedTarget, json.loads(options.target))
        backend_of(target).provide()  # sessions are forked, and inherit it
    listener = Listener(secret)
    for work in (listener.accept, lambda: _serve(listener)):
        threading.Thread(target=work, daemon=True).start()
    print(json.dumps({"port": listener.port}), flush=True)
    while os.read(0, 1):
        pass
    for session in multiprocessing.active_children():
        session.kill()
    os._exit(0)  # the threads do not end


if __name__ == "__main__":
    main()
