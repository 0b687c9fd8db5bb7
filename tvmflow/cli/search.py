"""Define the command search: precisions, layers kept in float and tuning budgets that meet goals."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from tvmflow.cli.app import Json, WaitQuiet, api, app, open_workspace
from tvmflow.report.console import show, show_json, show_text, suggest
from tvmflow.support.errors import GateRefusedError, UsageError
from tvmflow.support.quantities import BYTES, MILLISECONDS, SHARES, quantity


@app.command()
def search(
    model: Annotated[str, typer.Argument(help="A model.")],
    targets: Annotated[str, typer.Option("--targets", help="Targets; default: those of its cells.")] = "",
    precisions: Annotated[str, typer.Option("--precisions", help="Default: all that a target computes in.")] = "",
    max_drop: Annotated[str, typer.Option("--max-drop", help="Accuracy that may be lost, e.g. 0.5%.")] = "",
    max_latency: Annotated[str, typer.Option("--max-latency", help="E.g. 8ms.")] = "",
    max_memory: Annotated[str, typer.Option("--max-memory", help="Of the process, e.g. 64MB.")] = "",
    max_size: Annotated[str, typer.Option("--max-size", help="Of the library, e.g. 4MB.")] = "",
    float_layers: Annotated[
        str, typer.Option("--float-layers", help="Layers of int8 that may stay in float, e.g. 0,2,8.")
    ] = "",
    trials: Annotated[str, typer.Option("--trials", help="Tuning budgets per kernel, the smallest first.")] = "",
    write: Annotated[bool, typer.Option("--write", help="Write the chosen cells into params.yaml.")] = False,
    page: Annotated[Path | None, typer.Option("--page", help="Default: search-MODEL.html of the workspace.")] = None,
    wait_quiet: WaitQuiet = 0.0,
    as_json: Json = False,
) -> None:
    """Search precisions, float layers and tuning budgets for the cells of a model that meet goals. Exit code 3 if a
    target has none.
    """
    workspace = open_workspace()
    goals = api.Goals(
        quantity("--max-drop", max_drop, SHARES) if max_drop else None,
        quantity("--max-latency", max_latency, MILLISECONDS) if max_latency else None,
        quantity("--max-memory", max_memory, BYTES) if max_memory else None,
        quantity("--max-size", max_size, BYTES) if max_size else None,
    )
    result = api.search(
        model,
        goals,
        workspace,
        _words(targets),
        _words(precisions),
        _numbers("--float-layers", float_layers),
        _numbers("--trials", trials),
        wait_quiet_s=wait_quiet,
        show_progress=True,
    )
    file = api.write_search_page(result, page, workspace)
    if as_json:
        show_json(result.to_json())
    else:
        from tvmflow.report.search_tables import search_table

        show(search_table(model, result.candidates, result.best, result.chosen))
        show_text(f"page: {file}")
    if result.chosen and (write or _is_wanted(result, as_json)):
        names = api.write_chosen(result, workspace)
        suggest(f"tvmflow run {' '.join(names)}    (measures and records what the search built)")
    elif result.chosen:
        suggest("the same command with --write    (writes the chosen cells into params.yaml)")
    if result.unmet:
        raise GateRefusedError(
            f"no candidate of {model} meets the goals on {', '.join(result.unmet)}",
            hint="the table says what each lacks; relax a goal, or try more: --float-layers, --trials, --precisions",
        )


def _is_wanted(result: api.SearchResult, as_json: bool) -> bool:
    """Ask a person whether to write the chosen cells."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    cells = ", ".join(one.cell for one in result.chosen.values())
    return typer.confirm(f"write {cells} into params.yaml?", default=False)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(what: str, text: str) -> tuple[int, ...]:
    words = _words(text)
    if any(not re.fullmatch(r"[0-9]{1,6}", word) for word in words):
        raise UsageError(f"{what} {text}", "whole numbers, e.g. 8,64")
    return tuple(int(word) for word in words)
