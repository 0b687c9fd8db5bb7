"""Record a scorecard in MLflow once: parameters, tags, metrics, the tuning curve, the library as a LoggedModel.

Several machines may record one measurement at the same time. Its digest is a tag of its run; whoever finds two complete
runs of one digest keeps the one that all would keep.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tvmflow.backends.manifest import read_manifest
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.pipeline.record import RECORD_NAME, Record, record_text
from tvmflow.support.errors import StoreAwayError, StoreError
from tvmflow.support.files import digest_of
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking.mlflow import golden
from tvmflow.tracking.mlflow.address import sqlite_path
from tvmflow.tracking.mlflow.experiments import SOURCE, experiment_id
from tvmflow.tracking.mlflow.markers import read_marker, write_marker
from tvmflow.tracking.mlflow.notes import split
from tvmflow.tracking.mlflow.numbers import numbers_of
from tvmflow.tracking.mlflow.pyfunc import save_model
from tvmflow.tracking.mlflow.registry import (
    STAGES_FOLDER,
    find_library,
    mlflow_lock,
    model_of,
    register_version,
    registry_name,
)
from tvmflow.tracking.mlflow.store import open_mlflow
from tvmflow.tracking.mlflow.trend import Step, add_step

if TYPE_CHECKING:
    from mlflow import MlflowClient

MAX_PARAM_LENGTH = 500
RECORDER = "tvmflow.recorder"
# Files of each stage that a recording, a bundle or a comparison reads, where the stage has them.
RECORDED_FILES = {
    "evaluate": ("scorecard.json", "confusion.csv", "latency.csv"),
    "tune": ("curve.csv",),
    "build": ("library.so", "network.so", "manifest.json"),
    "fetch": ("golden.npz", "labels.json", "source.json"),
    "quantize": ("reference.npz",),
}
_VERSION_TAGS = (
    "cell",
    "precision",
    "library.sha256",
    "library.dvc_md5",
    "network.sha256",
    "network.dvc_md5",
    "device.key",
    "device.kind",
    "device.unit",
    "git.commit",
)


@dataclass(frozen=True)
class Measurement:
    """A scorecard, the records of the stages that led to it, and access to their files."""

    cell: Cell
    records: Mapping[str, Record]
    path: Callable[[str, str], Path]

    @property
    def digest(self) -> str:
        return self.records["evaluate"].digest()

    @property
    def measured_ms(self) -> int:
        """Return the time of the measurement in milliseconds since 1970."""
        return milliseconds(self.records["evaluate"].created)

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield stage and name of each file that is recorded."""
        for stage, names in RECORDED_FILES.items():
            yield from ((stage, name) for name in names if name in self.records[stage].outputs)

    def copy_to(self, folder: Path, but: tuple[str, ...] = ()) -> None:
        """Copy the recorded files and the records into a folder for each stage."""
        for stage, record in self.records.items():
            (folder / stage).mkdir(parents=True, exist_ok=True)
            (folder / stage / RECORD_NAME).write_text(record_text(record), encoding="utf-8")
        for stage, name in self.files():
            if name not in but:
                shutil.copyfile(self.path(stage, name), folder / stage / name)


def milliseconds(created: str) -> int:
    return int(datetime.fromisoformat(created).timestamp() * 1000)


def record_measurement(workspace: Workspace, measurement: Measurement, commit: str) -> bool:
    """Record a measurement unless the store has it. Returns whether it was missing. Raises StoreError."""
    digest = measurement.digest
    with mlflow_lock(workspace):
        commit = read_marker(workspace, digest).git_commit or commit  # known from when it was measured
        recording = _Recording(workspace, measurement, commit)
        known = recording.find()
        write_marker(workspace, digest, str(measurement.cell), commit, known or recording.write())
        return known is None


def recorder(workspace: Workspace) -> str:
    """Return the name of this workspace on this machine, by which it knows the runs that it left unfinished."""
    return digest_of([socket.gethostname(), str(workspace.root)])[:16]


def complete_runs(client: MlflowClient, experiment: str, digest: str) -> list[str]:
    """Return the complete runs of a measurement."""
    where = f"tags.`tvmflow.measurement` = '{digest}' and tags.`tvmflow.complete` = 'true'"
    return sorted(str(run.info.run_id) for run in client.search_runs([experiment], where))


def keep_one(client: MlflowClient, experiment: str, cell: Cell, tags: Mapping[str, str]) -> str:
    """Return the run of a measurement, after deleting those that other machines made meanwhile.

    tags: of the run. It is the run that the library's version refers to, else the first by name: the same one for all.
    """
    found = complete_runs(client, experiment, tags["tvmflow.measurement"])
    if len(found) == 1:
        return found[0]
    library = find_library(client, registry_name(cell), tags["library.sha256"], tags.get("network.sha256", ""))
    kept = library.run_id if library is not None and library.run_id in found else found[0]
    for run_id in found:
        if run_id != kept:
            _delete(client, run_id, but=model_of(library) if library else None)
    return kept


