"""Choose what a re-tune does: which champions were made by another recipe, and what re-tuning them takes.

The recipe of every stage up to the library decides, so an upgrade of a compiler counts as one of TVM. Every champion is
in the answer: also one that is not under `cells:`, with what to do about it. Measures nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.devices.registry import transport_of
from tvmflow.pipeline.recipe_now import changes_since
from tvmflow.pipeline.record import Record
from tvmflow.pipeline.results import RetunePlan
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.errors import TvmflowError
from tvmflow.tracking.mlflow.champions import champions, records_of
from tvmflow.tracking.mlflow.registry import CHAMPION, Version, version_by_alias

THIS_MACHINE = "this machine"
_KERNEL_S = 2.0  # to measure a kernel, if the champion's records do not tell
_TURNS = 1.5  # time of a comparison per time of its turns: start, disturbed turns


@dataclass(frozen=True)
class Choice:
    """A row of a re-tune. name: of the cell, or of a registered model whose cell is unknown; idle: why nothing is to be
    done with it, "" for a cell that is looked at.
    """

    name: str
    cell: Cell | None
    champion: Version | None
    idle: str = ""


def choose(workspace: Workspace, cells: Sequence[Cell] | None) -> list[Choice]:
    """Return a row per cell; by default of the cells under `cells:`, then of all other champions."""
    if cells is not None:
        return [_choice(workspace, cell, version_by_alias(workspace, cell, CHAMPION)) for cell in cells]
    known = {one.name: one for one in champions(workspace)}
    rows = []
    for cell in dict.fromkeys(workspace.params.cells.values()):
        released = known.get(cell.slug)
        rows.append(_choice(workspace, cell, released.version if released else None))
    for one in known.values():
        if one.is_listed:
            continue
        stays = f"version {one.version.version}, built with TVM {one.version.tags.get('toolchain_tvm', '?')}, stays"
        if one.cell is None:
            why = "its model or target is not in params.yaml; add it, or delete the alias champion in MLflow"
        else:
            why = f"not under cells: of params.yaml; add it there, or run 'tvmflow retune {one.cell}'"
        name = str(one.cell) if one.cell else one.version.tags.get("cell", one.name)
        rows.append(Choice(name, one.cell, one.version, f"{stays}: {why}"))
    return rows


def _choice(workspace: Workspace, cell: Cell, champion: Version | None) -> Choice:
    if champion is None and workspace.params.retune.promote != "all":
        why = f"it has no champion: 'tvmflow run {cell}', then 'tvmflow promote {cell}' (or retune.promote: all)"
        return Choice(str(cell), cell, None, why)
    return Choice(str(cell), cell, champion)


def compile_stages(stages: Mapping[str, AnyStage]) -> list[AnyStage]:
    """Return the stages that lead to the library."""
    return list(itertools.takewhile(lambda stage: stage.is_cached, stages.values()))


def champion_changes(
    workspace: Workspace, cell: Cell, champion: Version | None, stages: Mapping[str, AnyStage]
) -> tuple[dict[str, list[str]], dict[str, Record]]:
    """Return stage -> what changed in its recipe since the champion, and the champion's records. Raises the error of a
    cell that cannot be run.
    """
    if champion is None:
        return {"build": ["no champion"]}, {}
    records = records_of(workspace, cell, champion, stages)
    if not records:
        return {"build": [f"the recipe of version {champion.version} is not known"]}, {}
    return changes_since(workspace, cell, compile_stages(stages), records), records


def up_to_date(champion: Version | None) -> str:
    """Return the verdict for a champion whose recipe did not change."""
    version, tvm = (champion.version, champion.tags.get("toolchain_tvm", "?")) if champion else ("", "?")
    return f"version {version} was made by this recipe (TVM {tvm}): nothing to do"


def device_group(workspace: Workspace, cell: Cell) -> str:
    """Return the name of what measures a cell; cells of one name are re-tuned one after the other."""
    device = workspace.params.targets[cell.target].device
    if transport_of(device).is_this_host:
        return THIS_MACHINE
    options = (f"{name}={value}" for name, value in sorted(device.options.items()))
    return " ".join([device.transport, device.key, *options])


def plan_retune(
    workspace: Workspace, choices: Sequence[Choice], stages: Mapping[str, AnyStage], tools: Sequence[str], force: bool
) -> list[RetunePlan]:
    """Return what a re-tune would do. tools: whose change makes `tune` measure old schedules again."""
    plans = []
    for choice in choices:
        version = choice.champion.version if choice.champion else ""
        if choice.idle or choice.cell is None:
            plans.append(RetunePlan(choice.name, champion=version, verdict=choice.idle))
            continue
        device = device_group(workspace, choice.cell)
        unit = choice.champion.tags.get("device_unit", "") if choice.champion else ""
        plan = RetunePlan(choice.name, f"{device} ({unit})" if unit else device, device, version)
        try:
            changes, records = champion_changes(workspace, choice.cell, choice.champion, stages)
        except TvmflowError as error:
            plans.append(replace(plan, verdict=f"cannot be re-tuned: {error.found}", error=error.found))
            continue
        if not changes and not force:
            plans.append(replace(plan, verdict=up_to_date(choice.champion)))
            continue
        plans.append(replace(plan, changes=changes, **_cost(workspace, changes, records, list(stages), tools)))
    return plans


def _cost(
    workspace: Workspace,
    changes: Mapping[str, Sequence[str]],
    records: Mapping[str, Record],
    stages: Sequence[str],
    tools: Sequence[str],
) -> dict[str, Any]:
    """Return the kernels by what happens to them, and the minutes, from what the champion took."""
    facts: Mapping[str, Any] = records["tune"].facts if "tune" in records else {}
    kernels = sum(facts.get("kernels", {}).values())
    measured, seconds = facts.get("measured", 0), facts.get("seconds", 0.0)
    each_s = seconds / measured if measured else _KERNEL_S
    whole_s = max(seconds + facts.get("saved_s", 0.0), kernels * each_s)
    is_replayed = any(
        line.startswith((*(f"toolchain.{tool}:" for tool in tools), "params.gpu_driver:"))
        for line in changes.get("tune", ())
    )
    is_open = not records or any(name in changes for name in stages[: stages.index("tune")])
    low_s, high_s = (kernels * each_s, whole_s) if is_replayed else (0.0, whole_s if is_open else kernels * each_s)
    first = min((stages.index(name) for name in changes), default=len(stages))
    for name in stages:
        took_s = records[name].elapsed_s if name in records and name != "tune" else 0.0
        is_last = name in ("build", "deploy", "evaluate")
        low_s += took_s if name in changes or is_last else 0.0
        high_s += took_s if stages.index(name) >= first or is_last else 0.0
    compare_s = _TURNS * 2 * workspace.params.release.compare_rounds * workspace.params.evaluate.turn_ms / 1000
    return {
        "reused": 0 if is_replayed else kernels,
        "remeasured": kernels if is_replayed else 0,
        "retuned": kernels if is_replayed or is_open else 0,
        "minutes": (round((low_s + compare_s) / 60, 1), round((high_s + compare_s) / 60, 1)),
    }
