"""Define the commands of cell releases: promote, rollback."""

from __future__ import annotations

from typing import Annotated

import typer

from tvmflow.cli.app import CellName, Json, WaitQuiet, api, app, open_workspace
from tvmflow.report.console import show_json, suggest
from tvmflow.support.errors import GateRefusedError, UsageError


@app.command()
def promote(
    cell: CellName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the gate without releasing.")] = False,
    proposal: Annotated[
        bool, typer.Option("--proposal", help="Accept what a re-tune proposed; nothing is measured.")
    ] = False,
    reject: Annotated[
        str | None, typer.Option("--reject", metavar="WHY", help="Reject what a re-tune proposed; the champion stays.")
    ] = None,
    replace_missing: Annotated[
        str, typer.Option("--replace-missing", metavar="WHY", help="Replace a champion whose library is gone.")
    ] = "",
    wait_quiet: WaitQuiet = 0.0,
    as_json: Json = False,
) -> None:
    """Make the newest library of a cell the champion, if it passes the release gate."""
    if (proposal or reject is not None) and (dry_run or replace_missing or (proposal and reject is not None)):
        raise UsageError("a proposal is accepted or rejected as it is", "--proposal or --reject alone")
    if reject is not None:
        rejected = api.reject_proposal(cell, reject, open_workspace())
        if as_json:
            show_json(rejected.to_json())
        else:
            print(rejected.text)
        return
    verdict = (
        api.accept_proposal(cell, workspace=open_workspace())
        if proposal
        else api.promote(
            cell,
            workspace=open_workspace(),
            dry_run=dry_run,
            wait_quiet_s=wait_quiet,
            show_progress=True,
            replace_missing=replace_missing,
        )
    )
    if as_json:
        show_json(verdict.to_json())
    else:
        print(verdict.text)
    if not verdict.passed:
        raise GateRefusedError(
            f"{cell} is not released: {'; '.join(verdict.reasons)}", "all rules under release: to pass"
        )
    if dry_run:
        suggest(f"tvmflow promote {cell}")
        return
    suggest(f"tvmflow history {cell}; 'tvmflow rollback {cell}' undoes it")


@app.command()
def rollback(cell: CellName, as_json: Json = False) -> None:
    """Restore the previous champion of a cell."""
    now, before = api.rollback(cell, workspace=open_workspace())
    if as_json:
        show_json({"champion": now.version, "before": before.version, "name": now.name})
    else:
        print(f"{now.name}: champion is version {now.version} again (was {before.version})")
    suggest(f"tvmflow history {cell}")
