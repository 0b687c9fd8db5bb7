"""Find or create the experiment of a model, and the location of its artifacts.

A server decides where artifacts go: through itself, or into its bucket. With a file of sqlite they lie beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.tracking.mlflow.address import sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient

# What MLflow's pages say of where a run comes from.
SOURCE = {"mlflow.source.name": "tvmflow", "mlflow.source.type": "LOCAL"}


def experiment_id(client: MlflowClient, workspace: Workspace, name: str) -> str:
    """Return the experiment of a model; create it if missing. Raises StoreError if nothing may be written to it."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        file = sqlite_path(workspace)
        place = None if file is None else str(file.absolute().parent / "artifacts" / name)
        try:
            return str(client.create_experiment(name, artifact_location=place))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = client.get_experiment_by_name(name)  # another machine was faster
    return _usable(workspace, found)


def _usable(workspace: Workspace, found: Any) -> str:
    if found.lifecycle_stage != "active":
        raise StoreError(
            f"the experiment {found.name!r} is deleted in MLflow",
            "an active experiment",
            f"restore it: mlflow experiments restore --experiment-id {found.experiment_id}",
        )
    if sqlite_path(workspace) is None and is_of_one_machine(found.artifact_location, found.name):
        number = found.experiment_id
        raise StoreError(
            f"the experiment {found.name!r} keeps its artifacts in a folder of one user: {found.artifact_location}",
            "artifacts that go through the MLflow server",
            f"give it another name: mlflow experiments rename --experiment-id {number} --new-name '{found.name} old'; "
            f"then delete it: mlflow experiments delete --experiment-id {number}; "
            "'tvmflow init --rebuild' records its measurements anew",
        )
    return str(found.experiment_id)


def is_of_one_machine(location: str, name: str) -> bool:
    """Return whether artifacts lie in a workspace, where earlier versions put them for a server too."""
    path = Path(location.removeprefix("file://"))
    return "://" not in location.removeprefix("file://") and path.parts[-3:] == ("mlruns", "artifacts", name)
