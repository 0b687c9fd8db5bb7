"""Define the commands of the tables of results: update, check, quarantine, lift."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tvmflow.cli.app import CellName, Json, api, app, open_workspace
from tvmflow.report.console import show_json, show_text, suggest
from tvmflow.support.errors import GateRefusedError

results = typer.Typer(help="Keep tables of results in git: results/MODEL.yaml.", no_args_is_help=True)
app.add_typer(results, name="results")

Models = Annotated[list[str] | None, typer.Argument(help="Models; default: all that were measured.")]


@results.command()
def update(models: Models = None) -> None:
    """Write the newest measurements into results/; rows in which only noise differs stay as they are."""
    workspace = open_workspace()
    changed = api.update_results(*models or (), workspace=workspace)
    for path in changed:
        print(path.relative_to(workspace.root))
    suggest("git add results" if changed else "nothing changed")


@results.command()
def check(models: Models = None, as_json: Json = False) -> None:
    """Name each change beyond its interval since results/ was written. Exit code 3 if there is one."""
    found = api.check_results(*models or (), workspace=open_workspace())
    if as_json:
        show_json([asdict(one) for one in found])
    else:
        for one in found:
            show_text(f"{'changed' if one.fails else 'note'}: {one}")
    failed = [one for one in found if one.fails]
    if failed:
        raise GateRefusedError(
            f"{len(failed)} result(s) differ from results/",
            hint="'tvmflow results update' accepts them; 'tvmflow results quarantine CELL' keeps one from release",
        )


@results.command()
def quarantine(
    cell: CellName,
    reason: Annotated[str, typer.Option("--reason", help="What is wrong with it.")],
    issue: Annotated[str, typer.Option("--issue", help="Where it is worked on, e.g. the address of an issue.")],
    until: Annotated[str, typer.Option("--until", metavar="YYYY-MM-DD", help="The last day.")],
) -> None:
    """Let no gate pass a cell until a day is over."""
    api.quarantine_cell(cell, reason, issue, until, open_workspace())
    suggest("git add results")


@results.command()
def lift(cell: CellName) -> None:
    """End the quarantine of a cell."""
    api.lift_quarantine(cell, open_workspace())
    suggest("git add results")
