"""Find the addresses of MLflow's stores: the workspace's own sqlite, or what MLflow's variables name.

MLFLOW_TRACKING_URI names the store of runs, MLFLOW_REGISTRY_URI that of registered models, the same by default. A store
is a server (http, https) or a file of sqlite. Knows nothing of what is in them, and does not import MLflow.
"""

from __future__ import annotations

import os
from pathlib import Path

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.support.secrets import mask

TRACKING, REGISTRY = "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"
_FORMER = "TVMFLOW_MLFLOW_URI"
_SQLITE = "sqlite:///"


def mlflow_uri(workspace: Workspace) -> str:
    """Return the address of the store of runs. Raises UsageError for the variable of an earlier version, StoreError."""
    return _checked(os.environ.get(TRACKING) or workspace.mlflow_uri)


def registry_uri(workspace: Workspace) -> str:
    """Return the address of the store of registered models. Raises UsageError, StoreError."""
    return _checked(os.environ.get(REGISTRY) or mlflow_uri(workspace))


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def path_of(uri: str) -> Path | None:
    """Return the file of a sqlite store, None for a server."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def sqlite_path(workspace: Workspace) -> Path | None:
    """Return the file of the store of runs, or None if it is a server."""
    return path_of(mlflow_uri(workspace))


def identity(workspace: Workspace, address: str = "") -> str:
    """Return the name of a store in what a workspace notes: a server's address without credentials; a file inside the
    workspace relative to it, since both are moved together. address: by default of the store of runs.
    """
    uri = address or mlflow_uri(workspace)
    path = path_of(uri)
    if path is None:
        return mask(uri).rstrip("/")
    return str(path.relative_to(workspace.root)) if path.is_relative_to(workspace.root) else str(path.absolute())


def _checked(uri: str) -> str:
    if _FORMER in os.environ:
        raise UsageError(
            f"{_FORMER} is set, which no longer names MLflow's store",
            f"MLflow's own variables: {TRACKING} and, for another model registry, {REGISTRY}",
            f"unset {_FORMER} and set {TRACKING} to the same address",
        )
    if not is_server(uri) and path_of(uri) is None:
        raise StoreError(
            f"the MLflow store {mask(uri)} is not of a usable kind",
            "the address of a server (http, https), or sqlite:////PATH",
            f"start 'mlflow server' for a database or a folder, and set {TRACKING} to its address",
        )
    return uri
