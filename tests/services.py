"""Services of a team on loopback, each behind a gate that closes: MLflow and Prefect on PostgreSQL, an S3 server.

What they need beside tvmflow's own packages is in an environment of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from tests.conftest import free_port
from tests.prefect_server import wait_for_health
from tests.tracking.mlflow_server import MlflowServer
from tvmflow.support.temporary import make_folder, remove_folder

PACKAGES = ("dvc-s3", "moto[server]", "psycopg2-binary")
SERVICES = ("mlflow", "prefect", "postgres", "s3")


def make_environment(root: Path) -> Path:
    """Return a Python with the packages, which also sees those of this one; skips without a registry."""
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
    [packages] = root.glob("lib/python*/site-packages")
    own = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "own.pth").write_text("\n".join(own))
    command = [str(root / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no package registry: {done.stderr[-200:]}")
    return root / "bin" / "python"


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server of HTTP answers."""
    deadline = time.monotonic() + 120
    while True:
        try:
            requests.get(address, timeout=2)
            return
        except requests.RequestException:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)


class PostgresServer:
    """A database of Debian's PostgreSQL on loopback, as the user nobody where this one is root.

    Its folder is beside those of pytest, which every new session closes to other users.
    """

    def __init__(self) -> None:
        self.root, self.port = make_folder("postgres"), free_port()
        self.data = self.root / "data"
        self.root.chmod(0o777)
        self._run("initdb", "--pgdata", str(self.data), "--username", "mlflow", "--auth", "trust")

    @staticmethod
    def skip_without() -> None:
        if not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
            pytest.skip("needs Debian's postgresql")

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg2://mlflow@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        [folder] = [path for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))][-1:]
        user = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
        subprocess.run([str(folder / program), *arguments], check=True, cwd="/", stdout=subprocess.DEVNULL, **user)  # type: ignore[call-overload]

    def make_database(self, name: str) -> None:
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "mlflow", name)

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.root}"
        self._run("pg_ctl", "start", "-w", "-D", str(self.data), "-l", str(self.root / "log"), "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self.data))

    def remove(self) -> None:
        """Stop it if it runs, and remove its folder."""
        if (self.data / "postmaster.pid").exists():
            self.stop()
        remove_folder(self.root)


class Gate:
    """A port of loopback that forwards to another one while it is open, and refuses connections while it is closed."""

    def __init__(self, behind: int) -> None:
        self.port, self._behind = free_port(), behind
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.open()

    def open(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections, and cut those that there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # else the thread that accepts keeps the port open
            listener.close()
        with self._lock:
            cut, self._open = self._open, set()
        for one in cut:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _address = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._behind))
            except OSError:
                return
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                sink.sendall(chunk)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, sink}


@contextlib.contextmanager
def answers(reply: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """Yield the address of a server of HTTP on loopback whose replies a function gives: path -> status and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = reply(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_HEAD = do_GET

        def log_message(self, *_words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class TeamServices:
    """The services of a team. gates: by SERVICES; environment: variables of those who use them."""

    def __init__(self, root: Path, python: Path) -> None:
        self.python, self._processes = python, list[subprocess.Popen[bytes]]()
        for name in ("mlflow", "prefect"):
            (root / name).mkdir()
        self._postgres = PostgresServer()
        self._postgres.start()
        self._postgres.make_database("prefect")
        self.gates = {"postgres": Gate(self._postgres.port)}
        database = f"mlflow@127.0.0.1:{self.gates['postgres'].port}"
        self._mlflow = MlflowServer(root / "mlflow", f"postgresql+psycopg2://{database}/postgres", str(python))
        self._mlflow.start()
        self.gates["mlflow"] = Gate(self._mlflow.port)
        prefect = self._start_prefect(root / "prefect", f"postgresql+asyncpg://{database}/prefect")
        self.gates["prefect"] = Gate(prefect)
        s3 = free_port()
        moto = [str(python.parent / "moto_server"), "-H", "127.0.0.1", "-p", str(s3)]
        self._processes.append(subprocess.Popen(moto, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for(f"http://127.0.0.1:{s3}", self._processes[-1])
        requests.put(f"http://127.0.0.1:{s3}/bucket", timeout=60).raise_for_status()
        self.gates["s3"] = Gate(s3)
        self.environment = {
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.gates['mlflow'].port}",
            "PREFECT_API_URL": f"http://127.0.0.1:{self.gates['prefect'].port}/api",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def _start_prefect(self, home: Path, database: str) -> int:
        port = free_port()
        variables = {"PREFECT_HOME": str(home), "PREFECT_SERVER_DATABASE_CONNECTION_URL": database}
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        self._processes.append(
            subprocess.Popen(
                command,
                env={**os.environ, **variables, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"},
                stdout=(home / "log").open("wb"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
        wait_for_health(f"http://127.0.0.1:{port}/api", 200)
        return port

    def remote(self, name: str) -> str:
        """Return the lines of DVC's configuration for a remote of its own in the S3 server."""
        options = {
            "url": f"s3://bucket/{name}",
            "endpointurl": f"http://127.0.0.1:{self.gates['s3'].port}",
            "access_key_id": "a",
            "secret_access_key": "b",
        }
        return "".join(f"    {key} = {text}\n" for key, text in options.items())

    def stop(self) -> None:
        for gate in self.gates.values():
            gate.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._mlflow.stop()
        self._postgres.remove()


@contextlib.contextmanager
def team_services(root: Path, python: Path) -> Iterator[TeamServices]:
    """Start the services within this context."""
    found = TeamServices(root, python)
    try:
        yield found
    finally:
        found.stop()
