"""Read measurements back from MLflow: for the command line and the report."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tvmflow.config.params import STAGE_NAMES, Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.fleet import newest_of_each
from tvmflow.evaluation.regression import change_between, comparable_before
from tvmflow.pipeline.recipe_key import changed_parts
from tvmflow.support.errors import StoreError, first_line
from tvmflow.tracking.mlflow.links import mlflow_ui, run_url
from tvmflow.tracking.mlflow.notes import is_of_notes, notes_of
from tvmflow.tracking.mlflow.registry import Versions, all_aliases, registry_name, versions_by_digests
from tvmflow.tracking.mlflow.sqlite_reads import (
    add_numbers,
    fill,
    is_readable,
    measured_runs,
    newest_runs,
    noted_runs,
    read_aliases,
    read_versions,
)
from tvmflow.tracking.mlflow.store import REBUILD, complete_measurements, open_mlflow, pages

Row = dict[str, Any]
_PICKED_BY = ("cell", "device.kind", "device.unit", "toolchain.tvm", "library.sha256", "network.sha256")
_METRICS = (
    *("accuracy", "latency_ms.median", "latency_ms.low", "latency_ms.high", "round_trip_ns.compute"),
    *("library_bytes", "memory_bytes", "agreement.max_relative_error"),
)  # of a row
_OF_DEVICE = ("unit", "build")  # what differs between devices of one kind


def all_measurements(workspace: Workspace) -> dict[str, list[dict[str, Any]]]:
    """Return cell -> its measurements, oldest first."""
    return newest_measurements(workspace, None)[0]


def newest_measurements(
    workspace: Workspace, last: int | None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, int]]:
    """Return cell -> its newest measurements and those of released libraries, oldest first, and cell -> their number.

    last: as many of each cell; None: all.
    """
    rows, counts = _rows(workspace, None, last)
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault(row["cell"], []).append(row)
    return by_cell, counts


def measurements(workspace: Workspace, cell: Cell) -> list[dict[str, Any]]:
    """Return the measurements of one cell, oldest first."""
    return _rows(workspace, cell, None)[0]


def champion_accuracy(workspace: Workspace, run_id: str) -> float | None:
    """Return the accuracy that a registered library was measured with, None where its model has no data set."""
    from mlflow.exceptions import MlflowException

    try:
        value = open_mlflow(workspace).get_run(run_id).data.metrics.get("accuracy")
    except MlflowException as error:
        raise StoreError(
            f"MLflow no longer has the measurement of the champion: {first_line(error)}", hint=REBUILD
        ) from None
    return None if value is None else float(value)


def _rows(workspace: Workspace, only: Cell | None, last: int | None) -> tuple[list[dict[str, Any]], dict[str, int]]:
    runs, counts, aliases, versions = _read(workspace, only, last)
    pages = mlflow_ui()
    before: dict[str, Any] = {}
    by_cell: dict[str, list[dict[str, Any]]] = {}
    rows = []
    for run in runs:
        cell = run.data.tags["cell"]
        row = _row(run, aliases, versions, pages) | {"changed": changes(before.get(cell), run.data)}
        earlier = by_cell.setdefault(cell, [])
        like = comparable_before(earlier, row)
        change = change_between(like, row) if like else None
        row |= {
            "since": like["when"] if like else "",
            "change": change and change.to_json(),
            "beside": str(change or "-"),
        }
        before[cell] = run.data
        earlier.append(row)
        rows.append(row)
    return rows, counts


def _read(
    workspace: Workspace, only: Cell | None, last: int | None
) -> tuple[list[Any], dict[str, int], dict[str, dict[str, str]], Versions]:
    """Return the finished measurements, oldest first, their number by cell, aliases, and versions by digests."""
    if is_readable(workspace):
        aliases, versions = read_aliases(workspace), read_versions(workspace)
        released = {(name, number) for name, of_name in aliases.items() for number in of_name.values()}
        kept = {sha256 for (name, sha256, _), number in versions.items() if (name, number) in released}
        runs, counts = measured_runs(workspace, None if only is None else str(only), last, kept)
        return runs, counts, aliases, versions
    client = open_mlflow(workspace)
    named = None if only is None else f"name = '{registry_name(only)}'"
    registered = pages(client.search_model_versions, named)
    versions = versions_by_digests((one.name, int(one.version), one.tags) for one in registered)
    found = complete_measurements(client, None if only is None else str(only))
    complete = sorted(found, key=lambda run: run.info.start_time)
    return complete, dict(Counter(run.data.tags["cell"] for run in complete)), all_aliases(workspace), versions


def overview(
    workspace: Workspace,
    model: str | None = None,
    pick: Callable[[list[Row]], list[Row]] | None = None,
    newest: int | None = None,
) -> list[Row]:
    """Return measurements of many cells, oldest first, with the versions of their tools but without what changed.

    model: of this one only. pick: returns the wanted ones of rows that have only cell, device, unit, tvm, time_ms,
    sha256, roles and run_id; the numbers of all measurements take minutes to read. newest: so many of each cell, kind
    of device and unit, in place of `pick`.
    """
    if newest is not None:
        pick = functools.partial(_newest_rows, newest)
    if not is_readable(workspace):
        runs, _, aliases, versions = _read(workspace, None, None)
        known = {run.info.run_id: run for run in runs if model in (None, run.data.tags["model"])}
    else:
        aliases, versions = read_aliases(workspace), read_versions(workspace)
        if newest is not None:
            known, pick = newest_runs(workspace, model, newest), None
        else:
            known = noted_runs(workspace, model, _PICKED_BY)
    if pick is not None:
        known = {row["run_id"]: known[row["run_id"]] for row in pick(_short_rows(known, aliases, versions))}
    if is_readable(workspace):
        fill(workspace, known, _METRICS)
    pages = mlflow_ui()
    return [
        _row(run, aliases, versions, pages)
        | {name: run.data.tags[name] for name in ("model", "target", "precision")}
        | {"tools": _with_prefix(notes_of(run.data), "toolchain")}
        | {"network_sha256": run.data.tags.get("network.sha256", "")}
        for run in known.values()
    ]


def _newest_rows(count: int, rows: list[Row]) -> list[Row]:
    wanted = {row["run_id"] for of_unit in newest_of_each(rows, count).values() for row in of_unit}
    return [row for row in rows if row["run_id"] in wanted]


def runs_with(workspace: Workspace, model: str | None, notes: Sequence[str], metrics: Sequence[str]) -> list[Any]:
    """Return the finished measurements of all cells, or of those of a model, oldest first, with at least these notes
    and metrics.
    """
    if not is_readable(workspace):
        runs = _read(workspace, None, None)[0]
        return [run for run in runs if model in (None, run.data.tags["model"])]
    found = noted_runs(workspace, model, notes)
    add_numbers(workspace, found, metrics)
    return list(found.values())


def _short_rows(runs: Mapping[str, Any], aliases: dict[str, dict[str, str]], versions: Versions) -> list[Row]:
    rows = []
    for run_id, run in runs.items():
        tags = run.data.tags
        name = _registry_name(tags["cell"])
        number = versions.get((name, tags["library.sha256"], tags.get("network.sha256", "")), "")
        rows.append(
            {
                "run_id": run_id,
                "cell": tags["cell"],
                "device": tags["device.kind"],
                "unit": tags.get("device.unit", ""),
                "tvm": tags.get("toolchain.tvm", "?"),
                "time_ms": run.info.start_time,
                "sha256": tags["library.sha256"],
                "roles": [role for role, version in aliases.get(name, {}).items() if number and version == number],
            }
        )
    return rows


def _row(run: Any, aliases: dict[str, dict[str, str]], versions: Versions, pages: str) -> dict[str, Any]:
    notes, metrics = notes_of(run.data), run.data.metrics
    name = _registry_name(notes["cell"])
    number = versions.get((name, notes["library.sha256"], notes.get("network.sha256", "")), "")
    roles = [alias for alias, version in aliases.get(name, {}).items() if version == number and number]
    median = metrics.get("latency_ms.median")
    return {
        "cell": notes["cell"],
        "run_id": run.info.run_id,
        "time_ms": run.info.start_time,
        "when": datetime.fromtimestamp(run.info.start_time / 1000, UTC).strftime("%Y-%m-%d %H:%M"),
        "tvm": notes.get("toolchain.tvm", "?"),
        "device": notes["device.kind"],
        "unit": notes.get("device.unit", ""),
        "build": notes.get("device.build", ""),
        "accuracy": f"{metrics['accuracy']:.2%}" if "accuracy" in metrics else "-",
        "latency": "-" if median is None else f"{median:.3g} ms",
        "badges": notes.get("latency.badges", ""),
        "round_trip_ns": metrics.get("round_trip_ns.compute"),
        "latency_ms": median,
        "low_ms": metrics.get("latency_ms.low"),
        "high_ms": metrics.get("latency_ms.high"),
        "accuracy_share": metrics.get("accuracy"),
        "library_bytes": metrics.get("library_bytes"),
        "memory_bytes": metrics.get("memory_bytes"),
        "max_relative_error": metrics.get("agreement.max_relative_error"),
        "experiment_id": run.info.experiment_id,
        "commit": notes.get("git.commit", ""),
        "sha256": notes["library.sha256"],
        "library": notes["library.sha256"][:12],
        "version": f"{number} {' '.join(roles)}".strip(),
        "version_number": number,
        "roles": roles,
        "url": run_url(run.info.experiment_id, run.info.run_id, pages),
    }


@functools.cache
def _registry_name(cell: str) -> str:
    model, _, rest = cell.partition("@")
    target, _, precision = rest.partition(":")
    return registry_name(Cell.model_validate({"model": model, "target": target, "precision": precision}))


def changes(before: Any, now: Any) -> list[str]:
    """Return the differences between two measurements of a cell: tools, device, parameters, code. before: None for the
    first.

    Both are the data of an MLflow run: tags and params. A parameter of several stages is listed once.
    """
    if before is None:
        return []
    old, new = _with_prefix(notes_of(before), "recipe"), _with_prefix(notes_of(now), "recipe")
    lost = old.keys() ^ new.keys()  # a measurement that was recorded again has no stage that evaluate does not follow
    stages: dict[str, list[str]] = {}
    leaves = _leaves(before), _leaves(now)
    for name in _OF_DEVICE:
        if not all(one["device"][name] for one in leaves):  # an older version did not note it, or nobody knows
            for one in leaves:
                del one["device"][name]
    for line in changed_parts(*leaves):
        where, _, change = line.partition(": ")
        kind, _, rest = where.partition(".")
        stage, _, leaf = rest.partition(".")
        if kind in ("params", "code") and stage in lost:
            continue
        if kind == "params":
            stages.setdefault(f"{leaf}: {change}", []).append(stage)
        elif kind == "code":
            stages.setdefault("code", []).append(stage)
        else:
            stages.setdefault(f"{rest}: {change}", [])
    lines = [f"{what} ({_stages(names)})" if names else what for what, names in stages.items()]
    recipes = [name for name in STAGE_NAMES if name not in lost and old.get(name) != new.get(name)]
    if not lines and recipes:
        return [f"inputs or code of {recipes[0]}"]
    return lines or ["nothing: measured again"]


def _stages(names: list[str]) -> str:
    return "all stages" if set(names) >= set(STAGE_NAMES) else ", ".join(names)


def _leaves(data: Any) -> dict[str, Any]:
    """Return the compared data of a measurement as nested names, without code unknown to older versions."""
    params: dict[str, Any] = {}
    for key, value in data.params.items():
        stage, _, name = key.partition(".")
        if not is_of_notes(key):
            params.setdefault(stage, {})[name] = _value(value)
    notes = notes_of(data)
    device = {"device": notes.get("device.kind")} | {name: notes.get(f"device.{name}") for name in _OF_DEVICE}
    tools, code = _with_prefix(notes, "toolchain"), _with_prefix(notes, "code")
    return {"device": device, "toolchain": tools, "params": params, "code": code}


def _with_prefix(notes: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key[len(prefix) + 1 :]: value for key, value in notes.items() if key.startswith(f"{prefix}.")}


def _value(text: str) -> Any:
    """Return the value of a parameter; its text if it is no JSON or truncated."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
