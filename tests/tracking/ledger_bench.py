"""Build a workspace whose stages never ran: write their folders as stages do, for tests of tracking.

MLflow's store is a real one, a copy of one that was made once.
"""

from __future__ import annotations

import json
import shutil
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tasks.table import STAGES
from tests.conftest import small_params
from tests.manifests import manifest_of
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.agreement import Agreement
from tvmflow.pipeline.record import RECORD_NAME, Record, describe_folder, record_text
from tvmflow.support.files import digest_of
from tvmflow.support.json_values import to_json
from tvmflow.tracking.mlflow.experiments import experiment_id
from tvmflow.tracking.mlflow.recorded import ensure_recorded
from tvmflow.tracking.mlflow.registry import register_version
from tvmflow.tracking.mlflow.store import open_mlflow

LATENCY = {"median_ms": 1.0, "mean_ms": 1.0, "p90_ms": 1.0, "min_ms": 1.0, "max_ms": 1.0, "std_ms": 0.0}
LATENCY |= {"low_ms": 0.99, "high_ms": 1.01, "runs": 30, "turns": 60, "undisturbed": 60, "badges": [], "is_time": True}
LATENCY |= {"foreign_load": 0.01, "round_trip_ns": 60.0, "elsewhere": []}
FORMS = ("source", "imported", "quantized", "built")


class LedgerBench:
    def __init__(self, root: Path, store: Path) -> None:
        self.root, self.workspace = root, Workspace(root)
        root.mkdir(parents=True, exist_ok=True)
        params = small_params()
        (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        (root / "mlruns").mkdir(exist_ok=True)
        shutil.copyfile(store, root / "mlruns" / "mlflow.db")
        self.minute = 0
        # What the next measurements are made with, and what they find.
        self.toolchain, self.params, self.code = {"tvm": "0.27", "llvm": "20"}, dict[str, Any](seed=0), dict[str, str]()
        self.latency: dict[str, Any] = dict(LATENCY)
        self.unit, self.build = "board-1", "debian 13"
        self.day, self.tuned = 0, dict[str, Any]()  # tuned: the facts of `tune`

    def cell(self, model: str, target: str = "local-cpu", precision: str = "float32") -> Cell:
        return Cell.model_validate({"model": model, "target": target, "precision": precision})

    def make(self, cell: Cell, library: str) -> dict[str, Record]:
        """Write the folders of a cell whose library has these bytes, measured a minute after the one before."""
        self.minute += 1
        records: dict[str, Record] = {}
        for name, stage in STAGES.items():
            folder = self.workspace.folder(name, cell)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for file, text in self._files(name, cell, library).items():
                (folder / file).write_text(text)
            number = zlib.crc32(f"{cell}: {library}".encode()) % 1000  # other bytes for another library, as texts have
            if name == "fetch":
                np.savez(folder / "golden.npz", x=np.full((2, 4), number, np.float32))
            if name == "quantize":
                np.savez(folder / "reference.npz", golden=np.full((2, 3), number, np.float32))
            recipe = {
                "schema": 1,
                "stage": name,
                "params": self.params,
                "toolchain": self.toolchain,
                "code": self.code,
                "inputs": {source: records[source].digest(only) for source, only in stage.inputs.items()},
            }
            created = datetime.fromtimestamp(1_750_000_000 + 60 * self.minute + 86_400 * self.day, UTC).isoformat(
                timespec="seconds"
            )
            records[name] = Record(
                stage=name,
                cell=str(cell),
                key=digest_of(recipe),
                recipe=recipe,
                outputs=describe_folder(folder),
                elapsed_s=1.0,
                created=created,
                facts=self.tuned if name == "tune" else {},
            )
            (folder / RECORD_NAME).write_text(record_text(records[name]))
        return records

    def measure(self, cell: Cell, library: str) -> dict[str, Record]:
        records = self.make(cell, library)
        ensure_recorded(self.workspace, cell)
        return records

    def register(self, cell: Cell, library: str) -> str:
        """Register a library of a cell, without the measurement around it, which takes a second. Returns its sha256."""
        client = open_mlflow(self.workspace)
        if not hasattr(self, "logged"):
            experiment = experiment_id(client, self.workspace, "registered")
            self.logged = client.create_logged_model(experiment, name="library")
            self.run_id = str(client.create_run(experiment).info.run_id)
        self.minute += 1
        sha256 = digest_of(library)
        tags = {
            "library_sha256": sha256,
            "library_dvc_md5": sha256[:32],
            "network_sha256": "",
            "measured": f"{self.minute:06}",
        }
        register_version(client, cell, self.logged.model_id, self.run_id, tags)
        return sha256

    def _files(self, stage: str, cell: Cell, library: str) -> dict[str, str]:
        names = {file for other in STAGES.values() for file in other.inputs.get(stage) or ()}
        names |= {output.name for output in STAGES[stage].outputs} | {"made.txt"}
        texts = {name: f"{name} of {stage} of {cell}: {library}" for name in names - {RECORD_NAME}}
        if stage == "tune":
            texts["curve.csv"] = "trial,kernels_ms\n0,2.0\n1,1.0\n"
        if stage == "build":
            texts["library.so"] = library
            texts["manifest.json"] = json.dumps(to_json(manifest_of(cell)))
        if stage == "evaluate":
            texts |= {"scorecard.json": json.dumps(self._card(cell, library)), "metrics.json": "{}"}
            texts |= {"confusion.csv": "actual,predicted\n", "latency.csv": "what,median_ms\n"}
        return texts

    def _card(self, cell: Cell, library: str) -> dict[str, Any]:
        return {
            "cell": str(cell),
            "device": {"key": cell.target, "kind": "cpu-test-t2", "threads": 2, "unit": self.unit, "build": self.build},
            "batch": 1,
            "library_bytes": len(library),
            "coverage": 1.0,
            "cold_start_ms": [1.0],
            "peers": {},
            "part": None,
            "latency": {name: self.latency for name in ("compute", "copy_in", "copy_out")},
            "quantization": {},
            "agreement": Agreement(1.0, 0.0, 0.0, 200.0, 1.0, 8).to_json(),
            "agreement_by_step": {},
            "accuracy": {**dict.fromkeys(FORMS, 0.9), "samples": 8},
            "minute": self.minute,
        }

    def forget(self) -> None:
        """Let MLflow forget its open connections, as a new process has none."""
        from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Registry
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Tracking
        from mlflow.tracking._tracking_service.registry import TrackingStoreRegistry

        for store in (Registry, Tracking):
            for engine in store._engine_map.values():
                engine.dispose()
            store._engine_map.clear()
        TrackingStoreRegistry._get_store_with_resolved_uri.cache_clear()
