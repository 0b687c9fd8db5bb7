"""Inspect a workspace: plan, status, devices, scorecard, history, examine. Starts neither Prefect nor TVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tvmflow.api.results import (
    CellPlan,
    CellStatus,
    DeviceState,
    GpuState,
    Measurement,
    ProposedVersion,
    QuarantineState,
    Scorecard,
    StagePlan,
    Status,
)
from tvmflow.api.workspace import CellName, Where, cell_of, cells_of, open_workspace
from tvmflow.support.errors import StoreError, TvmflowError

if TYPE_CHECKING:
    from tvmflow.config.params import Cell
    from tvmflow.config.workspace import Workspace
    from tvmflow.devices.gpu_facts import Probed
    from tvmflow.setup.doctor import Finding
    from tvmflow.tracking.mlflow.champion_digests import KnownChampion


def plan(*cells: CellName, workspace: Where = None, look: bool = False) -> tuple[CellPlan, ...]:
    """Return what `run` would do with each cell (default: all of params.yaml), stage by stage, and why.

    look: also check local model files, as an import would. A cell that cannot be run has an `error`.
    """
    where = open_workspace(workspace)
    return _plans(where, cells_of(where, cells), look)


def _plans(workspace: Workspace, cells: Sequence[Cell], look: bool) -> tuple[CellPlan, ...]:
    from tasks.table import STAGES
    from tvmflow.report.plans import plan_cells

    rows, refused, no_device = plan_cells(workspace, list(cells), STAGES, look)
    workspace.digests.save()
    return tuple(
        CellPlan(
            name,
            tuple(StagePlan(**row) for row in stages),  # type: ignore[arg-type]
            refused.get(name),
            no_device.get(name),
        )
        for name, stages in rows.items()
    )


def status(workspace: Where = None, verify: bool = False) -> Status:
    """Return the models, targets and cells of a workspace, and how far each cell is.

    verify: read all outputs again, also those whose size, inode and times are as when they were read last.
    """
    from tasks.table import STAGES
    from tvmflow.pipeline.unmeasured import is_built
    from tvmflow.report.tables import scorecard as card_of

    where = open_workspace(workspace)
    if verify:
        where.digests.forget()
    listed = where.params.cells
    plans = {plan.cell: plan for plan in _plans(where, list(listed.values()), look=False)}
    champions = _champions(where)
    rows = []
    for name, cell in listed.items():
        plan = plans[str(cell)]
        why = plan.error.found if plan.error else None
        card = card_of(where, cell)
        badges = tuple(one.badge for one in card.warnings) if card else ()
        disturbed = card is not None and bool(card.latency.compute.badges)
        champion = _is_champion(where, cell, champions) if not (plan.todo or why) else None
        built = bool(plan.todo) and is_built(where, cell, STAGES)
        state = CellStatus(name, str(cell), plan.todo, card is not None, why, badges, built=built)
        rows.append(replace(state, champion=champion, disturbed=disturbed))
    for name, off in where.params.switched_off.items():
        measured = card_of(where, off.cell) is not None
        rows.append(CellStatus(name, str(off.cell), (), measured, None, (), off.needs))
    return Status(
        tuple(sorted(where.params.models)), tuple(sorted(where.params.targets)), tuple(rows), _proposed(where)
    )


def _champions(workspace: Workspace) -> dict[str, KnownChampion] | None:
    """Return the champions by registry name; None if only a server knows, or the store is damaged."""
    from tvmflow.tracking.mlflow.address import sqlite_path
    from tvmflow.tracking.mlflow.champion_digests import champions_in_file

    try:
        return None if sqlite_path(workspace) is None else champions_in_file(workspace)
    except StoreError:
        return None


def _is_champion(workspace: Workspace, cell: Cell, champions: dict[str, KnownChampion] | None) -> bool | None:
    """Return whether the cell's library is the champion; None if that is not known."""
    from tvmflow.pipeline.record import LIBRARIES, RECORD_NAME, read_record

    if champions is None:
        return None
    try:
        outputs = read_record(workspace.folder("build", cell) / RECORD_NAME).outputs
    except StoreError:
        return None
    digests = [outputs[name].sha256 if name in outputs else "" for name in LIBRARIES]
    return cell.slug in champions and champions[cell.slug].is_library(*digests)


