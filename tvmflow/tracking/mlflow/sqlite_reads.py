"""Read measurements, versions and aliases from the file of a workspace's own store, without MLflow.

MLflow takes seconds to start, one query per registered model, and reads all of every run. These are one query per
table. For stores on a server the callers ask MLflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.address import path_of, registry_uri, sqlite_path
from tvmflow.tracking.mlflow.notes import param_of
from tvmflow.tracking.mlflow.registry import SUPERSEDED, Versions, all_aliases, versions_by_digests
from tvmflow.tracking.mlflow.store import ask, check_store

_TABLES = (
    "experiments",
    "runs",
    "tags",
    "params",
    "latest_metrics",
    "model_versions",
    "model_version_tags",
    "registered_model_aliases",
    "registered_model_tags",
)
_RECIPES = ("recipe.*", "code.*")
_SHOWN = ("toolchain", "device.build")  # parameters of a row
_CHUNK = 500  # values of one query; sqlite takes 32766


@dataclass
class Info:
    """The part of MLflow's RunInfo that is read."""

    run_id: str
    experiment_id: str
    start_time: int


@dataclass
class Data:
    """The part of MLflow's RunData that is read."""

    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """The part of MLflow's Run that is read."""

    info: Info
    data: Data


def is_readable(workspace: Workspace) -> bool:
    """Return whether runs and registered models are in one file with MLflow's tables. Raises StoreError if it is
    damaged.
    """
    path = sqlite_path(workspace)
    if path is None or path != path_of(registry_uri(workspace)) or not path.exists() or not path.stat().st_size:
        return False
    check_store(workspace)
    tables = {name for (name,) in ask(workspace, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    return tables.issuperset(_TABLES)


def measured_runs(
    workspace: Workspace, cell: str | None, last: int | None, kept: set[str]
) -> tuple[list[Run], dict[str, int]]:
    """Return finished measurements, oldest first, and how many each cell has.

    cell: of this one only. last: only as many of the newest of each cell, and the newest of each
    library in `kept` (sha256).
    """
    rows = ask(
        workspace,
        "SELECT run_uuid, experiment_id, start_time, cell.value, library.value FROM tags AS kind "
        "JOIN runs USING (run_uuid) JOIN tags AS done USING (run_uuid) JOIN tags AS cell USING (run_uuid) "
        "JOIN tags AS library USING (run_uuid) WHERE kind.key = 'tvmflow.kind' AND kind.value = 'measurement' "
        "AND done.key = 'tvmflow.complete' AND done.value = 'true' AND cell.key = 'cell' "
        "AND library.key = 'library.sha256' AND lifecycle_stage = 'active' AND ? IN ('', cell.value) "
        "ORDER BY start_time",
        cell or "",
    )
    by_cell: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_cell.setdefault(row[3], []).append(row)
    counts = {name: len(of_cell) for name, of_cell in by_cell.items()}
    chosen = []
    for of_cell in by_cell.values():
        newest = {row[4]: row[0] for row in of_cell}  # of each library
        chosen += [
            row
            for at, row in enumerate(of_cell)
            if last is None or at >= len(of_cell) - last or (row[4] in kept and newest[row[4]] == row[0])
        ]
    runs = {row[0]: Run(Info(row[0], str(row[1]), row[2]), Data()) for row in sorted(chosen, key=lambda row: row[2])}
    _fill(workspace, runs)
    return list(runs.values()), counts


def noted_runs(workspace: Workspace, model: str | None, keys: Sequence[str]) -> dict[str, Run]:
    """Return run -> finished measurement, oldest first, with these of its notes: all notes of many cells take minutes.

    model: of this one only.
    """
    rows = ask(
        workspace,
        "SELECT run_uuid, experiment_id, start_time FROM tags AS kind JOIN runs USING (run_uuid) "
        "JOIN experiments USING (experiment_id) JOIN tags AS done USING (run_uuid) "
        "WHERE kind.key = 'tvmflow.kind' AND kind.value = 'measurement' AND done.key = 'tvmflow.complete' "
        "AND done.value = 'true' AND runs.lifecycle_stage = 'active' AND ? IN ('', experiments.name) "
        "ORDER BY start_time, run_uuid",
        model or "",
    )
    runs = {row[0]: Run(Info(row[0], str(row[1]), row[2]), Data()) for row in rows}
    params = list(dict.fromkeys(param for key in keys if (param := param_of(key)) is not None))
    for table, wanted in (("tags", keys), ("params", params)):
        question = f"SELECT run_uuid, key, value FROM {table}"  # noqa: S608
        for key in wanted:
            if model is None:
                found: Iterable[tuple[Any, ...]] = ask(workspace, f"{question} WHERE key = ?", key)
            else:
                found = _of_runs(workspace, question, list(runs), "key = ?", (key,))
            for run_id, name, value in found:
                if run_id in runs:
                    getattr(runs[run_id].data, table)[name] = value
    return runs


def newest_runs(workspace: Workspace, model: str | None, each: int) -> dict[str, Run]:
    """Return run -> finished measurement, oldest first, without tags: the newest few of each cell, kind of device and
    unit. model: of this one only.
    """
    rows = ask(
        workspace,
        "SELECT run, experiment_id, start_time FROM (SELECT kind.run_uuid AS run, experiment_id, start_time, "
        "ROW_NUMBER() OVER (PARTITION BY cell.value, device.value, coalesce(unit.value, '') "
        "ORDER BY start_time DESC, kind.run_uuid DESC) AS place "
        "FROM tags AS kind JOIN runs USING (run_uuid) JOIN experiments USING (experiment_id) "
        "JOIN tags AS done USING (run_uuid) JOIN tags AS cell USING (run_uuid) JOIN tags AS device USING (run_uuid) "
        "LEFT JOIN tags AS unit ON unit.run_uuid = kind.run_uuid AND unit.key = 'device.unit' "
        "WHERE kind.key = 'tvmflow.kind' AND kind.value = 'measurement' AND done.key = 'tvmflow.complete' "
        "AND done.value = 'true' AND cell.key = 'cell' AND device.key = 'device.kind' "
        "AND runs.lifecycle_stage = 'active' AND ? IN ('', experiments.name)) WHERE place <= CAST(? AS INTEGER) "
        "ORDER BY start_time, run",
        model or "",
        str(each),
    )
    return {row[0]: Run(Info(row[0], str(row[1]), row[2]), Data()) for row in rows}


def add_numbers(workspace: Workspace, runs: dict[str, Run], keys: Sequence[str]) -> None:
    """Add these metrics of runs."""
    for key in keys:
        question = "SELECT run_uuid, value FROM latest_metrics WHERE key = ? AND is_nan = 0"
        for run_id, value in ask(workspace, question, key):
            if run_id in runs:
                runs[run_id].data.metrics[key] = value


def fill(workspace: Workspace, runs: dict[str, Run], metrics: Sequence[str]) -> None:
    """Add these metrics of runs, and their tags and notes but those of recipes: not the parameters of stages."""
    wanted = {"tags": ("key NOT GLOB ? AND key NOT GLOB ?", _RECIPES), "params": ("key IN (?, ?)", _SHOWN)}
    for table, (where, values) in wanted.items():
        question = f"SELECT run_uuid, key, value FROM {table}"  # noqa: S608
        for run_id, key, value in _of_runs(workspace, question, list(runs), f"({where})", values):
            getattr(runs[run_id].data, table)[key] = value
    _add_numbers(workspace, runs, f"key IN ({', '.join('?' * len(metrics))})", metrics)


def _add_numbers(workspace: Workspace, runs: dict[str, Run], where: str = "", values: Sequence[str] = ()) -> None:
    question = "SELECT run_uuid, key, value, is_nan FROM latest_metrics"
    for run_id, key, value, is_nan in _of_runs(workspace, question, list(runs), where, values):
        runs[run_id].data.metrics[key] = math.nan if is_nan else value


def _fill(workspace: Workspace, runs: dict[str, Run]) -> None:
    for table in ("tags", "params"):
        for run_id, key, value in _of_runs(workspace, f"SELECT run_uuid, key, value FROM {table}", list(runs)):  # noqa: S608
            getattr(runs[run_id].data, table)[key] = value
    _add_numbers(workspace, runs)


def _of_runs(
    workspace: Workspace, question: str, run_ids: Sequence[str], where: str = "", values: Sequence[str] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of runs. where: another condition, with places for the values."""
    for start in range(0, len(run_ids), _CHUNK):
        some = run_ids[start : start + _CHUNK]
        places = ", ".join("?" * len(some))
        also = f" AND {where}" if where else ""
        yield from ask(workspace, f"{question} WHERE run_uuid IN ({places}){also}", *some, *values)


def read_versions(workspace: Workspace) -> Versions:
    """Return the version of each library."""
    rows = ask(
        workspace,
        "SELECT name, version, tag.key, tag.value FROM model_versions JOIN model_version_tags AS tag "
        "USING (name, version) WHERE current_stage <> 'Deleted_Internal' AND tag.key IN (?, ?, ?)",
        "library_sha256",
        "network_sha256",
        SUPERSEDED,
    )
    tags: dict[tuple[str, int], dict[str, str]] = {}
    for name, version, key, value in rows:
        tags.setdefault((name, version), {})[key] = value
    return versions_by_digests((name, number, of_version) for (name, number), of_version in tags.items())


def read_aliases(workspace: Workspace) -> dict[str, dict[str, str]]:
    """Return registry name -> alias -> version number."""
    aliases: dict[str, dict[str, str]] = {}
    for name, alias, version in ask(workspace, "SELECT name, alias, version FROM registered_model_aliases"):
        aliases.setdefault(name, {})[alias] = str(version)
    return aliases


def aliases_by_name(workspace: Workspace) -> dict[str, dict[str, str]]:
    """Return registry name -> alias -> version number; starts MLflow only for a server, and creates no store."""
    path = path_of(registry_uri(workspace))
    if path is not None and not path.exists():
        return {}
    return read_aliases(workspace) if is_readable(workspace) else all_aliases(workspace)


def read_model_tags(workspace: Workspace) -> dict[str, dict[str, str]]:
    """Return registry name -> its tags."""
    tags: dict[str, dict[str, str]] = {}
    for name, key, value in ask(workspace, "SELECT name, key, value FROM registered_model_tags"):
        tags.setdefault(name, {})[key] = value
    return tags
