"""Record a scorecard in MLflow once: parameters, tags, metrics, the tuning curve, the library as a LoggedModel."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tvmflow.backends.manifest import read_manifest
from tvmflow.config.buckets import metric_of
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.agreement import Agreement
from tvmflow.evaluation.roofline import Bounds
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record
from tvmflow.support.errors import StoreError
from tvmflow.support.files import digest_of, write_atomic
from tvmflow.tracking.mlflow import golden
from tvmflow.tracking.mlflow.links import run_url
from tvmflow.tracking.mlflow.pyfunc import save_model
from tvmflow.tracking.mlflow.registry import mlflow_lock, register_version
from tvmflow.tracking.mlflow.store import experiment_id, experiment_of, holds_measurement, open_mlflow
from tvmflow.tracking.mlflow.trend import Step, add_step

MAX_PARAM_LENGTH = 500
_TUNING = ("measured", "device_hours", "trials_per_minute", "saved_s", "winograd")


@dataclass(frozen=True)
class Measurement:
    """A scorecard, the records of the stages that led to it, and access to their files."""

    cell: Cell
    records: dict[str, Record]
    path: Callable[[str, str], Path]

    @property
    def digest(self) -> str:
        return self.records["evaluate"].digest()

    @property
    def measured_ms(self) -> int:
        """Return the time of the measurement in milliseconds since 1970."""
        return int(datetime.fromisoformat(self.records["evaluate"].created).timestamp() * 1000)


def recorded_path(workspace: Workspace, record: Record) -> Path:
    """Return the marker file of a recorded measurement, which contains its run."""
    return workspace.artifacts / ".recorded" / f"{record.digest()}.json"


def is_recorded(workspace: Workspace, cell: Cell) -> bool:
    """Return whether the scorecard in the cell's folder is in MLflow; does not start MLflow. Raises StoreError."""
    try:
        record = read_record(workspace.folder("evaluate", cell) / RECORD_NAME)
    except StoreError:
        return True  # nothing to record
    run_id = _marker(workspace, record).get("run_id")
    return run_id is not None and holds_measurement(workspace, run_id)


def run_page(workspace: Workspace, cell: Cell) -> str | None:
    """Return the address in MLflow's UI of the measurement in the cell's folder, None where it is not recorded."""
    try:
        run_id = _marker(workspace, read_record(workspace.folder("evaluate", cell) / RECORD_NAME)).get("run_id")
    except StoreError:
        return None
    return run_id and run_url(experiment_of(workspace, run_id), run_id)


