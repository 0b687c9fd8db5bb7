"""Configure Prefect for a workspace, before it is imported: its home, no telemetry, a server."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from pathlib import Path

import requests

from flows.prefect_server import CLIENT_SECRET, PrefectServer, check_server
from flows.stopping import exit_code, kill_stages, when_stopping
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import UsageError
from tvmflow.support.private_places import is_trusted
from tvmflow.support.secrets import mask, mask_process
from tvmflow.support.telemetry import PRIVACY

_STOP_S = 4.0
_servers: list[PrefectServer] = []


def configure_prefect(workspace: Workspace) -> None:
    """Set what the user has not set. With PREFECT_API_URL that server is used, else one is started for this process."""
    defaults = {
        **PRIVACY,
        "PREFECT_HOME": str(workspace.root / ".prefect"),
        "PREFECT_LOGGING_LEVEL": "INFO",  # for the page of the run
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the command line reports errors
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # no traceback per request that a server does not answer
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500,504",  # the server's database is away
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    _refuse_planted(Path.cwd(), workspace.root.stat().st_uid)
    is_ours = not os.environ.get("PREFECT_API_URL")
    if is_ours:
        os.environ[CLIENT_SECRET] = f"tvmflow:{secrets.token_hex(32)}"  # any local user can connect
    mask_process()  # Prefect keeps logs in its database
    if is_ours:
        _servers.append(PrefectServer(Path(os.environ["PREFECT_HOME"]), os.environ[CLIENT_SECRET]))
        os.environ["PREFECT_API_URL"] = _servers[-1].url
        threading.Thread(target=_end_with_server, args=(_servers[-1],), daemon=True).start()
    elif not _servers:
        check_server(os.environ["PREFECT_API_URL"])


def _refuse_planted(folder: Path, owner_of_workspace: int) -> None:
    """Raise UsageError for settings of Prefect, which name code, that another user put where the command is run."""
    for name in (".env", "prefect.toml", "pyproject.toml"):
        with contextlib.suppress(OSError):
            owner = (folder / name).lstat().st_uid
            if not is_trusted(owner) and owner != owner_of_workspace:
                raise UsageError(
                    f"{folder / name} belongs to another user",
                    "settings of your own: Prefect reads that file, and runs code that it names",
                    "change to a folder of your own, and pass the workspace as --root",
                )


def _end_with_server(server: PrefectServer) -> None:
    """End this process when its server does, as on a full disk: Prefect's client would try again for minutes."""
    error = server.wait_for_end()
    if error is not None:
        kill_stages()
        os.write(sys.stderr.fileno(), f"\nerror: {error}\n".encode())
        os._exit(error.exit_code)


def server_name() -> str:
    """Return a name of the server of runs: its address, '' for the temporary one of a workspace."""
    return mask(os.environ.get("PREFECT_API_URL", "")) if has_users_server() else ""


def _end_without_server() -> bool:
    """End this process some seconds after the user asked to stop if Prefect's server cannot be told of it."""
    threading.Thread(target=_watch_server, daemon=True).start()
    return False


def _watch_server() -> None:
    url = os.environ.get("PREFECT_API_URL")
    while url:
        time.sleep(_STOP_S)
        try:
            requests.get(f"{url.rstrip('/')}/health", timeout=10)
        except requests.RequestException:
            line = f"\nPrefect's server at {mask(url)} does not respond: the run ends without telling it\n"
            os.write(sys.stderr.fileno(), line.encode())
            os._exit(exit_code())


when_stopping(_end_without_server)


def has_users_server() -> bool:
    """Return whether runs are on a server of the user, which other machines may use too."""
    return bool(os.environ.get("PREFECT_API_URL")) and not _servers


def wait_for_prefect() -> None:
    """Wait until the server of `configure_prefect` is ready; it starts while Prefect is imported."""
    for server in _servers:
        server.wait()
