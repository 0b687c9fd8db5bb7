"""Write the report: one self-contained HTML page that draws in the browser.

Names, labels and notes of models are untrusted: the page contains them as escaped JSON, its scripts render them as text
nodes, and its content security policy allows only scripts with the listed digests and no other resources.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from tvmflow.backends.manifest import MANIFEST_NAME, Manifest, read_manifest
from tvmflow.config.params import STAGE_NAMES, Cell, Precision
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.machine_state import APART
from tvmflow.evaluation.regression import BETWEEN
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record
from tvmflow.pipeline.stage import AnyStage
from tvmflow.pipeline.unmeasured import is_built
from tvmflow.report.execution import execution_of
from tvmflow.report.layers import layers_of
from tvmflow.report.processors import processors_of
from tvmflow.report.tables import FORMS, STEPS, known_cells, scorecard, stage_times, trusted_bytes, trusted_json
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.support.files import write_atomic
from tvmflow.support.json_values import to_json
from tvmflow.support.version import __version__
from tvmflow.tracking.mlflow.links import DEFAULT_UI, PAGES_OF_MODELS, mlflow_ui, ui_command
from tvmflow.tracking.mlflow.registry import CHAMPION, registry_name
from tvmflow.tracking.mlflow.releases import all_releases
from tvmflow.tracking.moments import NOW
from tvmflow.tracking.regressions import regressions_between

ASSETS = Path(__file__).parent / "assets"
# Of each measurement: the page computes it from other values, or shows none of it. JSON has it.
_DETAILED = 40  # cells whose kernels, layers and turns a page shows: it stays below 5 MB for a team of 600 cells
_NOT_IN_PAGE = {"accuracy_share", "beside", "change", "experiment_id", "memory_bytes", "since"}
_SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.umd.min.js",
    "base.js",
    "charts.js",
    "detail_charts.js",
    "overview.js",
    "sections.js",
    "details.js",
    "main.js",
)
_SEARCH_SCRIPTS = (*_SCRIPTS[:4], "search.js")


def collect(
    workspace: Workspace,
    history: Mapping[str, list[dict[str, Any]]],
    measured: Mapping[str, int],
    page: Path | None = None,
    stages: Mapping[str, AnyStage] | None = None,
) -> dict[str, Any]:
    """Collect the data of the page as plain values: scorecards, kernels, stages, tuning curves, history.

    history: the measurements of each cell that the page shows; measured: how many it has. page: its location, for
    relative links. stages: to tell which cells are built and not measured. Raises StoreError if nothing was built or
    measured, UsageError for an invalid address of MLflow's UI.
    """
    beside = page.resolve().parent if page else workspace.root
    cells, unmeasured, cards = [], [], []
    for cell in known_cells(workspace):
        card = scorecard(workspace, cell)
        names = {"model": cell.model, "target": cell.target, "precision": cell.precision}
        if card is None:
            built = stages is not None and is_built(workspace, cell, stages)
            unmeasured.append(names | {"built": built})
        else:
            cards.append(card)
            facts = _facts_of(workspace, cell, card, history.get(str(cell), []), beside)
            cells.append(names | {"measured": measured.get(str(cell), 0)} | facts)
    if not cells and not any(one["built"] for one in unmeasured):
        cell_name = next(iter(workspace.params.cells), "CELL")
        raise StoreError(
            "nothing has been measured in this workspace yet",
            "at least one scorecard",
            f"run 'tvmflow run {cell_name}'",
        )
    changes = all_releases(workspace)
    for one in cells:
        one["releases"] = [asdict(release) for release in changes.get(one["registered"], [])]
    processors = [one.to_json() for one in processors_of(workspace, cards)]
    return _page_data(workspace, cells, unmeasured=unmeasured, fleet=_fleet(workspace), processors=processors)


def collect_cell(workspace: Workspace, cell: Cell, card: Scorecard, history: list[dict[str, Any]]) -> dict[str, Any]:
    """Collect the data of a page of one cell alone, without the fleet and the changes of its releases."""
    names = {"model": cell.model, "target": cell.target, "precision": cell.precision}
    facts = _facts_of(workspace, cell, card, history, workspace.root)
    known = {**names, "measured": len(history), **facts, "releases": []}
    return _page_data(workspace, [known], unmeasured=[], fleet=None, processors=[])


def _page_data(workspace: Workspace, cells: list[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    return {
        "apart": APART,
        "between": BETWEEN,
        "cells": cells,
        **parts,
        "forms": FORMS,
        "steps": STEPS,
        "precisions": get_args(Precision),
        "mlflow_ui": _web_address(mlflow_ui()),
        "mlflow_pages": PAGES_OF_MODELS,
        "mlflow_command": ui_command(workspace),
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
    }


def _fleet(workspace: Workspace) -> dict[str, Any] | None:
    """Return the units of the fleet, and what got worse on them since the champions; None without a champion."""
    try:
        found = regressions_between(workspace, CHAMPION, NOW)
    except UsageError:
        return None
    worse = [
        {name: getattr(one, name) for name in ("cell", "device", "unit", "worse", "cause", "changed")}
        for one in found.worse
    ]
    return {
        "units": [asdict(one) for one in found.units],
        "worse": worse,
        "compared": len(found.changes),
        "suspects": found.suspects,
    }


def _web_address(address: str) -> str:
    if urlsplit(address).scheme not in ("http", "https"):
        raise UsageError(f"TVMFLOW_MLFLOW_UI is {address!r}", f"a web address, as {DEFAULT_UI}", "correct or unset it")
    return address


def _facts_of(
    workspace: Workspace, cell: Cell, card: Scorecard, history: list[dict[str, Any]], beside: Path
) -> dict[str, Any]:
    manifest = _manifest(workspace, cell)
    records = _records(workspace, cell)
    return {
        "card": card.to_json(),
        "execution": execution_of(card),
        "stage_s": stage_times(workspace, cell),
        "curve": _curve(workspace, cell),
        "kernels": to_json(manifest.kernels) if manifest else [],
        "coverage": manifest.coverage if manifest else None,
        "layers": layers_of(workspace, cell, card).to_json(card.quantization),
        "workloads": trusted_json(workspace.folder("tune", cell), "workloads.json") or [],
        "ledger": records["tune"].facts if "tune" in records else {},
        "toolchain": manifest.toolchain if manifest else {},
        "history": history,
        "registered": registry_name(cell),
        "stages": _stages(workspace, cell, records, beside),
        "digests": [
            (f"{stage}/{name}", output.sha256)
            for stage, record in records.items()
            if stage in ("fetch", "build")
            for name, output in sorted(record.outputs.items())
        ],
    }


def _manifest(workspace: Workspace, cell: Cell) -> Manifest | None:
    """Return the manifest of the build, None if it is missing or damaged."""
    folder = workspace.folder("build", cell)
    try:
        return read_manifest(folder) if trusted_bytes(folder, MANIFEST_NAME) else None
    except StoreError:
        return None


def _records(workspace: Workspace, cell: Cell) -> dict[str, Record]:
    records = {}
    for stage in STAGE_NAMES:
        try:
            records[stage] = read_record(workspace.folder(stage, cell) / RECORD_NAME)
        except StoreError:
            continue
    return records


def _stages(workspace: Workspace, cell: Cell, records: dict[str, Record], beside: Path) -> list[dict[str, Any]]:
    """Return each stage's folder: its name in the workspace, and its address relative to the page."""
    rows = []
    for stage, record in records.items():
        folder = workspace.folder(stage, cell)
        name = folder.relative_to(workspace.root).as_posix()
        address = Path(os.path.relpath(folder, beside)).as_posix()
        rows.append(
            {"stage": stage, "folder": name, "address": f"./{address}/", "key": record.key, "seconds": record.elapsed_s}
        )
    return rows