def _proposed(workspace: Workspace) -> tuple[ProposedVersion, ...]:
    from tvmflow.tracking.mlflow.proposals import proposals

    try:
        waiting = proposals(workspace)
    except StoreError:
        return ()  # a store that is away or damaged; other commands say so
    cells = [(_cell_name(one.name), one) for one in waiting]
    return tuple(ProposedVersion(cell, one.version, one.judgement.when, one.judgement.text) for cell, one in cells)


def _cell_name(registered: str) -> str:
    """Return the name of a cell by that of its registered model."""
    model, target, precision = registered.split(".")
    return f"{model}@{target}:{precision}"


_UNASKED = "never asked"  # of a target whose mcpu is the device's


def devices(workspace: Where = None) -> tuple[DeviceState, ...]:
    """Return the device of every target and what its tracker says."""
    from tvmflow.backends.registry import backend_for
    from tvmflow.devices.registry import transport_of

    states = []
    for name, target in open_workspace(workspace).params.targets.items():
        device, kind = target.device, _UNASKED
        try:
            kind = backend_for(target).device_kind
            transport = transport_of(device)
            kind = transport.kind_of(kind)
            state = transport.state(device)
            states.append(DeviceState(name, kind, device.key, device.transport, state.text, state.counts))
        except TvmflowError as error:
            states.append(DeviceState(name, kind, device.key, device.transport, error.found))
    return tuple(states)


def gpus() -> tuple[GpuState, ...]:
    """Return the probed GPUs of this machine; empty without a driver or a compiler.

    A driver that ends the probe is reported as its state.
    """
    from tvmflow.devices.gpu.probe import probe, probe_program

    try:
        return gpu_states(probe(probe_program()))
    except TvmflowError:
        return ()


def quarantine(workspace: Where = None) -> tuple[QuarantineState, ...]:
    """Return the quarantined GPUs. Raises StoreError."""
    from tvmflow.devices.gpu.quarantine import read_quarantine

    return tuple(
        QuarantineState(str(one.gpu), one.cell, one.kernel, one.reason, one.to_json())
        for one in read_quarantine(open_workspace(workspace).root)
    )


def gpu_states(probed: Probed) -> tuple[GpuState, ...]:
    """Return the state of each probed GPU, why an API has none, and how a driver ended the probe."""
    from tvmflow.evaluation.processor_check import of_probe

    states = [
        GpuState(one.kind, "", "", "", (), one.reason, {"api": one.kind, "usable": False, "reasons": [one.reason]})
        for one in of_probe(probed, None)
        if not one.name and not probed.ended
    ]
    for one in probed.gpus:
        state = "usable" if not one.reasons else "; ".join(one.reasons)
        states.append(
            GpuState(
                one.api,
                one.name,
                str(one.facts.get("driver", "")),
                str(one.facts.get("version", "")),
                one.can,
                state,
                one.to_json(),
            )
        )
    if probed.ended:
        states.append(GpuState("", "the probe", "", "", (), probed.ended, {"ended": probed.ended}))
    return tuple(states)


def scorecard(cell: CellName, workspace: Where = None) -> Scorecard:
    """Return the scorecard of a cell's newest library. Raises StoreError without a measurement."""
    from tvmflow.report.tables import scorecard as card_of

    where = open_workspace(workspace)
    wanted = cell_of(where, cell)
    card = card_of(where, wanted)
    if card is None:
        raise StoreError(f"{wanted} was never measured", "a scorecard", f"run 'tvmflow run {cell}'")
    return Scorecard.of(card)


_FACTS = ("cell", "when", "tvm", "device", "unit", "build", "latency_ms", "badges", "library", "run_id")


def history(cell: CellName, workspace: Where = None) -> tuple[Measurement, ...]:
    """Return every measurement of a cell that MLflow holds, oldest first. Raises StoreError."""
    from tvmflow.tracking.mlflow.history import measurements
    from tvmflow.tracking.mlflow.links import page_of

    where = open_workspace(workspace)
    return tuple(
        Measurement(
            **{name: row[name] for name in _FACTS},
            url=page_of(row["url"]),
            accuracy=row["accuracy_share"],
            version=row["version_number"],
            roles=tuple(row["roles"]),
            row=row,
        )
        for row in measurements(where, cell_of(where, cell))
    )


def examine(root: Path | None = None) -> list[Finding]:
    """Return the findings of `tvmflow doctor`, good and bad."""
    from tasks.table import STAGES
    from tvmflow.setup.doctor import cells_switched_off
    from tvmflow.setup.doctor import examine as look_at

    return [*look_at(root), *cells_switched_off(root, list(STAGES.values()))]
