"""Build addresses of pages in MLflow's UI.

`mlflow ui` serves the workspace's store at DEFAULT_UI. TVMFLOW_MLFLOW_UI sets another address; if MLFLOW_TRACKING_URI
is a server's address, that server is used.
"""

from __future__ import annotations

import os

from tvmflow.config.workspace import Workspace
from tvmflow.support.secrets import mask
from tvmflow.tracking.mlflow.address import TRACKING, is_server, mlflow_uri

DEFAULT_UI = "http://127.0.0.1:5000"
# Else MLflow 3.17 shows the menu of language models; versions without that choice ignore it.
PAGES_OF_MODELS = "?workflowType=machine_learning"


def mlflow_ui() -> str:
    """Return the address of MLflow's UI, without credentials and without a trailing slash."""
    store = os.environ.get(TRACKING, "")
    served = store if is_server(store) else DEFAULT_UI
    return mask(os.environ.get("TVMFLOW_MLFLOW_UI") or served).rstrip("/")


def ui_command(workspace: Workspace) -> str:
    """Return how to see the pages of the store: the address of a server, or a command that serves a file."""
    uri = mlflow_uri(workspace)
    return mlflow_ui() if is_server(uri) else f"mlflow ui --backend-store-uri {uri}"


def run_url(experiment_id: str, run_id: str, pages: str = "") -> str:
    """Return the address of a run, for `page_of`. pages: `mlflow_ui()`, which takes as long as the rest of a row of a
    table.
    """
    return f"{pages or mlflow_ui()}/#/experiments/{experiment_id}/runs/{run_id}"


def page_of(url: str) -> str:
    """Return the page of an address in MLflow's UI, with the menu of models."""
    return url + PAGES_OF_MODELS