def _marker(workspace: Workspace, record: Record) -> dict[str, str]:
    try:
        marker = json.loads(recorded_path(workspace, record).read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in marker.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def ensure_recorded(workspace: Workspace, cell: Cell) -> None:
    """Record the cell's scorecard unless MLflow has it. Safe to repeat after a crash at any point."""
    if is_recorded(workspace, cell):
        return
    records: dict[str, Record] = {}
    todo = ["evaluate"]
    while todo:  # what the scorecard was made from: the same stages that a rebuild follows
        name = todo.pop()
        if name not in records:
            with contextlib.suppress(StoreError):
                records[name] = read_record(workspace.folder(name, cell) / RECORD_NAME)
                todo += records[name].recipe["inputs"]
    record_measurement(
        workspace,
        Measurement(cell, records, lambda stage, name: workspace.folder(stage, cell) / name),
        git_commit(workspace.root),
    )


def record_measurement(workspace: Workspace, measurement: Measurement, commit: str) -> bool:
    """Record a measurement unless it exists. Returns whether it was missing."""
    record = measurement.records["evaluate"]
    with mlflow_lock(workspace):
        marker = _marker(workspace, record)
        if marker and holds_measurement(workspace, marker["run_id"]):
            return False
        commit = marker.get("git_commit", commit)  # known from when it was measured
        recording = _Recording(workspace, measurement, commit)
        known = recording.find()
        run_id = known or recording.write()
        marker = {"run_id": run_id, "cell": str(measurement.cell), "git_commit": commit}
        write_atomic(recorded_path(workspace, record), json.dumps(marker))
        return known is None


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
        runs = self.client.search_runs(
            [self.experiment], f"tags.`tvmflow.measurement` = '{self.digest}' and tags.`tvmflow.complete` = 'true'"
        )
        return str(runs[0].info.run_id) if runs else None

    def write(self) -> str:
        self._drop_unfinished()
        run = self.client.create_run(self.experiment, self.measurement.measured_ms, self._tags, run_name=self._run_name)
        run_id = str(run.info.run_id)
        self._write_numbers(run_id)
        model_id = self._log_library(run_id)
        register_version(self.client, self.cell, model_id, run_id, self._version_tags())
        self._log_dataset(run_id)
        step = Step(self.digest, self._tags, self._numbers, self.measurement.measured_ms)
        add_step(self.client, self.workspace, step)
        self.client.set_tag(run_id, "tvmflow.complete", "true")
        self.client.set_terminated(run_id)
        return run_id

    @property
    def _run_name(self) -> str:
        """Return a name that distinguishes runs: the cell, the toolchain, the library, the time."""
        sha256 = self.records["build"].outputs["library.so"].sha256
        when = self.records["evaluate"].created[:16].replace("T", " ")
        return f"{self.cell.target}:{self.cell.precision} TVM {self._toolchain.get('tvm', '?')} {sha256[:7]} {when}"

    def _drop_unfinished(self) -> None:
        """Delete the incomplete runs of killed attempts to record this measurement."""
        for run in self.client.search_runs([self.experiment], f"tags.`tvmflow.measurement` = '{self.digest}'"):
            self.client.delete_run(run.info.run_id)

    @functools.cached_property
    def _tags(self) -> dict[str, str]:
        device, build = self.card.device, self.records["build"]
        library, network = build.outputs["library.so"], build.outputs.get("network.so")
        return {
            "tvmflow.kind": "measurement",
            "tvmflow.measurement": self.digest,
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

    def _version_tags(self) -> dict[str, str]:
        tags = self._tags
        chosen = (
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
        picked = {name.replace(".", "_"): tags[name] for name in chosen}
        picked |= {f"toolchain_{name}": text for name, text in self._toolchain.items() if ":" not in name}
        measured = self.records["evaluate"].created
        return {**picked, "measurement": self.digest, "measured": measured, "build_key": self.records["build"].key}

    def _write_numbers(self, run_id: str) -> None:
        from mlflow.entities import Metric, Param

        now = self.measurement.measured_ms
        numbers = [Metric(key, value, now, 0) for key, value in self._numbers.items()]
        curve = [Metric("tuning.kernels_ms", value, now, step) for step, value in self._tuning_curve()]
        params = [Param(key, value[:MAX_PARAM_LENGTH]) for key, value in self._params()]
        for start in range(0, max(len(curve), 1), 800):
            self.client.log_batch(run_id, metrics=[*(numbers if start == 0 else []), *curve[start : start + 800]])
        for start in range(0, len(params), 100):
            self.client.log_batch(run_id, params=params[start : start + 100])
        for name in ("scorecard.json", "confusion.csv", "latency.csv"):
            self.client.log_artifact(run_id, str(self.measurement.path("evaluate", name)))

    @functools.cached_property
    def _numbers(self) -> dict[str, float]:
        """Return the metrics of the scorecard; the badges of latencies are in the tag `latency.badges`."""
        card = self.card
        numbers = _agreement("agreement", card.agreement)
        if card.accuracy:
            shares = card.accuracy.by_form
            numbers |= {"accuracy" if form == "built" else f"accuracy.{form}": share for form, share in shares.items()}
        for step, agreement in card.agreement_by_step.items():
            numbers |= _agreement(f"agreement.{step}", agreement)
        numbers |= {
            f"quantization.{name}": float(value)
            for name, value in card.quantization.items()
            if name in ("output_sqnr_db", "float_score", "quantized_score") and value is not None
        }
        for name, latency in vars(card.latency).items():
            numbers[f"undisturbed.{name}"] = latency.undisturbed / latency.turns
            numbers |= _known(latency, {f"{state}.{name}": state for state in ("foreign_load", "round_trip_ns")})
            if latency.is_time:
                prefix = f"{name}_ms" if name != "compute" else ("latency_ms" if card.has_time else "simulator_ms")
                stats = ("median", "mean", "p90", "min", "max", "std", "low", "high")
                numbers |= _known(latency, {f"{prefix}.{stat}": f"{stat}_ms" for stat in stats})
        numbers |= {f"peer_ms.{name}": peer.median_ms for name, peer in card.peers.items() if peer.is_time}
        for name, advantage in card.advantages.items():
            numbers |= _known(advantage, {f"advantage.{name}.{k}": k for k in ("times_faster", "low", "high")})
        if card.machine and card.machine.latency.is_time:
            numbers["machine_ms.median"] = card.machine.latency.median_ms
        if card.executed:
            numbers |= {name: float(value) for name, value in vars(card.executed).items()}
        else:
            numbers |= _known(card, {f"{start}_ms": f"median_{start}_ms" for start in ("cold_start", "first_run")})
        if card.memory_bytes:
            numbers["memory_bytes"] = float(card.memory_bytes)
        numbers |= _of_gpu(card) | {metric_of(k): one.median_ms for k, one in card.sizes.items() if one.is_time}
        numbers |= card.bounds.metrics if isinstance(card.bounds, Bounds) else {}
        numbers["library_bytes"] = float(card.library_bytes)
        numbers["tuning.coverage"] = float(card.coverage)
        numbers |= {name: float(value) for name, value in (card.part.metrics if card.part else {}).items()}
        tuned = self.records["tune"].facts if "tune" in self.records else {}
        numbers |= {f"tuning.{name}": float(tuned[name]) for name in _TUNING if name in tuned}
        kernels = tuned.get("kernels", {})
        numbers |= {f"tuning.kernels.{origin}": float(count) for origin, count in kernels.items()}
        numbers |= {f"stage_s.{name}": record.elapsed_s for name, record in self.records.items()}
        return numbers

    def _tuning_curve(self) -> Iterator[tuple[int, float]]:
        for row in csv.DictReader(self._text("tune", "curve.csv").splitlines()):
            yield int(row["trial"]), float(row["kernels_ms"])

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
        with tempfile.TemporaryDirectory() as folder:
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


def _of_gpu(card: Scorecard) -> dict[str, float]:
    """Return the numbers that only libraries of a GPU have."""
    numbers = {f"gpu.{name}": float(value) for name, value in (vars(card.gpu) if card.gpu else {}).items()}
    return numbers | _known(card.kernel_agreement, {"kernel_agreement.largest_error": "largest_error"})


def _agreement(prefix: str, agreement: Agreement) -> dict[str, float]:
    """Return the numbers of one comparison under their names; a model with one output has no top-1."""
    return _known(agreement, {f"{prefix}.{name}": name for name in vars(agreement) if name != "samples"})


def _known(part: object, names: Mapping[str, str]) -> dict[str, float]:
    """Return metric -> number, for those that a part of a scorecard has. names: metric -> attribute."""
    found = {metric: getattr(part, name, None) for metric, name in names.items()}
    return {metric: float(value) for metric, value in found.items() if value is not None}


def git_commit(root: Path) -> str:
    """Return the commit of the workspace, with '+changes' when files differ from it; 'none' outside of git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
        if head.returncode:
            return "none"
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True, check=False
        )
        return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")
    except OSError:
        return "none"
