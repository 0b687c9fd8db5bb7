"""tune: measure schedules of the model's kernels on the device, and keep the best of each.

In:  the packed model Out: best.json (one record per workload, and which convolutions to compute by Winograd's
algorithm; all that build reads),
     curve.csv, workloads.json (the table of the report). The log of every measurement grows in artifacts/tuning_log/,
     so a run that was stopped goes on where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.device import DeviceLimits, session_of
from tvmflow.backends.registry import backend_of, resolve
from tvmflow.config.params import Cell
from tvmflow.config.stage_params import SearchLimits, SearchSettings
from tvmflow.config.workspace import Workspace
from tvmflow.devices.registry import transport_of
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME, load_module, load_others
from tvmflow.ir.tir.kernel_schedules import BestSchedules
from tvmflow.pipeline.stage import Output, Stage, StageContext, settings_from_block
from tvmflow.support.json_values import write_json
from tvmflow.support.own_packages import own_module
from tvmflow.targets.gpu_drivers import known_drivers
from tvmflow.targets.resolve import TARGET_READS, ResolvedTarget
from tvmflow.toolchain.versions import versions

TOOLS = ("tvm", "ffi", "llvm", "codegen")  # whose versions decide between reuse and replay of records
CURVE = {"x": "trial", "y": "kernels_ms", "title": "time of all kernels while tuning"}


@dataclass(frozen=True)
class TuneSettings:
    """emulated: the device is emulated, and its records are not used for real ones. gpu_driver: of its units, "" if it
    has no GPU or was never asked.
    """

    search: SearchSettings
    target: ResolvedTarget
    device_key: str
    emulated: bool
    gpu_driver: str


@dataclass(frozen=True)
class TuneLimits:
    search: SearchLimits
    device: DeviceLimits


def _settings(workspace: Workspace, cell: Cell) -> TuneSettings:
    entry = workspace.params.targets[cell.target]
    return TuneSettings(
        search=settings_from_block(SearchSettings, workspace.params.tune_of(cell)),
        target=resolve(entry),
        device_key=entry.device.key,
        emulated=transport_of(entry.device).is_emulated,
        gpu_driver=known_drivers(workspace.root, cell.target, entry.kind),
    )


def _limits(workspace: Workspace, cell: Cell) -> TuneLimits:
    block, device = workspace.params.tune, workspace.params.targets[cell.target].device
    wait_s = workspace.params.deploy.device_wait_s
    return TuneLimits(settings_from_block(SearchLimits, block), DeviceLimits(device, block.session_s, wait_s))


def tools_of(settings: TuneSettings) -> dict[str, str]:
    """Return the tools that a measurement is valid for: a GPU's driver is one of its compilers."""
    return versions(TOOLS) | ({"gpu_driver": settings.gpu_driver} if settings.gpu_driver else {})


def tune(context: StageContext[TuneSettings, TuneLimits]) -> dict[str, Any]:
    """Tune every workload; return counts of measured and known candidates, and the cost."""
    from tvmflow.devices.waiting import WAITS_HERE
    from tvmflow.tuning.budget import Budget
    from tvmflow.tuning.measure.builders import builders
    from tvmflow.tuning.records.log import TuningLog
    from tvmflow.tuning.results import best_schedules, summarize_cost, write_curve, write_kernels
    from tvmflow.tuning.rules import SearchRules
    from tvmflow.tuning.tune_network import tune_network
    from tvmflow.tuning.winograd_choice import describe_tiles

    target, limits = context.settings.target, context.limits
    budget = Budget(context.settings.search.max_seconds, WAITS_HERE.working_s)
    backend = backend_of(target)
    packed = load_module(context.inputs["graph_pack"], is_packed=True)
    context.tuning_log.parent.mkdir(parents=True, exist_ok=True)
    context.tuning_log.touch()  # DVC requires it even without measurements
    transport = transport_of(limits.device.device)
    tuning_log = TuningLog(context.tuning_log, transport.kind_of(backend.kernel_kind), tools_of(context.settings))
    has_tvm = transport.has_tvm_on(limits.device.device)
    workers = builders().count(limits.search.build_workers)
    search = limits.search.model_copy(update={"build_workers": workers})
    rules = SearchRules(context.settings.search, search, transport.is_this_host, has_tvm)
    outcome = tune_network(
        [packed, *load_others(context.inputs["graph_pack"], is_packed=True).values()],
        backend,
        rules,
        tuning_log,
        lambda: session_of(limits.device, target),
        context.progress,
        budget,
    )
    schedules = best_schedules(outcome.used, outcome.report.best)
    part = backend.search_part(packed, context.progress)
    write_json(context.out / "best.json", BestSchedules(backend.kernel_kind, outcome.winograd, schedules, part))
    curve = write_curve(context.out / "curve.csv", outcome.used, tuning_log.known())
    kernels = write_kernels(context.out / "workloads.json", outcome.used, outcome.report)
    return {
        "workloads": outcome.tuned,
        "kernels": kernels,
        **curve,
        "won": 1 - curve["best_kernels_ms"] / curve["default_kernels_ms"] if curve["default_kernels_ms"] else 0.0,
        "winograd": len(outcome.winograd),
        "winograd_layers": describe_tiles(packed, backend, outcome.winograd),
        **summarize_cost(outcome.report),
    }


STAGE = Stage(
    name="tune",
    settings=_settings,
    limits=_limits,
    toolchain=lambda s: (*TOOLS, "xgboost", f"cc:{s.target.cc}"),
    run=tune,
    inputs={"graph_pack": (IR_NAME, WEIGHTS_NAME)},
    outputs=(Output("best.json"), Output("workloads.json"), Output("curve.csv", plot=CURVE)),
    reads=(
        *TARGET_READS,
        "targets.{target}.device.key",
        "targets.{target}.device.transport",
        *(f"tune.{name}" for name in SearchSettings.model_fields),
        "overrides",
    ),
    limit_reads=(
        "targets.{target}.device",
        "deploy.device_wait_s",
        *(f"tune.{name}" for name in SearchLimits.model_fields),
    ),
    measures_device=True,
    keeps_log=True,
    preview=own_module("tasks.first_number:first_number"),
)
