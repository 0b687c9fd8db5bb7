"""Configure Prefect for a workspace, before it is imported: its home, no telemetry, a server."""

from __future__ import annotations

import os
from pathlib import Path

from flows.prefect_server import PrefectServer, check_server
from tvmflow.config.workspace import Workspace
from tvmflow.support.telemetry import PRIVACY

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
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("PREFECT_API_URL"):
        _servers.append(PrefectServer(Path(os.environ["PREFECT_HOME"])))
        os.environ["PREFECT_API_URL"] = _servers[-1].url
    elif not _servers:
        check_server(os.environ["PREFECT_API_URL"])


def has_users_server() -> bool:
    """Return whether runs are on a server of the user, which other machines may use too."""
    return bool(os.environ.get("PREFECT_API_URL")) and not _servers


def wait_for_prefect() -> None:
    """Wait until the server of `configure_prefect` is ready; it starts while Prefect is imported."""
    for server in _servers:
        server.wait()
