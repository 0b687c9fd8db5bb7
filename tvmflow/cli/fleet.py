"""Define the commands that compare measurements over devices and versions: regressions, compare, costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmflow.cli.app import Json, api, app, open_workspace
from tvmflow.report.console import show, show_json, show_table, show_text, suggest
from tvmflow.support.errors import GateRefusedError

if TYPE_CHECKING:
    from tvmflow.api import Regressions
    from tvmflow.api.fleet import By

_MOMENT = "a date, a version of TVM, champion, previous, APP:VERSION, or now"


@app.command()
def regressions(
    since: Annotated[str, typer.Option("--from", metavar="A", help=f"The moment before: {_MOMENT}.")] = "champion",
    until: Annotated[str, typer.Option("--to", metavar="B", help="The moment after, named the same way.")] = "now",
    model: Annotated[str | None, typer.Option("--model", help="Only cells of this model.")] = None,
    as_json: Json = False,
) -> None:
    """Compare each cell at two moments, on each unit with itself. Exit code 3 if something got worse."""
    found = api.regressions(since, until, model, open_workspace())
    if as_json:
        show_json(found.to_json())
    else:
        _show(found)
    if found.worse:
        names = dict.fromkeys(one.cell for one in found.worse)
        raise GateRefusedError(f"{len(found.worse)} got worse from {since} to {until}: {', '.join(names)}")


def _show(found: Regressions) -> None:
    rows = []
    for one in found.changes:
        ratio = "-" if one.ratio is None else f"{one.ratio:.3f}"
        interval = "" if one.low is None or one.high is None else f" [{one.low:.3f}, {one.high:.3f}]"
        rows.append(
            (
                *(one.cell, one.device, one.unit, ratio + interval, one.verdict),
                *("; ".join(one.worse), one.cause, "; ".join(one.changed) or "nothing"),
            )
        )
    columns = ("cell", "device", "unit", "latency, after / before", "verdict", "worse", "of", "changed")
    show_table(f"from {found.since} to {found.until}", columns, rows)
    for line in found.suspects:
        show_text(line)
    if found.unmeasured:
        show_text(f"not measured at both moments: {len(found.unmeasured)}, e.g. {', '.join(found.unmeasured[:3])}")


@app.command()
def compare(model: Annotated[str, typer.Argument(help="A model.")], as_json: Json = False) -> None:
    """Show a model's newest numbers on all targets, in all precisions, on all units."""
    rows = api.compare(model, open_workspace())
    if as_json:
        show_json(rows)
        return
    columns = ("target", "precision", "device", "unit", "latency", "accuracy", "memory", "library", "TVM", "when")
    show_table(
        f"newest measurements of {model}",
        columns,
        (
            (
                *(row["target"], row["precision"], row["device"], row["unit"], shown_latency(row), row["accuracy"]),
                *(_megabytes(row["memory_bytes"]), _megabytes(row["library_bytes"]), row["tvm"], row["when"]),
            )
            for row in rows
        ),
        ("target", "device", "unit", "latency"),
    )
    for table in api.execution_tables(model, open_workspace()):
        show(table)
    suggest(f"tvmflow history --model {model} --by tvm")


_HOURS = ("device_hours", "tuning_hours", "other_hours", "saved_by_reuse_hours", "saved_by_cache_hours")


@app.command()
def costs(
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None, as_json: Json = False
) -> None:
    """Show the hours that measurements took and that reuse saved, by model, kind of device and month."""
    rows = api.costs(model, open_workspace())
    if as_json:
        show_json(rows)
        return
    total: dict[str, Any] = {name: sum(row[name] for row in rows) for name in ("measurements", *_HOURS)}
    columns = (
        "model",
        "device",
        "month",
        "measurements",
        "devices h",
        "tuning h",
        "other h",
        "reuse saved h",
        "cache saved h",
    )
    lines = (
        (row["model"], row["device"], row["month"], row["measurements"], *(f"{row[name]:.2f}" for name in _HOURS))
        for row in (*rows, {"model": "all", "device": "", "month": "", **total})
    )
    show_table("costs of the measurements in MLflow", columns, lines, ("model", "device"))


def show_overview(model: str | None, by: By, as_json: bool) -> None:
    """Print the newest measurement of each group: `history` of several cells."""
    rows = api.overview(model, by, open_workspace())
    if as_json:
        show_json(rows)
        return
    beside = {"tvm": "beside the TVM before", "device": "beside the fastest", "unit": "beside the median unit"}[by]
    columns = ("cell", "device", "unit", "TVM", "latency", beside, "accuracy", "when")
    lines = (
        (
            *(row["cell"], row["device"], row["unit"], row["tvm"], shown_latency(row)),
            *("-" if row["beside"] is None else f"{row['beside']:.3f}", row["accuracy"], row["when"]),
        )
        for row in rows
    )
    show_table(f"measurements by {by}", columns, lines, ("cell", "device", "unit", "latency"))


def shown_latency(row: dict[str, Any]) -> str:
    """Return a median with its interval and what disturbed it."""
    interval = "" if row["low_ms"] is None else f" ({row['low_ms']:.3g} to {row['high_ms']:.3g})"
    return ", ".join(filter(None, (row["latency"] + interval, row["badges"])))


def _megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f} MB"
