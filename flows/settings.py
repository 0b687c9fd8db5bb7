"""Prefect's settings for a workspace: its home inside it, no telemetry. To be applied before Prefect is imported."""

from __future__ import annotations

import os

from tvmflow.ledger.store_paths import PRIVACY
from tvmflow.workspace import Workspace


def configure_prefect(workspace: Workspace) -> None:
    """Set what the user has not set. With PREFECT_API_URL a running server is used, else Prefect starts its own."""
    defaults = {
        **PRIVACY,
        "PREFECT_HOME": str(workspace.root / ".prefect"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",  # an error is told once, by the command line
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
