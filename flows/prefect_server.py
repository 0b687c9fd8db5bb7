"""Run a Prefect server for one run of tvmflow if the user has none, in a session of its own.

Prefect would start one in the process group of the command: Ctrl-C would end it before the flow's result is recorded,
and after `kill -9` of the command it would run forever. As a module, this file is that server: it serves an inherited
listening socket, and ends when its standard input is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import requests

from tvmflow.support.errors import StageError, StoreError, first_line, last_words
from tvmflow.support.files import why_not_writable
from tvmflow.support.own_packages import own_module
from tvmflow.support.paths import CODE_ROOT
from tvmflow.toolchain.environments import cache_folder

SERVER_SECRET, CLIENT_SECRET = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 10.0


class PrefectServer:
    """A running server process; `url` is valid at once, and requests wait until the server is ready.

    secret: user and password, as user:password, without which it answers nothing but that it is healthy.
    """

    def __init__(self, home: Path, secret: str | None = None) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)  # the database has the logs of runs, and a key
        self.log = home / "server.log"
        self._new_database = _copy_empty_database(home / "prefect.db")
        with socket.create_server(("127.0.0.1", 0), backlog=512) as listener, self.log.open("wb") as log:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", own_module("flows.prefect_server"), str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(CODE_ROOT),
                    "PREFECT_HOME": str(home),
                    **({SERVER_SECRET: secret} if secret else {}),
                },
            )
        self._is_stopping = False
        atexit.register(self.stop)

    def wait_for_end(self) -> StageError | StoreError | None:
        """Wait until the process has ended. Returns why, None if `stop` ended it."""
        self.process.wait()
        if self._is_stopping:
            return None
        return self._known_reason() or StageError(
            f"Prefect's server of this run ended: {last_words(self.log.read_bytes()[-20_000:]) or 'nobody says why'}",
            "a server that responds to the end of the run",
            "what was made and measured is kept: run the same command again to resume",
        )

    def wait(self) -> None:
        """Wait until the server is ready. Raises StageError if it ended or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{self.url}/health", timeout=5).ok:
                    if self._new_database:
                        _keep_empty_database(self._new_database)
                    return
            time.sleep(0.05)
        if reason := self._known_reason():
            raise reason
        words = last_words(self.log.read_bytes()[-20_000:])
        raise StageError(
            f"Prefect's server did not start: {words or f'exit code {self.process.poll()}'}",
            f"a server on {self.url} within {START_TIMEOUT_S:g} s",
            f"run 'tvmflow doctor' and read {self.log}; if {self.log.parent / 'prefect.db'} is damaged, move it away: "
            "it holds no results, only Prefect's history of runs",
        )

    def _known_reason(self) -> StageError | StoreError | None:
        """Return why the server ended, if that is known by more than its last words."""
        if full := why_not_writable(self.log.parent):
            return full
        if b"Can't locate revision" not in self.log.read_bytes():
            return None
        database = self.log.parent / "prefect.db"
        return StageError(
            f"{database} was written by a newer Prefect than {version('prefect')}, which cannot read it",
            "one of this version, or an older one",
            f"install the Prefect that wrote it, or move {database} away: it holds no results, only Prefect's history "
            "of runs",
        )

    def stop(self) -> None:
        """Close the server's standard input and wait until it has ended."""
        self._is_stopping = True
        atexit.unregister(self.stop)
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _empty_database() -> Path:
    return cache_folder() / "prefect" / f"{version('prefect')}.db"


def _copy_empty_database(database: Path) -> Path | None:
    """Start a new workspace with a copy of a migrated database, since the hundred migrations take about 8 s.

    Prefect still checks for missing migrations. Returns the database if none of this version is cached yet.
    """
    kept = _empty_database()
    if database.exists() or "PREFECT_API_DATABASE_CONNECTION_URL" in os.environ:
        return None
    if not kept.exists():
        return database
    part = database.with_suffix(".part")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{kept}?mode=ro", uri=True)) as source:
            _copy(source, part)
            if source.execute("PRAGMA quick_check").fetchone() == ("ok",):
                part.replace(database)
                return None
    except sqlite3.Error:
        pass
    part.unlink(missing_ok=True)
    return database


def _keep_empty_database(database: Path) -> None:
    """Cache a database that only Prefect's start has written, without its keys. A failure only costs time."""
    kept = _empty_database()
    part = kept.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(sqlite3.Error, OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as source:
            _copy(source, part)
        part.replace(kept)


def _copy(source: sqlite3.Connection, to: Path) -> None:
    to.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(to)) as copy:
        source.backup(copy)
        copy.execute("DELETE FROM configuration")
        copy.commit()
        copy.execute("PRAGMA journal_mode=DELETE")  # a single file


def check_server(url: str) -> None:
    """Raise StageError if no Prefect server responds at the user's address."""
    try:
        response = requests.get(f"{url.rstrip('/')}/health", timeout=20)
        if response.ok or response.status_code in (401, 403):
            return
        reason = f"the server responds with {response.status_code} {response.reason}"
    except (requests.RequestException, ValueError) as error:
        reason = "nothing responds" if isinstance(error, requests.ConnectionError) else first_line(error)
    raise StageError(
        f"no Prefect server at {url}: {reason}",
        "PREFECT_API_URL to be the address of a running server, e.g. http://127.0.0.1:4200/api",
        "start it with 'prefect server start', correct the address, or unset PREFECT_API_URL if no schedule is needed",
    )


class _WithRoom:
    """An ASGI app that answers 507 in place of 500 while its folder takes no file: Prefect's client repeats a request
    for more than a minute after 500, and fails at once after 507.
    """

    def __init__(self, app: Any, home: Path) -> None:
        self._app, self._home = app, home

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def checked(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 500 and why_not_writable(self._home):
                message = {**message, "status": 507}
            await send(message)

        await self._app(scope, receive, checked)


def main() -> None:
    """Serve Prefect's API on an inherited socket until standard input is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    import uvicorn
    from prefect.server.api.server import create_app

    app = _WithRoom(create_app(ephemeral=True, final=True), Path(os.environ["PREFECT_HOME"]))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))

    def watch() -> None:
        while os.read(0, 1):
            pass
        server.should_exit = True
        time.sleep(_STOP_TIMEOUT_S / 2)
        os._exit(0)  # a hanging request must not keep the server alive

    threading.Thread(target=watch, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
    os._exit(0)


if __name__ == "__main__":
    main()
