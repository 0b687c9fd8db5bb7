"""Measure how DVC's files, publishing and reading grow with the cells: `python -m bench.team_scale FOLDER`.

Makes a workspace in FOLDER (empty or missing) whose stages and measurements are made up: nothing is compiled, measured
or fetched. The records have the recipe keys that the stages have now, so that a run finds nothing to do. Prints
seconds and sizes next to the goals; exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
import yaml
from onnx import TensorProto, helper

from flows.recording import record
from tasks.table import STAGES
from tvmflow.config.params import STAGE_NAMES, Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.agreement import Agreement
from tvmflow.pipeline.record import RECORD_NAME, Record, describe_folder, record_text
from tvmflow.pipeline.store import Plan, Store
from tvmflow.support.errors import StoreError
from tvmflow.tracking.dvc import repository as dvc
from tvmflow.tracking.mlflow.markers import write_marker
from tvmflow.tracking.mlflow.notes import split
from tvmflow.tracking.mlflow.registry import registry_name
from tvmflow.tracking.mlflow.store import open_mlflow

_TARGETS = 15
_START_S = 1_750_000_000
_LATENCY: dict[str, Any] = {
    **{"mean_ms": 1.0, "p90_ms": 1.0, "min_ms": 1.0, "max_ms": 1.0, "std_ms": 0.0},
    **{"runs": 30, "turns": 60, "undisturbed": 60},
    **{"badges": [], "elsewhere": [], "is_time": True, "foreign_load": 0.01, "round_trip_ns": 60.0},
}
_AGREEMENT = Agreement(1.0, 0.0, 0.0, 200.0, 1.0, 8).to_json()


class SyntheticWorkspace:
    """A workspace with models m000, m001, ... on 15 targets, of which nothing was ever made."""

    def __init__(self, root: Path, cells: int) -> None:
        models = [f"m{number:03}" for number in range(-(-cells // _TARGETS))]
        targets = [f"t{number:02}" for number in range(_TARGETS)]
        pairs = [(model, target) for model in models for target in targets][:cells]
        root.mkdir(parents=True, exist_ok=True)
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in ("x", "y")]
        identity = helper.make_node("Identity", ["x"], ["y"])
        onnx.save(helper.make_model(helper.make_graph([identity], "g", values[:1], values[1:])), root / "model.onnx")
        target = {"kind": "llvm", "mcpu": "znver3", "device": {"transport": "local", "key": "local-cpu"}}
        entry = {"framework": "onnx", "weights": {"file": "model.onnx"}, "input": {"shape": [1, 3, 8, 8]}}
        params = {
            "models": dict.fromkeys(models, entry),
            "targets": {name: {**target, "threads": 1 + at % 2} for at, name in enumerate(targets)},
            "cells": {f"{m}-{t}": {"model": m, "target": t, "precision": "float32"} for m, t in pairs},
        }
        text = yaml.dump(params, Dumper=_NoAnchors, sort_keys=False)
        (root / "params.yaml").write_text(text, encoding="utf-8")
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        (root / ".gitignore").write_text("artifacts/\nmlruns/\n/dvc_storage/\n", encoding="utf-8")
        (root / ".dvcignore").write_text("mlruns\n", encoding="utf-8")
        self.workspace = Workspace(root)
        self.cells = list(self.workspace.params.cells.values())
        self.store = Store(self.workspace, STAGES)
        dvc.initialize(self.workspace)

    def make(self, cell: Cell, number: int = 0) -> dict[str, Record]:
        """Write the folders of a cell as its stages leave them, with the keys that they have now."""
        records = {}
        for name in STAGES:
            plan = self.store.plan(name, cell)
            assert isinstance(plan, Plan), plan
            folder = self._fill(name, cell, number)
            records[name] = Record(
                stage=name,
                cell=str(cell),
                key=plan.key,
                recipe=plan.recipe,
                outputs=describe_folder(folder),
                elapsed_s=1.0,
                created=datetime.fromtimestamp(_START_S + 60 * number, UTC).isoformat(timespec="seconds"),
            )
            (folder / RECORD_NAME).write_text(record_text(records[name]), encoding="utf-8")
        return records

    def leave(self, cell: Cell) -> None:
        """Write the folders of a cell with records that only DVC can read."""
        for name in STAGES:
            (self._fill(name, cell, 0) / RECORD_NAME).write_text(f"{name} of {cell}", encoding="utf-8")

    def _fill(self, stage: str, cell: Cell, number: int) -> Path:
        folder = self.workspace.folder(stage, cell)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, text in _files(stage, cell, number).items():
            (folder / file).write_text(text, encoding="utf-8")
        if STAGES[stage].keeps_log:
            log = self.workspace.tuning_log(cell)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"{cell}\n", encoding="utf-8")
        return folder

    def measure(self, records: dict[str, dict[str, Record]], each: int) -> None:
        """Put measurements of every cell into the MLflow store, the last of them that in its folders."""
        store = self.workspace.root / "mlruns" / "mlflow.db"
        empty = store.with_name("empty.db")
        if not empty.exists():
            open_mlflow(self.workspace).search_experiments()
            shutil.copyfile(store, empty)
        shutil.copyfile(empty, store)
        database = sqlite3.connect(store)
        with database:
            rows = _Rows(database)
            for cell in self.cells:
                for number in range(each):
                    run_id = rows.add(cell, records[str(cell)], number, each)
                digest = records[str(cell)]["evaluate"].digest()
                write_marker(self.workspace, digest, str(cell), "none", run_id)
            rows.flush()
        database.close()


class _NoAnchors(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _files(stage: str, cell: Cell, number: int) -> dict[str, str]:
    names = {file for other in STAGES.values() for file in other.inputs.get(stage) or ()}
    names |= {output.name for output in STAGES[stage].outputs} | {"made.txt"}
    if STAGES[stage].outputs:
        names.discard("made.txt")
    texts = {name: f"{name} of {stage} of {cell}: {number}" for name in names - {RECORD_NAME}}
    if stage == "tune":
        texts |= {"curve.csv": "trial,kernels_ms\n" + "".join(f"{at},{2 - at / 16}\n" for at in range(16))}
        texts |= {"workloads.json": "[]"}
    if stage == "build":
        texts |= {"library.so": f"library of {cell}: {number}"}
    if stage == "evaluate":
        texts |= {"scorecard.json": json.dumps(_card(cell, number)), "metrics.json": '{"latency_ms": 1.0}'}
        texts |= {"confusion.csv": "actual,predicted\n", "latency.csv": "what,median_ms\n"}
    return texts


def _card(cell: Cell, number: int) -> dict[str, Any]:
    latency = {"median_ms": 1.0 + number / 1000, "low_ms": 0.99, "high_ms": 1.01, **_LATENCY}
    return {
        "cell": str(cell),
        "device": {"key": cell.target, "kind": "cpu-test-t2", "threads": 2, "unit": "unit-1", "build": "debian 13"},
        "batch": 1,
        "library_bytes": 50_000,
        "coverage": 1.0,
        "cold_start_ms": [1.0],
        "peers": {},
        "part": None,
        "latency": dict.fromkeys(("compute", "copy_in", "copy_out"), latency),
        "quantization": {},
        "agreement": _AGREEMENT,
        "agreement_by_step": {},
        "accuracy": {**dict.fromkeys(("source", "imported", "quantized", "built"), 0.9), "samples": 8},
        "minute": number,
    }


class _Rows:
    """Rows of MLflow's tables, inserted in bulk: as many tags, parameters and metrics as a measurement has."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._experiments: dict[str, int] = {}

    def add(self, cell: Cell, records: dict[str, Record], number: int, each: int) -> str:
        """Add a measurement with its library. Returns the run."""
        run_id = hashlib.md5(f"{cell} {number}".encode(), usedforsecurity=False).hexdigest()
        experiment = self._experiment(cell.model)
        when = 1000 * (_START_S + 3600 * number)
        run = (run_id, str(cell), "LOCAL", "", "", "", "FINISHED", when, when, "", "active", "", experiment, None)
        self._put("runs", run)
        sha256 = hashlib.sha256(f"{cell} {number // 10}".encode()).hexdigest()
        if number == each - 1:
            sha256 = records["build"].outputs["library.so"].sha256
        self._tags(run_id, cell, records, sha256)
        for stage, one in records.items():
            for key, value in one.recipe["params"].items():
                self._put("params", (f"{stage}.{key}", json.dumps(value, sort_keys=True)[:500], run_id))
        numbers = {f"stage_s.{name}": 1.0 for name in records} | {f"number.{at}": float(at) for at in range(40)}
        numbers |= {"latency_ms.median": 1.0 + number % 7 / 100, "latency_ms.low": 0.99, "latency_ms.high": 1.08}
        numbers |= {"accuracy": 0.9, "library_bytes": 50_000.0, "agreement.max_relative_error": 1e-6}
        for key, value in numbers.items():
            self._put("latest_metrics", (key, value, when, 0, 0, run_id))
            self._put("metrics", (key, value, when, run_id, 0, 0))
        if number % 10 == 0:
            self._version(cell, sha256, number // 10 + 1, run_id)
        return run_id

    def _tags(self, run_id: str, cell: Cell, records: dict[str, Record], sha256: str) -> None:
        tags = {"tvmflow.kind": "measurement", "tvmflow.measurement": records["evaluate"].digest(), "cell": str(cell)}
        tags |= {"tvmflow.complete": "true", **cell.model_dump(mode="json"), "device.key": cell.target}
        tags |= {"device.kind": "cpu-test-t2", "device.unit": "unit-1", "device.build": "debian 13"}
        tags |= {"library.sha256": sha256, "network.sha256": "", "git.commit": "none", "latency.badges": ""}
        tags |= {f"toolchain.{name}": text for name, text in records["build"].recipe["toolchain"].items()}
        tags |= {f"{what}.{name}": one.key for name, one in records.items() for what in ("recipe", "code")}
        for table, notes in zip(("tags", "params"), split(tags), strict=True):
            for key, value in notes.items():
                self._put(table, (key, value, run_id))

    def _version(self, cell: Cell, sha256: str, number: int, run_id: str) -> None:
        name, when = registry_name(cell), 1000 * _START_S
        if number == 1:
            self._put("registered_models", (name, when, when, None, "default"))
            release = {"what": "promote", "version": "1", "before": None, "when": "2026-01-01", "why": "first"}
            self._put(
                "registered_model_tags", ("release.000001.0", json.dumps({**release, "done": True}), name, "default")
            )
            self._put("registered_model_aliases", ("champion", 1, name, "default"))
        row = (name, number, when, when, None, None, "None", "", run_id, "READY", None, None, None, "default")
        self._put("model_versions", row)
        for key, value in {"library_sha256": sha256, "network_sha256": "", "cell": str(cell)}.items():
            self._put("model_version_tags", (key, value, name, number, "default"))

    def _experiment(self, model: str) -> int:
        if model not in self._experiments:
            number = self._experiments[model] = len(self._experiments) + 1
            self._put("experiments", (number, model, "", "active", 0, 0, "default"))
        return self._experiments[model]

    def _put(self, table: str, row: tuple[Any, ...]) -> None:
        rows = self._rows.setdefault(table, [])
        rows.append(row)
        if len(rows) >= 100_000:
            self.flush()

    def flush(self) -> None:
        """Insert the rows that are left."""
        for table, rows in self._rows.items():
            places = ", ".join("?" * len(rows[0]))
            self._database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608
            rows.clear()
        self._rows = {table: rows for table, rows in self._rows.items() if rows}


class _Report:
    """Lines of numbers next to their goals."""

    def __init__(self) -> None:
        self.missed = 0

    def line(self, what: str, value: float, unit: str, goal: float | None = None, note: str = "") -> None:
        """Print a number and whether it is within its goal."""
        is_met = goal is None or value <= goal
        self.missed += not is_met
        against = "" if goal is None else f"   goal {goal:g} {unit}{'' if is_met else '   MISSED'}"
        print(f"{what:56} {value:9.2f} {unit}{note}{against}", flush=True)

    def time(self, what: str, function: Callable[[], Any], goal: float | None = None) -> None:
        """Print how long a function takes, and the processor time of it and its processes: a busy machine adds none."""
        start, before = time.monotonic(), sum(os.times()[:4])
        function()
        used = sum(os.times()[:4]) - before
        self.line(what, time.monotonic() - start, "s", goal, f", {used:.2f} of processors")


def _command(workspace: Workspace, *arguments: str, codes: tuple[int, ...] = (0,)) -> None:
    command = [sys.executable, "-m", "tvmflow", "--root", str(workspace.root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in codes, f"{arguments}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def _publish(workspace: Workspace, cells: list[Cell]) -> None:
    failed = record(workspace, cells, STAGE_NAMES)
    if failed:
        raise StoreError(f"{len(failed)} cells: {next(iter(failed.values()))}")


def _locks(workspace: Workspace) -> Iterator[Path]:
    for path in workspace.root.rglob("dvc.lock"):
        if "artifacts" not in path.parts:
            yield path


def main() -> None:
    """Make the workspace, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.team_scale", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=600)
    parser.add_argument("--measurements", type=int, nargs="*", default=[1, 10, 100], help="per cell")
    options = parser.parse_args()
    report = _Report()
    made = SyntheticWorkspace(options.folder.resolve(), options.cells)
    workspace, cells = made.workspace, made.cells
    records: dict[str, dict[str, Record]] = {}
    report.time(f"making up {len(cells)} cells", lambda: records.update({str(c): made.make(c) for c in cells}))
    report.time(f"publish {len(cells)} cells", lambda: _publish(workspace, cells))
    report.line("all dvc.lock files", sum(path.stat().st_size for path in _locks(workspace)) / 1e6, "MB", 10)
    records[str(cells[0])] = made.make(cells[0], 1)
    report.time("publish one of them after a measurement", lambda: _publish(workspace, cells[:1]), 10)
    for each in options.measurements:
        report.time(f"making up {each} measurements per cell", functools.partial(made.measure, records, each))
        size = (workspace.root / "mlruns" / "mlflow.db").stat().st_size / 1e6
        report.line("  mlflow.db", size, "MB")
        report.time("  sweep with nothing to do, all cells", lambda: _command(workspace, "sweep"))
        first = [str(cell) for cell in cells[:100]]
        report.time("  run of 100 cells with nothing to do", functools.partial(_command, workspace, "run", *first), 10)
        report.time("  sweep --dry-run", lambda: _command(workspace, "sweep", "--dry-run"), 5)
        report.time("  status", lambda: _command(workspace, "status"), 5)
        report.time("  history of a cell", lambda: _command(workspace, "history", str(cells[0])), 5)
        report.time("  compare of a model", lambda: _command(workspace, "compare", cells[0].model), 5)
        report.time("  results update", lambda: _command(workspace, "results", "update"))
        report.time("  results check", lambda: _command(workspace, "results", "check"), 5)
        report.time("  regressions of all cells", lambda: _command(workspace, "regressions", codes=(0, 3)))
        report.time("  report", lambda: _command(workspace, "report"), 60)
        report.line("  report.html", (workspace.root / "report.html").stat().st_size / 1e6, "MB", 5)
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
