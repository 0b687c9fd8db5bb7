"""Measure the network with default schedules before tune, compare it with a baseline, and predict tuning's gain.

In:  the inputs of tune; the baselines' files in the workspace Out: one progress line. Nothing is stored, and no recipe
key depends on it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tasks.device import session_of
from tasks.tune import TOOLS, TuneLimits, TuneSettings
from tvmflow.backends.registry import backend_of
from tvmflow.config.workspace import Workspace
from tvmflow.devices.registry import transport_of
from tvmflow.evaluation.baselines import SOURCE, Baselines, open_baselines
from tvmflow.evaluation.interleaved_timing import TimedModel
from tvmflow.evaluation.latency import LIBRARY, LatencyRules, measure_latencies
from tvmflow.evaluation.machine_state import host_watch
from tvmflow.ir.relax.serialization import load_module
from tvmflow.ir.tir.workloads import extract_workloads, kernel_keys
from tvmflow.pipeline.stage import StageContext
from tvmflow.support.temporary import temporary_folder
from tvmflow.toolchain.versions import versions
from tvmflow.tuning.compare_networks import NetworkComparison, NetworkConfig
from tvmflow.tuning.expected_gain import predict_gain, profiled_searches
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.status_lines import comparison_text, format_first_line, gain_text
from tvmflow.tuning.winograd_choice import choose_by_cost

# A quick measurement; the scorecard follows later with the rules of params.yaml.
_RULES = LatencyRules(warmup_runs=3, turns=12, turn_ms=30.0, max_seconds=1.5, max_foreign_load=0.1)
_PROFILED_RUNS = 8
_WAIT_S = 5.0  # for a busy device; tune itself waits longer
_PEERS = {"onnxruntime": "ONNX Runtime", SOURCE: "the source framework"}  # the first available one is used

Context = StageContext[TuneSettings, TuneLimits]


def first_number(context: Context) -> None:
    """Report the time with default schedules; nothing if no search follows, or if the device's clock is not a time."""
    settings, target = context.settings.search, context.settings.target
    backend = backend_of(target)
    if settings.without_device or not settings.trials_per_workload or context.settings.emulated or backend.accelerator:
        return
    transport = transport_of(context.limits.device.device)
    here = transport.is_this_host and target.runs_here and backend.is_cpu
    has_tvm = transport.has_tvm_on(context.limits.device.device)
    rules = SearchRules(settings, context.limits.search, transport.is_this_host, has_tvm)
    limits = replace(context.limits.device, device_wait_s=min(context.limits.device.device_wait_s or _WAIT_S, _WAIT_S))
    tuning_log = TuningLog(context.tuning_log, transport.kind_of(backend.kernel_kind), versions(TOOLS))
    packed = load_module(context.inputs["graph_pack"], is_packed=True)
    context.progress("building with default schedules", 0, 0)
    with (
        _open_baseline(context) if here else contextlib.nullcontext(Baselines) as loaded,
        temporary_folder("first") as folder,
        NetworkComparison(packed, backend, tuning_log, Path(folder), lambda: session_of(limits, target)) as networks,
    ):
        form = NetworkConfig(choose_by_cost(packed, backend, settings.winograd_bounds), {})
        network = networks.model(form)
        context.progress("measuring with default schedules", 0, 0)
        text = _measure_with_baselines(
            [TimedModel(LIBRARY, network.time_runs, relocate=network.relocate), *loaded().models],
            target.threads,
            here,
        )
        lowered = networks.lowered(form)
        names = kernel_keys(lowered)
        kernels = _kernel_seconds(names, network.model.profile(_PROFILED_RUNS))
    known = tuning_log.known()
    searches = profiled_searches(extract_workloads(lowered), kernels, backend, known)
    promise = predict_gain(searches, rules, known, settings.max_seconds or math.inf)
    context.progress(text(gain_text(promise.share, promise.seconds) if promise else ""), 0, 0)


def _measure_with_baselines(models: list[TimedModel], threads: int, here: bool) -> Callable[[str], str]:
    """Measure the first model beside the others; return a function that formats the line with tuning's expected
    gain.
    """
    measured = measure_latencies(models, _RULES, threads if here else 0, host_watch(threads) if here else None)
    latency = measured.latency[LIBRARY]
    beside = [
        comparison_text(one.times_faster, one.low, one.high, _PEERS[name]) for name, one in measured.advantages.items()
    ]
    doubt = ", ".join(latency.badges)
    return lambda promise: format_first_line(latency.median_ms, doubt, ", ".join(filter(None, beside)), promise)


def _kernel_seconds(names: dict[str, str], profile: list[tuple[str, int, int]]) -> dict[str, float]:
    """Return workload key -> seconds of a call. names: kernel -> workload key; profile: of RemoteModel."""
    times: dict[str, list[float]] = {}
    for name, calls, nanoseconds in profile:
        if name in names and calls:
            times.setdefault(names[name], []).append(nanoseconds / calls * 1e-9)
    return {key: sum(each) / len(each) for key, each in times.items()}


@contextlib.contextmanager
def _open_baseline(context: Context) -> Iterator[Callable[[], Baselines]]:
    """Start the first baseline of params.yaml that can run this model; none if its requirements are missing."""
    workspace = Workspace(context.root)
    fetched = workspace.folder("fetch", context.cell)
    onnx_file = workspace.folder("import_model", context.cell) / "peer.onnx"
    wanted = [name for name in _PEERS if name in workspace.params.evaluate.peers]
    if not onnx_file.exists():
        wanted = [name for name in wanted if name == SOURCE]
    if not wanted or not (fetched / "source.json").exists():
        yield Baselines
        return
    threads = context.settings.target.threads
    with open_baselines((wanted[0],), fetched, onnx_file, threads) as loaded:
        yield loaded