def _curve(workspace: Workspace, cell: Cell) -> list[tuple[int, float]]:
    text = (trusted_bytes(workspace.folder("tune", cell), "curve.csv") or b"").decode()
    return [(int(row["trial"]), float(row["kernels_ms"])) for row in csv.DictReader(text.splitlines())]


def write_page(data: dict[str, Any], path: Path) -> None:
    """Write the page atomically, without data that it does not show."""
    write_atomic(path, page_text(data))


def page_text(data: dict[str, Any]) -> str:
    """Return the page, without data that it does not show."""
    return page_of(_shown_part(data))


def search_page(data: dict[str, Any]) -> str:
    """Return the page of a search. data: of tvmflow/report/search_tables.py."""
    written = {"written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "version": __version__}
    return page_of(data | written, _SEARCH_SCRIPTS)


def page_of(data: dict[str, Any], names: tuple[str, ...] = _SCRIPTS) -> str:
    """Return the page: policy, style, data and scripts. names: of the scripts."""
    scripts = [(ASSETS / name).read_text(encoding="utf-8") for name in names]
    assert not any("</script" in script.lower() for script in scripts)
    digests = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    parts = {
        "policy": policy,
        "style": (ASSETS / "page.css").read_text(encoding="utf-8"),
        "data": _json_in_html(data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    page = (ASSETS / "page.html").read_text(encoding="utf-8")
    pieces = page.split("@")  # text, name, text, name, ...: what is put in is not looked at again
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _shown_part(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data without what is not shown of each measurement, of which a team has thousands."""
    detailed = len(data["cells"]) <= _DETAILED
    cells = [
        {
            **(cell if detailed or at < _DETAILED else _without_details(cell)),
            "history": [{k: v for k, v in row.items() if k not in _NOT_IN_PAGE} for row in cell["history"]],
        }
        for at, cell in enumerate(data["cells"])
    ]
    return {**data, "cells": cells if detailed else [_rounded(cell) for cell in cells]}


def _rounded(value: Any) -> Any:
    """Return a value with numbers of six digits."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _without_details(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell of many without its kernels, layers and turns, which JSON has."""
    card = cell["card"]
    latency = {**card["latency"], "compute": {**card["latency"]["compute"], "by_turn": []}, "copy_in": None}
    peers = {
        name: {key: value for key, value in peer.items() if key in ("median_ms", "badges", "is_time")}
        for name, peer in card["peers"].items()
    }
    quantization = {name: value for name, value in card["quantization"].items() if name != "layers"}
    bounds = {**card["bounds"], "kernels": []} if card.get("bounds") else card.get("bounds")
    return {
        **cell,
        "card": {
            **card,
            "latency": {**latency, "copy_out": None},
            "peers": peers,
            "bounds": bounds,
            "kernels_ms": {},
            "quantization": quantization,
        },
        "workloads": [],
        "curve": [],
        "digests": [],
        "stages": [],
        "layers": {"labels": {}, "calls": [], "arena_bytes": 0, "source": [], "noisy": []},
    }


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json_in_html(data: Any) -> str:
    """Return JSON that cannot end or begin an HTML element; non-finite numbers are null."""
    text = json.dumps(_finite(data), ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