def _delete(client: MlflowClient, run_id: str, but: str | None) -> None:
    """Delete a run and its model, which another machine may do at the same time; not the model `but`."""
    for model in client.get_run(run_id).outputs.model_outputs:
        if model.model_id != but:
            with _done_already():
                client.delete_logged_model(model.model_id)
    with _done_already():
        client.delete_run(run_id)


@contextlib.contextmanager
def _done_already() -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except StoreAwayError:
        raise
    except (StoreError, MlflowException):
        pass


def version_tags(notes: Mapping[str, str], measured: str) -> dict[str, str]:
    """Return the tags of a library's version from the notes of the run that measured it."""
    picked = {name.replace(".", "_"): notes[name] for name in _VERSION_TAGS if name in notes}
    tools = {name.replace(".", "_", 1): text for name, text in notes.items() if name.startswith("toolchain.")}
    picked |= {name: text for name, text in tools.items() if ":" not in name}
    return {
        **picked,
        "measurement": notes["tvmflow.measurement"],
        "measured": measured,
        "build_key": notes["recipe.build"],
    }


class _Recording:
    def __init__(self, workspace: Workspace, measurement: Measurement, commit: str) -> None:
        self.workspace, self.measurement, self.commit = workspace, measurement, commit
        self.cell, self.records, self.digest = measurement.cell, measurement.records, measurement.digest
        self.client = open_mlflow(workspace)
        self.experiment = experiment_id(self.client, workspace, self.cell.model)
        self.card = Scorecard.from_json(json.loads(self._text("evaluate", "scorecard.json")))

    def _text(self, stage: str, name: str) -> str:
        return self.measurement.path(stage, name).read_text(encoding="utf-8")

    def find(self) -> str | None:
        """Return the complete run of this measurement, if it exists."""
        runs = complete_runs(self.client, self.experiment, self.digest)
        return runs[0] if runs else None

    def write(self) -> str:
        self._drop_unfinished()
        tags, _ = split(self._notes)
        made = self.measurement.measured_ms
        run = self.client.create_run(self.experiment, made, {**tags, **SOURCE}, run_name=self._run_name)
        run_id = str(run.info.run_id)
        self._write_numbers(run_id)
        model_id = self._log_library(run_id)
        measured = self.records["evaluate"].created
        register_version(self.client, self.cell, model_id, run_id, version_tags(self._notes, measured))
        self._log_dataset(run_id)
        step = Step(self.digest, self._notes, self._numbers, self.measurement.measured_ms)
        add_step(self.client, self.workspace, step)
        self.client.set_tag(run_id, "tvmflow.complete", "true")
        self.client.set_terminated(run_id)
        return keep_one(self.client, self.experiment, self.cell, tags)

    @property
    def _run_name(self) -> str:
        """Return a name that distinguishes runs: the cell, the toolchain, the library, the time."""
        sha256 = self.records["build"].outputs["library.so"].sha256
        when = self.records["evaluate"].created[:16].replace("T", " ")
        return f"{self.cell.target}:{self.cell.precision} TVM {self._toolchain.get('tvm', '?')} {sha256[:7]} {when}"

    def _drop_unfinished(self) -> None:
        """Delete the incomplete runs of killed attempts to record this measurement, but not those of others."""
        for run in self.client.search_runs([self.experiment], f"tags.`tvmflow.measurement` = '{self.digest}'"):
            if sqlite_path(self.workspace) is not None or run.data.tags.get(RECORDER) == recorder(self.workspace):
                self.client.delete_run(run.info.run_id)

    @functools.cached_property
    def _notes(self) -> dict[str, str]:
        device, build = self.card.device, self.records["build"]
        library, network = build.outputs["library.so"], build.outputs.get("network.so")
        return {
            "tvmflow.kind": "measurement",
            "tvmflow.measurement": self.digest,
            RECORDER: recorder(self.workspace),
            "cell": str(self.cell),
            "model": self.cell.model,
            "target": self.cell.target,
            "precision": self.cell.precision,
            "device.key": device.key,
            "device.kind": device.kind,
            "device.unit": device.unit,
            "device.build": device.build,
            **{f"gpu.{name}": text for name, text in (vars(device.gpu) if device.gpu else {}).items()},
            "library.sha256": library.sha256,
            "library.dvc_md5": library.md5,
            "network.sha256": network.sha256 if network else "",
            "network.dvc_md5": network.md5 if network else "",
            "git.commit": self.commit,
            "latency.badges": ", ".join(self.card.latency.compute.badges),
            **{f"toolchain.{name}": text for name, text in self._toolchain.items()},
            **{f"recipe.{name}": record.key for name, record in self.records.items()},
            **{f"code.{name}": digest_of(record.recipe["code"])[:12] for name, record in self.records.items()},
        }

    @property
    def _toolchain(self) -> dict[str, str]:
        """Return the toolchain of the schedules and of the library."""
        return {**self.records["tune"].recipe["toolchain"], **self.records["build"].recipe["toolchain"]}

    def _write_numbers(self, run_id: str) -> None:
        from mlflow.entities import Metric, Param

        now = self.measurement.measured_ms
        numbers = [Metric(key, value, now, 0) for key, value in self._numbers.items()]
        curve = [Metric("tuning.kernels_ms", value, now, step) for step, value in self._tuning_curve()]
        curve += [Metric("latency_ms.turn", value, now, at) for at, value in self._turns()]
        curve += [Metric("accuracy.by_form", value, now, at) for at, value in enumerate(self._accuracies())]
        params = [Param(key, value[:MAX_PARAM_LENGTH]) for key, value in self._params()]
        params += [Param(key, value) for key, value in split(self._notes)[1].items()]
        for start in range(0, max(len(curve), 1), 800):
            self.client.log_batch(run_id, metrics=[*(numbers if start == 0 else []), *curve[start : start + 800]])
        for start in range(0, len(params), 100):
            self.client.log_batch(run_id, params=params[start : start + 100])
        for name in ("scorecard.json", "confusion.csv", "latency.csv"):
            self.client.log_artifact(run_id, str(self.measurement.path("evaluate", name)))

    @functools.cached_property
    def _numbers(self) -> dict[str, float]:
        return numbers_of(self.card, self.records)

    def _tuning_curve(self) -> Iterator[tuple[int, float]]:
        for row in csv.DictReader(self._text("tune", "curve.csv").splitlines()):
            yield int(row["trial"]), float(row["kernels_ms"])

    def _turns(self) -> Iterator[tuple[int, float]]:
        """Yield the medians of the turns that the latency is of, in their order."""
        if self.card.has_time and self.card.latency.compute.is_time:
            yield from (
                (at, turn.median_ms) for at, turn in enumerate(self.card.latency.compute.by_turn) if turn.counts
            )

    def _accuracies(self) -> Iterator[float]:
        """Yield the accuracy of each form, from the source to the library."""
        if self.card.accuracy:
            yield from self.card.accuracy.by_form.values()

    def _params(self) -> Iterator[tuple[str, str]]:
        for stage, record in self.records.items():
            for key, value in record.recipe["params"].items():
                yield f"{stage}.{key}", value if isinstance(value, str) else json.dumps(value, sort_keys=True)

    def _log_library(self, run_id: str) -> str:
        """Log the library as a LoggedModel with this measurement's metrics and golden samples."""
        from mlflow.entities import LoggedModelOutput, Metric

        model = self.client.create_logged_model(
            self.experiment,
            name=f"{self.cell.target}-{self.cell.precision}",
            source_run_id=run_id,
            model_type="tvm-library",
            tags={"cell": str(self.cell), "sha256": self.records["build"].outputs["library.so"].sha256},
        )
        with temporary_folder("mlflow") as folder:
            self._write_model(Path(folder), run_id)
            self.client.log_model_artifacts(model.model_id, str(Path(folder) / "model"))
        self.client.finalize_logged_model(model.model_id, "READY")
        self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
        now = self.measurement.measured_ms
        self.client.log_batch(
            run_id, [Metric(k, v, now, 0, model_id=model.model_id, run_id=run_id) for k, v in self._numbers.items()]
        )
        return str(model.model_id)

    def _write_model(self, folder: Path, run_id: str) -> None:
        library = folder / "library"
        library.mkdir()
        for name in ("library.so", "manifest.json"):
            shutil.copyfile(self.measurement.path("build", name), library / name)
        names = [spec.name for spec in read_manifest(library).inputs]
        path = self.measurement.path
        inputs, outputs = golden.golden(path("fetch", "golden.npz"), path("quantize", "reference.npz"), names)
        golden.save(folder / "golden.npz", inputs, outputs)
        self.client.log_artifact(run_id, str(folder / "golden.npz"))
        save_model(folder / "model", library, inputs, outputs, self._toolchain["tvm"])
        self.measurement.copy_to(folder / "model" / STAGES_FOLDER, but=("library.so",))  # the model has it

    def _log_dataset(self, run_id: str) -> None:
        """Log the evaluation set as an input of the run."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        file = self.records["fetch"].outputs.get("evaluation.npz")
        if file is not None:
            count = self.card.agreement.samples
            dataset = Dataset(
                name=f"{self.cell.model} evaluation set",
                digest=file.sha256[:12],
                source_type="dvc",
                source=json.dumps({"md5": file.md5, "sha256": file.sha256}),
                profile=json.dumps({"num_rows": count}),
            )
            self.client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])])
