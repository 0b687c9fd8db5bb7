"""Build addresses of pages in MLflow's UI.

`mlflow ui` serves the workspace's store at DEFAULT_UI. TVMFLOW_MLFLOW_UI sets another address; if TVMFLOW_MLFLOW_URI is
a server's address, that server is used.
"""

from __future__ import annotations

import os

DEFAULT_UI = "http://127.0.0.1:5000"


def mlflow_ui() -> str:
    """Return the address of MLflow's UI, without a trailing slash."""
    store = os.environ.get("TVMFLOW_MLFLOW_URI", "")
    served = store if store.startswith(("http://", "https://")) else DEFAULT_UI
    return (os.environ.get("TVMFLOW_MLFLOW_UI") or served).rstrip("/")


def run_url(experiment_id: str, run_id: str) -> str:
    """Return the page of a run."""
    return f"{mlflow_ui()}/#/experiments/{experiment_id}/runs/{run_id}"
