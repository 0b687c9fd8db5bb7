"""Commands that change what is released: promote, rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tvmflow.cli.app import CellName, Json, app, open_workspace
from tvmflow.report.console import show_json, suggest

if TYPE_CHECKING:
    pass


@app.command()
def promote(cell: CellName, dry_run: Annotated[bool, typer.Option("--dry-run")] = False, as_json: Json = False) -> None:
    """Make the newest library of a cell the champion, if the gate lets it pass."""
    workspace = open_workspace()
    found = workspace.params.cell(cell)
    from flows.settings import configure_prefect, wait_for_prefect
    from tvmflow.ledger.store_paths import check_store

    check_store(workspace)
    configure_prefect(workspace)
    from flows.release_model import run_release

    wait_for_prefect()
    verdict = run_release(workspace, found, dry_run)
    if as_json:
        show_json(verdict)
    else:
        print(verdict["text"])
    if not verdict["passed"]:
        from tvmflow.errors import GateRefusedError

        raise GateRefusedError(
            f"{cell} is not released: {'; '.join(verdict['reasons'])}", "every rule under release: met"
        )
    suggest(f"tvmflow history {cell}; 'tvmflow rollback {cell}' takes it back")


@app.command()
def rollback(cell: CellName, as_json: Json = False) -> None:
    """Make the previous champion the champion again."""
    from tvmflow.ledger.releases import rollback as roll_back

    workspace = open_workspace()
    now, before = roll_back(workspace, workspace.params.cell(cell))
    if as_json:
        show_json({"champion": now.version, "before": before.version, "name": now.name})
    else:
        print(f"{now.name}: champion is version {now.version} again (was {before.version})")
    suggest(f"tvmflow history {cell}")
