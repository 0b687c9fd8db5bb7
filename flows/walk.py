"""Run the stages of one cell in order, each only when it is needed."""

from __future__ import annotations

from collections.abc import Sequence

from flows.stage_tasks import run_stage_task
from tasks.table import STAGES
from tvmflow.config.params import Cell, DeviceEntry
from tvmflow.config.workspace import Workspace
from tvmflow.devices.registry import check_unit, transport_of
from tvmflow.pipeline.results import CellResult
from tvmflow.pipeline.store import Plan, Store
from tvmflow.pipeline.unmeasured import compile_stages
from tvmflow.support.errors import DeviceUnknownError, TvmflowError, UnknownNameError
from tvmflow.tracking.mlflow.recorded import record_or_keep

# A device is needed from the first stage on that is never cached.
COMPILE_STAGES = compile_stages(STAGES)
EVALUATE_STAGES = tuple(name for name in STAGES if name not in COMPILE_STAGES)
ALL_UNITS = "all"


def walk(
    workspace: Workspace,
    cell: Cell,
    stages: tuple[str, ...],
    again: tuple[str, ...] = (),
    result: CellResult | None = None,
    unit: str = "",
) -> dict[str, str]:
    """Run the stages of a cell in order. Raises the first error; `result` records the progress.

    A stage that is never cached runs only if a later one runs, or if it is the last; else what it left before is
    restored, if it can be found. unit: of the device to measure on, "" for any.
    """
    result, store = result or CellResult(str(cell)), Store(workspace, STAGES)
    for at, stage in enumerate(stages):
        result.failed_stage = stage
        later = [name for name in stages[at + 1 :] if STAGES[name].is_cached]
        if not STAGES[stage].is_cached and later and not again and _are_found(store, cell, later):
            store.restore_skipped(stage, cell)
            continue
        asked = unit if stage in EVALUATE_STAGES else ""
        result.outcomes[stage] = run_stage_task(workspace, stage, cell, again=stage in again, unit=asked)
    if any(STAGES[stage].has_metrics for stage in stages) and not workspace.is_variant:
        result.failed_stage = "record"
        record_or_keep(workspace, cell)
    result.failed_stage = None
    return result.outcomes


def chosen_units(device: DeviceEntry, units: Sequence[str]) -> Sequence[str]:
    """Return the names of units, all of a device for `all`. Raises UnknownNameError for one that it does not have."""
    if ALL_UNITS in units:
        return transport_of(device).units(device) or ("",)
    for unit in units:
        check_unit(device, unit)
    return units


def walk_units(
    workspace: Workspace,
    cell: Cell,
    units: Sequence[str],
    stages: tuple[str, ...],
    again: tuple[str, ...],
    result: CellResult,
) -> None:
    """Run the stages of a cell, and measure it again on each of these units of its device; `all` stands for all of
    them. Without units the first measurement that is needed goes to any.

    A unit that fails does not keep the others from being measured; the first error is raised at the end.
    """
    units = chosen_units(workspace.params.targets[cell.target].device, units)
    failed: tuple[str | None, TvmflowError] | None = None
    for unit in units or ("",):
        try:
            walk(workspace, cell, stages, (*again, *(EVALUATE_STAGES[-1:] if units else ())), result, unit)
        except TvmflowError as error:
            if failed is None:
                failed = (result.failed_stage, _of_unit(error, unit))
    if failed is not None:
        result.failed_stage = failed[0]
        raise failed[1]


def _of_unit(error: TvmflowError, unit: str) -> TvmflowError:
    """Return the error of a unit, which names it; one that the device had when the run began is not misspelled."""
    if unit and isinstance(error, UnknownNameError):
        return DeviceUnknownError(
            f"{unit}: it was there when the run began, and is gone: {error.found}",
            "the unit until it is measured",
            f"see why it is gone ('tvmflow devices'), then run with --unit {unit}",
        )
    error.found = f"{unit}: {error.found}" if unit else error.found
    return error


def _are_found(store: Store, cell: Cell, stages: list[str]) -> bool:
    """Return whether the outputs of these stages exist, here or where they are restored from."""
    plans = {plan.stage.name: plan for plan in store.foresee(cell) if isinstance(plan, Plan)}
    return all(name in plans and (plans[name].is_hit or plans[name].restorable is not None) for name in stages)
