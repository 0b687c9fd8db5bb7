"""Open the MLflow store of a workspace: sqlite inside mlruns/, artifacts beside it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from tvmflow.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

PRIVACY = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "DVC_NO_ANALYTICS": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


def open_mlflow(workspace: Workspace) -> MlflowClient:
    """Return a client of the workspace's store; TVMFLOW_MLFLOW_URI, where set, names another one."""
    for name, value in PRIVACY.items():
        os.environ.setdefault(name, value)
    (workspace.root / "mlruns" / "artifacts").mkdir(parents=True, exist_ok=True)
    for noisy in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    import mlflow
    from mlflow import MlflowClient

    uri = os.environ.get("TVMFLOW_MLFLOW_URI") or workspace.mlflow_uri
    mlflow.set_tracking_uri(uri)  # the registry resolves models:/ addresses through it, not through the client
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def experiment_id(client: MlflowClient, workspace: Workspace, model: str) -> str:
    """Return the experiment of a model, made where it is missing: one experiment per model."""
    found = client.get_experiment_by_name(model)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(model, artifact_location=str(workspace.root / "mlruns" / "artifacts" / model)))
