"""Show results in notebooks: as DataFrames, as HTML tables, and the report with its charts."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvmflow.api.workspace import Where, open_workspace

if TYPE_CHECKING:
    import pandas

_HEIGHT_PX = 900


def to_frame(results: Any) -> pandas.DataFrame:
    """Return results of the API as a DataFrame: a row for each, nested keys joined by dots.

    results: one or several of what `run`, `plan`, `history`, `status`, `scorecard`, `devices`, ... return. Raises
    UsageError for anything else.
    """
    import pandas

    return pandas.DataFrame([_flat(row) for row in _rows(results)])


def _rows(results: Any) -> list[Mapping[str, Any]]:
    """Return the rows of results; those that contain rows are taken apart."""
    from tvmflow.api.results import CellPlan, RunResult, Status
    from tvmflow.support.errors import UsageError

    if isinstance(results, Status):
        return [{**cell.to_json(), "next": cell.next_step} for cell in results.cells]
    if isinstance(results, CellPlan):
        return [{"cell": results.cell, **stage} for stage in results.to_json()]
    if isinstance(results, RunResult):
        measured = _numbers(results.scorecard.raw) if results.scorecard else {}
        return [{**results.to_json(), **measured, "cell": results.cell}]
    if isinstance(results, Mapping):
        return [results]
    if hasattr(results, "to_json"):
        found = results.to_json()
        return [_numbers(found) if "latency" in found and "agreement" in found else found]
    if isinstance(results, Iterable) and not isinstance(results, str | bytes):
        return [row for one in results for row in _rows(one)]
    raise UsageError(f"{type(results).__name__} has no rows", "what a function of tvmflow returned")


def _numbers(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one compares of a scorecard."""
    compute = card["latency"]["compute"]
    return {
        "cell": card["cell"],
        "device": card["device"]["kind"],
        "latency_ms": compute["median_ms"] if compute["is_time"] else None,
        "latency_low_ms": compute["low_ms"],
        "latency_high_ms": compute["high_ms"],
        "badges": ", ".join(compute["badges"]),
        "accuracy": card["accuracy"] or {},
        "max_relative_error": card["agreement"]["max_relative_error"],
        "library_bytes": card["library_bytes"],
        "times_faster": {name: one["times_faster"] for name, one in card["advantages"].items()},
    }


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat


@dataclass(frozen=True)
class ReportView:
    """The report, which a notebook shows with its charts. page: its HTML, which loads nothing."""

    page: str = field(repr=False)

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {_HEIGHT_PX}px; border: 0"
        return f'<iframe style="{style}" sandbox="allow-scripts" srcdoc="{html.escape(self.page)}"></iframe>'


def show_report(workspace: Where = None) -> ReportView:
    """Return the report of a workspace for a notebook; nothing is written."""
    from tvmflow.api.stores import report_data
    from tvmflow.report.page import page_text

    where = open_workspace(workspace)
    return ReportView(page_text(report_data(where)))
