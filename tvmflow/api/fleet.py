"""Compare measurements over devices, units and versions: regressions, comparison, overview, costs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from tvmflow.api.workspace import Where, open_workspace
from tvmflow.evaluation.machine_state import is_same_state
from tvmflow.support.errors import StoreError, UnknownNameError
from tvmflow.tracking.regressions import Regressions, regressions_between

if TYPE_CHECKING:
    from tvmflow.config.workspace import Workspace
    from tvmflow.report.console import Grid

By = Literal["tvm", "device", "unit"]
_KEYS: dict[By, tuple[str, ...]] = {
    "tvm": ("cell", "device", "unit", "tvm"),
    "device": ("cell", "device"),
    "unit": ("cell", "device", "unit"),
}


def regressions(
    since: str = "champion", until: str = "now", model: str | None = None, workspace: Where = None
) -> Regressions:
    """Compare each cell at two moments, on each unit with itself. Raises UsageError for a moment without measurements.

    since, until: a date, a version of TVM, champion, previous, APP:VERSION, APP:CHANNEL, or now. With a date as
    `since` only what was measured after it counts as `until`.
    """
    where = open_workspace(workspace)
    return regressions_between(where, since, until, _known(where, model))


def costs(model: str | None = None, workspace: Where = None) -> tuple[dict[str, Any], ...]:
    """Return a row for each model, kind of device and month: hours of devices, of tuning and of other stages, and hours
    that reuse and the cache saved. model: None: all.
    """
    from tvmflow.tracking.costs import METRICS, NOTES, costs_of
    from tvmflow.tracking.mlflow.history import runs_with

    where = open_workspace(workspace)
    found = costs_of(runs_with(where, _known(where, model), NOTES, METRICS))
    return tuple(
        {"model": name, "device": device, "month": month, **cost.to_json()}
        for (name, device, month), cost in found.items()
    )


def compare(model: str, workspace: Where = None) -> tuple[dict[str, Any], ...]:
    """Return the newest measurement of each cell of a model on each unit: latency with interval, accuracy, memory,
    size. Raises StoreError if there is none.
    """
    rows = _newest(open_workspace(workspace), model, ("cell", "device", "unit"))
    return tuple(sorted(rows, key=lambda row: (row["target"], row["precision"], row["device"], row["unit"])))


def execution_tables(model: str, workspace: Where = None) -> tuple[Grid, ...]:
    """Return the execution times of a model's cells in this workspace side by side, and the start and outputs of those
    on GPUs; empty if none was measured here.
    """
    from tvmflow.report.execution import execution_tables as tables
    from tvmflow.report.tables import known_cells, scorecard

    where = open_workspace(workspace)
    cells = [cell for cell in known_cells(where) if cell.model == model]
    cards = [card for cell in cells if (card := scorecard(where, cell)) is not None]
    return tuple(tables(cards)) if cards else ()


def overview(model: str | None = None, by: By = "tvm", workspace: Where = None) -> tuple[dict[str, Any], ...]:
    """Return the newest measurement of each group, with `beside`: latency over that of another group, None if it cannot
    be compared.

    by: tvm: cell, unit and version, beside the version before on this unit; unit: beside the median of the units of
    the kind; device: beside the fastest kind of device in this precision. model: None: all.
    """
    rows = list(_newest(open_workspace(workspace), model, _KEYS[by]))
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], *(row[name] for name in _COMMON[by])), []).append(row)
    return tuple(row | {"beside": ratio} for key in sorted(groups) for row, ratio in _beside(groups[key], by))


_COMMON: dict[By, tuple[str, ...]] = {
    "tvm": ("cell", "device", "unit"),
    "device": ("precision",),
    "unit": ("cell", "device"),
}


def _beside(rows: list[dict[str, Any]], by: By) -> list[tuple[dict[str, Any], float | None]]:
    from statistics import median

    timed = [row["latency_ms"] for row in rows if row["latency_ms"]]
    if by == "tvm":
        ordered = sorted(rows, key=lambda row: row["time_ms"])
        references = [None, *(_in_state_of(now, before) for before, now in itertools.pairwise(ordered))]
    else:
        ordered = sorted(rows, key=lambda row: (row["latency_ms"] or 0.0, row["device"], row["unit"]))
        common = (median(timed) if by == "unit" else min(timed)) if len(timed) > 1 else None
        references = [common] * len(ordered)
    return [
        (row, row["latency_ms"] / reference if row["latency_ms"] and reference else None)
        for row, reference in zip(ordered, references, strict=True)
    ]


def _in_state_of(now: dict[str, Any], before: dict[str, Any]) -> float | None:
    is_same = is_same_state(before["round_trip_ns"], now["round_trip_ns"])
    return before["latency_ms"] if is_same else None


def _newest(workspace: Workspace, model: str | None, keys: Sequence[str]) -> list[dict[str, Any]]:
    from tvmflow.tracking.mlflow.history import overview as rows_of

    def pick(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        finer = dict.fromkeys(("cell", "device", *(key for key in keys if key in ("unit", "tvm"))))
        return list({tuple(row[key] for key in finer): row for row in rows}.values())

    rows = rows_of(workspace, _known(workspace, model), pick)
    if not rows:
        raise StoreError(
            f"nothing of {model or 'this workspace'} was measured yet", "a measurement", "run 'tvmflow run CELL'"
        )
    return list({tuple(row[key] for key in keys): row for row in sorted(rows, key=lambda r: r["time_ms"])}.values())


def _known(workspace: Workspace, model: str | None) -> str | None:
    if model is not None and model not in workspace.params.models:
        raise UnknownNameError(f"no model {model!r}", legal=sorted(workspace.params.models))
    return model
