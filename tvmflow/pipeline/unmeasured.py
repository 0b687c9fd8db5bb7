"""Choose where a cell is built whose device is not there, and find what was built there.

Nothing replaces what was measured: the schedules that the static model chooses, and the library made with them, are in
a variant of the workspace whose `tune.without_device` is true, so that tune's recipe key says that nothing was
measured. Where tuning needs no device, or its measurements are there already, the workspace itself serves.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from tvmflow.config.overrides import CellOverrides, TuneOverrides
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, made_variant, make_variant
from tvmflow.pipeline.record import Record
from tvmflow.pipeline.stage import AnyStage
from tvmflow.pipeline.store import Known, Plan, Store
from tvmflow.support.errors import TvmflowError

NOT_MEASURED = "built, not measured"
Stages = Mapping[str, AnyStage]


def compile_stages(stages: Stages) -> tuple[str, ...]:
    """Return the stages that make a library; the first that is never cached needs the device."""
    return tuple(itertools.takewhile(lambda name: stages[name].is_cached, stages))


def place_without_device(workspace: Workspace, cell: Cell, stages: Stages) -> Workspace:
    """Return the workspace or variant in which to run `compile_stages` of a cell without its device."""
    if _needs_no_device(workspace, cell) or _is_compiled(workspace, cell, stages):
        return workspace
    return make_variant(workspace, cell, _estimated(workspace, cell), _shared(stages))


def stages_in_workspace(workspace: Workspace, cell: Cell, stages: Stages) -> tuple[str, ...]:
    """Return those of `compile_stages` whose outputs for a cell without its device are in the workspace itself."""
    if _needs_no_device(workspace, cell) or _is_compiled(workspace, cell, stages):
        return compile_stages(stages)
    return _shared(stages)


def library_without_device(workspace: Workspace, cell: Cell, stages: Stages) -> tuple[Workspace, dict[str, Record]]:
    """Return where the up-to-date library of a cell is, and stage -> record of what made it; none without one."""
    places = [workspace]
    if not _needs_no_device(workspace, cell):
        variant = made_variant(workspace, cell, _estimated(workspace, cell), _shared(stages))
        places += [variant] if variant else []
    for place in places:
        records = _records(place, cell, stages)
        if records:
            return place, records
    return workspace, {}


def is_built(workspace: Workspace, cell: Cell, stages: Stages) -> bool:
    """Return whether a library of the current recipe is there, with measured schedules or without."""
    try:
        return bool(library_without_device(workspace, cell, stages)[1])
    except TvmflowError:
        return False


def _needs_no_device(workspace: Workspace, cell: Cell) -> bool:
    tune = workspace.params.tune_of(cell)
    return tune.without_device or not tune.trials_per_workload


def _is_compiled(workspace: Workspace, cell: Cell, stages: Stages) -> bool:
    """Return whether all outputs up to the library exist, here or where they are restored from."""
    plans = Store(workspace, stages).foresee(cell)
    wanted = compile_stages(stages)
    found = [isinstance(plan, Plan) and (plan.is_hit or plan.restorable is not None) for plan in plans]
    return all(found[: len(wanted)])


def _records(place: Workspace, cell: Cell, stages: Stages) -> dict[str, Record]:
    """Return the records of the stages up to the library, none unless all are up to date."""
    records = {}
    store = Store(place, stages)
    known: Known = {}
    for name in compile_stages(stages):
        plan = store.plan(name, cell, known)
        if not isinstance(plan, Plan) or plan.record is None:
            return {}
        records[name] = plan.record
    return records


def _estimated(workspace: Workspace, cell: Cell) -> CellOverrides:
    """Return the overrides of a cell, with schedules that nothing measures."""
    own = workspace.params.overrides.get(str(cell), CellOverrides())
    tune = TuneOverrides.model_validate({**own.tune.given, "without_device": True})
    return own.model_copy(update={"tune": tune})


def _shared(stages: Stages) -> tuple[str, ...]:
    """Return the stages before the first that measures."""
    return tuple(itertools.takewhile(lambda name: not stages[name].measures_device, stages))
