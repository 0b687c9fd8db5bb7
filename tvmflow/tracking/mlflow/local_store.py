"""Read the workspace's own sqlite store while another one is in use, and copy its runs there.

It keeps measurements whose files are neither in artifacts/ nor in DVC's cache any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking.mlflow.address import mlflow_uri, path_of
from tvmflow.tracking.mlflow.experiments import SOURCE, experiment_id
from tvmflow.tracking.mlflow.markers import write_marker
from tvmflow.tracking.mlflow.measurements import RECORDER, keep_one, recorder, version_tags
from tvmflow.tracking.mlflow.notes import notes_of, split
from tvmflow.tracking.mlflow.registry import register_version
from tvmflow.tracking.mlflow.releases import changes_in
from tvmflow.tracking.mlflow.store import clear_errors, complete_measurements
from tvmflow.tracking.mlflow.trend import Step, add_step

if TYPE_CHECKING:
    from mlflow import MlflowClient

_BATCH = 100


@dataclass(frozen=True)
class LocalStore:
    """The sqlite store of a workspace, beside the one in use."""

    workspace: Workspace
    client: MlflowClient

    @staticmethod
    def beside(workspace: Workspace) -> LocalStore | None:
        """Return the workspace's own store, None if it is the one in use or does not exist."""
        from mlflow import MlflowClient

        path, uri = path_of(workspace.mlflow_uri), workspace.mlflow_uri
        if mlflow_uri(workspace) == uri or path is None or not path.is_file() or not path.stat().st_size:
            return None
        client = clear_errors(workspace, MlflowClient)(tracking_uri=uri, registry_uri=uri)
        return LocalStore(workspace, client)

    def runs(self) -> dict[str, LocalRun]:
        """Return digest -> the complete run of a measurement."""
        return {run.data.tags["tvmflow.measurement"]: LocalRun(self, run) for run in complete_measurements(self.client)}

    def changes(self) -> list[dict[str, Any]]:
        """Return the changes of champions, as the lines of releases.jsonl."""
        return changes_in(self.client)


@dataclass(frozen=True)
class LocalRun:
    """A complete run of a measurement in the workspace's own store."""

    store: LocalStore
    run: Any

    @property
    def tags(self) -> Mapping[str, str]:
        tags: Mapping[str, str] = self.run.data.tags
        return tags

    @property
    def cell(self) -> str:
        return self.tags["cell"]

    @property
    def git_commit(self) -> str:
        return self.tags.get("git.commit", "unknown")

    @property
    def measured_ms(self) -> int:
        return int(self.run.info.start_time)

    @property
    def created(self) -> str:
        return datetime.fromtimestamp(self.measured_ms / 1000, UTC).isoformat(timespec="seconds")

    def copy_to(self, workspace: Workspace, client: MlflowClient) -> None:
        """Copy the run with its metrics, artifacts and library to the store in use. Raises StoreError."""
        cell = Cell.model_validate({name: self.tags[name] for name in ("model", "target", "precision")})
        experiment = experiment_id(client, workspace, cell.model)
        own, params = split(self.tags)
        own = {k: v for k, v in own.items() if not k.startswith("mlflow.") and k != "tvmflow.complete"}
        own[RECORDER] = recorder(workspace)
        made = client.create_run(experiment, self.measured_ms, {**own, **SOURCE}, run_name=self.run.info.run_name)
        run_id = str(made.info.run_id)
        self._copy_data(client, run_id, {**self.run.data.params, **params})
        model_id = self._copy_library(workspace, client, experiment, run_id)
        register_version(client, cell, model_id, run_id, version_tags(notes_of(self.run.data), self.created))
        digest = self.tags["tvmflow.measurement"]
        add_step(client, workspace, Step(digest, notes_of(self.run.data), self.run.data.metrics, self.measured_ms))
        client.set_tag(run_id, "tvmflow.complete", "true")
        client.set_terminated(run_id)
        write_marker(workspace, digest, str(cell), self.git_commit, keep_one(client, experiment, cell, own))

    def _copy_data(self, client: MlflowClient, run_id: str, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        source = self.run.info.run_id
        params = [Param(key, value) for key, value in values.items()]
        metrics = [m for name in self.run.data.metrics for m in self.store.client.get_metric_history(source, name)]
        for start in range(0, max(len(params), len(metrics)), _BATCH):
            client.log_batch(run_id, metrics[start : start + _BATCH], params[start : start + _BATCH])
        if self.run.inputs and self.run.inputs.dataset_inputs:
            client.log_inputs(run_id, self.run.inputs.dataset_inputs)
        with temporary_folder("mlflow") as folder:
            client.log_artifacts(run_id, self._download(Path(folder), run_id=source))

    def _copy_library(self, workspace: Workspace, client: MlflowClient, experiment: str, run_id: str) -> str:
        from mlflow.entities import LoggedModelOutput

        outputs = self.run.outputs.model_outputs if self.run.outputs else []
        if not outputs:
            raise StoreError("its library is missing in the workspace's own store")
        known = self.store.client.get_logged_model(outputs[0].model_id)
        model = client.create_logged_model(
            experiment, name=known.name, source_run_id=run_id, model_type=known.model_type, tags=dict(known.tags)
        )
        with temporary_folder("mlflow") as folder:
            files = self._download(Path(folder), artifact_uri=known.artifact_location)
            client.log_model_artifacts(model.model_id, files)
        client.finalize_logged_model(model.model_id, "READY")
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
        return str(model.model_id)

    def _download(self, folder: Path, **what: str) -> str:
        from mlflow import artifacts

        own = self.store.workspace.mlflow_uri
        download = clear_errors(self.store.workspace, artifacts.download_artifacts)
        return str(download(**what, dst_path=str(folder), tracking_uri=own, registry_uri=own))
