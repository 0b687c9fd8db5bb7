"""Calls that change or tell what is released: promote, rollback, releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmflow.api.opening import CellName, Where, cell_of, opened
from tvmflow.api.results import Verdict

if TYPE_CHECKING:
    from tvmflow.ledger.registry import Version
    from tvmflow.ledger.releases import Release


def promote(cell: CellName, workspace: Where = None, dry_run: bool = False) -> Verdict:
    """Make the newest library of a cell the champion if the gate lets it pass. Returns the gate's verdict; see `passed`."""
    where = opened(workspace)
    found = cell_of(where, cell)
    from flows.settings import configure_prefect, wait_for_prefect
    from tvmflow.ledger.store_paths import check_store

    check_store(where)
    configure_prefect(where)
    from flows.release_model import run_release

    wait_for_prefect()
    verdict = run_release(where, found, dry_run)
    return Verdict(**{**verdict, "reasons": tuple(verdict["reasons"])})


def rollback(cell: CellName, workspace: Where = None) -> tuple[Version, Version]:
    """Make the previous champion the champion again. Returns (champion now, champion before). Raises StoreError."""
    from tvmflow.ledger.releases import rollback as roll_back

    where = opened(workspace)
    return roll_back(where, cell_of(where, cell))


def releases(cell: CellName, workspace: Where = None) -> list[Release]:
    """Return every change of a cell's champion, oldest first."""
    from tvmflow.ledger.releases import releases as changes

    where = opened(workspace)
    return changes(where, cell_of(where, cell))
