"""Change and list releases of cells: promote, rollback, releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmflow.api.quiet import wait_for_quiet
from tvmflow.api.runs import record_late
from tvmflow.api.workspace import CellName, Where, cell_of, open_workspace
from tvmflow.pipeline.results import Verdict
from tvmflow.support.errors import StoreError, UsageError

if TYPE_CHECKING:
    from tvmflow.config.params import Cell
    from tvmflow.config.workspace import Workspace
    from tvmflow.tracking.mlflow.proposals import Proposal
    from tvmflow.tracking.mlflow.registry import Version
    from tvmflow.tracking.mlflow.releases import Release


def promote(
    cell: CellName,
    workspace: Where = None,
    dry_run: bool = False,
    wait_quiet_s: float = 0.0,
    show_progress: bool = False,
    replace_missing: str = "",
) -> Verdict:
    """Make the newest library of a cell the champion if the gate lets it pass. Returns the gate's verdict; see
    `passed`.

    wait_quiet_s: how long to wait until others leave this machine alone; show_progress: say so on standard error.
    replace_missing: why a champion is replaced whose library is gone or runs no more; without a text that refuses.
    """
    where = open_workspace(workspace)
    chosen = cell_of(where, cell)
    from flows.settings import configure_prefect, wait_for_prefect
    from tvmflow.tracking.mlflow.store import check_store

    check_store(where)
    record_late(where, show_progress)
    done = _champion_already(where, chosen)
    if done is not None:
        return done
    wait_for_quiet(where, wait_quiet_s, show_progress)
    configure_prefect(where)
    from flows.release_model import run_release

    wait_for_prefect()
    return run_release(where, chosen, dry_run, replace_missing)


def accept_proposal(cell: CellName, workspace: Where = None) -> Verdict:
    """Make the library that a re-tune proposed the champion of a cell; nothing is measured. Raises StoreError."""
    from tvmflow.tracking.mlflow.proposals import accept
    from tvmflow.tracking.mlflow.store import check_store

    where = open_workspace(workspace)
    check_store(where)
    _, text = accept(where, cell_of(where, cell))
    return Verdict(passed=True, promoted=True, reasons=(), text=text)


def reject_proposal(cell: CellName, why: str, workspace: Where = None) -> Verdict:
    """Reject the library that a re-tune proposed: the champion stays, and re-tunes do not propose the library again
    until its recipe, the champion or the release rules change. Raises StoreError, UsageError.
    """
    from tvmflow.tracking.mlflow.proposals import reject
    from tvmflow.tracking.mlflow.store import check_store

    where = open_workspace(workspace)
    if not why.strip() or not why.isprintable():
        raise UsageError(f"a reason {why!r}", "one line that says why the proposal is rejected")
    check_store(where)
    version = reject(where, cell_of(where, cell), why)
    text = f"{version.name} version {version.version} is rejected, the champion stays: {why}"
    return Verdict(passed=False, promoted=False, reasons=(why,), text=text)


def proposals(workspace: Where = None) -> list[Proposal]:
    """Return the libraries that re-tunes proposed and that nobody accepted yet. Raises StoreError."""
    from tvmflow.tracking.mlflow.proposals import proposals as waiting

    return waiting(open_workspace(workspace))


def _champion_already(workspace: Workspace, cell: Cell) -> Verdict | None:
    """Return the verdict where the newest library is the champion, found without Prefect and MLflow. Raises
    StoreError.
    """
    from tvmflow.pipeline.record import LIBRARIES, RECORD_NAME, read_record
    from tvmflow.support.files import sha256_of
    from tvmflow.tracking.mlflow.champion_digests import champion_with

    folder = workspace.folder("build", cell)
    if not (folder / RECORD_NAME).is_file():
        raise StoreError(f"{cell} was never built", "a measured library", f"run 'tvmflow run {cell}'")
    outputs = read_record(folder / RECORD_NAME).outputs
    wanted = {name: outputs[name].sha256 for name in LIBRARIES if name in outputs}
    if any(not (folder / name).is_file() or sha256_of(folder / name) != wanted[name] for name in wanted):
        return None  # the gate says what is wrong with it
    version = champion_with(workspace, cell.slug, wanted["library.so"], wanted.get("network.so", ""))
    if version is None:
        return None
    text = f"{cell.slug} version {version} is the champion already"
    return Verdict(passed=True, promoted=False, reasons=(), text=text)


def rollback(cell: CellName, workspace: Where = None) -> tuple[Version, Version]:
    """Make the previous champion the champion again. Returns (champion now, champion before). Raises StoreError."""
    from tvmflow.tracking.mlflow.releases import rollback as roll_back

    where = open_workspace(workspace)
    return roll_back(where, cell_of(where, cell))


def releases(cell: CellName, workspace: Where = None) -> list[Release]:
    """Return all changes of a cell's champion, oldest first."""
    from tvmflow.tracking.mlflow.releases import releases as changes

    where = open_workspace(workspace)
    return changes(where, cell_of(where, cell))
