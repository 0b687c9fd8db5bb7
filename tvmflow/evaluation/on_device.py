"""Measure a library on its device: cold starts, latency, and the outputs of the evaluation set."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from tvmflow.config.buckets import Sizes
from tvmflow.devices.network_forms import LibraryForm
from tvmflow.devices.restartable import Restartable
from tvmflow.devices.session import DeviceSession, RemoteModel
from tvmflow.evaluation.interleaved_timing import TimedModel
from tvmflow.evaluation.latency import LIBRARY, Latency, LatencyRules, Measured, make_timer, measure, measure_latencies
from tvmflow.evaluation.machine_state import DeviceWatch, ReportsState, Watch, host_watch
from tvmflow.frontends.source_model import batch_at, run_in_batches
from tvmflow.support.progress import Progress

NOT_A_TIME = "emulated: not a time"
_COPIED_RUNS = 20
_COPY_TURNS, _COPY_TURN_MS = 20, 10.0
_MACHINE_TURNS = 12  # of the library in TVM's virtual machine, beside network.so
_COUNTED_TURNS = 3  # if the clock counts instructions or cycles, all runs are equal
_PROFILES, _PROFILED_RUNS = 5, 6
MACHINE = "tvm_machine"  # the name of our own library in TVM's virtual machine

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]


@dataclass(frozen=True)
class DeviceRules:
    """cold_starts: number of cold starts. threads: of library and baselines; on_this_host: they run on this machine.

    emulated: the device's clock counts instructions. is_counted: it counts these or cycles of a simulated part, so that
    all runs are equal. sizes: the shape buckets of the library.
    """

    latency: LatencyRules
    cold_starts: int
    threads: int
    on_this_host: bool
    peers: tuple[TimedModel, ...] = ()
    emulated: bool = False
    is_counted: bool = False
    sizes: Sizes | None = None


@dataclass(frozen=True)
class ColdStart:
    """total_ms: from the uploaded file to the first output, through the transport; first_run_ms: its first run, on the
    device's clock if available.

    memory_bytes: growth of the device's process, None if unknown. It is smaller for later starts, which reuse memory.
    """

    total_ms: float
    first_run_ms: float
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuNumbers:
    """Milliseconds of the shipped library on a GPU: open with a cold program cache (compile_ms) and with a warm one
    (open_ms), and copies of inputs and outputs between host and GPU.
    """

    compile_ms: float
    open_ms: float
    copy_in_ms: float
    copy_out_ms: float


@dataclass(frozen=True)
class DeviceNumbers:
    """latency: of compute, copy_in and copy_out; beside: the library, its baselines and, if it is another file, its
    form in TVM's virtual machine.

    outputs: of all samples, each (N, ...). executed: counters of one run, if available. sizes: latency per bucket.
    kernels_ms: time of all calls of a kernel in a run, by name, on this machine's CPU.
    """

    cold_starts: list[ColdStart]
    latency: dict[str, Latency]
    beside: Measured
    outputs: Arrays
    executed: dict[str, int] | None = None
    gpu: GpuNumbers | None = None
    sizes: dict[str, Latency] = field(default_factory=dict)
    kernels_ms: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers for the scorecard, without the outputs."""
        beside = {name: latency.to_json() for name, latency in self.beside.latency.items() if name != LIBRARY}
        advantages = {name: advantage.to_json() for name, advantage in self.beside.advantages.items()}
        machine, over_machine = beside.pop(MACHINE, None), advantages.pop(MACHINE, None)
        return {
            "cold_start_ms": [one.total_ms for one in self.cold_starts],
            "first_run_ms": [one.first_run_ms for one in self.cold_starts],
            "memory_bytes": max((one.memory_bytes or 0 for one in self.cold_starts), default=0) or None,
            "latency": {name: latency.to_json() for name, latency in self.latency.items()},
            "peers": beside,
            "executed": self.executed,
            "gpu": self.gpu and asdict(self.gpu),
            "sizes": {label: latency.to_json() for label, latency in self.sizes.items()},
            "advantages": advantages,
            "machine": machine and {"latency": machine, "advantage": over_machine},
        }


def measure_on_device(
    session: DeviceSession,
    shipped: LibraryForm,
    machine: LibraryForm,
    inputs: Arrays,
    batch: int,
    rules: DeviceRules,
    progress: Progress,
) -> DeviceNumbers:
    """Measure with the first batch of the inputs, then run all of them (N, ...).

    ships: the library for apps, which the results are of; machine: the same kernels in TVM's virtual machine, measured
    beside it if it is another file.
    """
    first = batch_at(inputs, 0, batch)
    cold = _cold_starts(session, shipped, first, rules.cold_starts)
    if rules.emulated:
        cold = [replace(one, memory_bytes=None) for one in cold]  # it would include the emulator's memory
    progress("measuring latency, interleaved with the baselines" if rules.peers else "measuring latency", 0, 0)
    library = Restartable(lambda: _start(session, shipped, first))
    session.rest()
    timed_models = [TimedModel(LIBRARY, library.time_runs, relocate=library.relocate), *rules.peers]
    latency_rules = replace(rules.latency, turns=_COUNTED_TURNS) if rules.is_counted else rules.latency
    watch = _watch_of(library, rules)
    beside = measure_latencies(timed_models, latency_rules, rules.threads, watch)
    if machine.file != shipped.file:
        vm_model = _start(session, machine, first)
        fewer = replace(latency_rules, turns=min(latency_rules.turns, _MACHINE_TURNS))
        pair = [timed_models[0], TimedModel(MACHINE, vm_model.time_runs)]
        vm_result = measure_latencies(pair, fewer, rules.threads, watch)
        beside.latency[MACHINE] = vm_result.latency[MACHINE]
        beside.advantages[MACHINE] = vm_result.advantages[MACHINE]
    if rules.emulated:
        beside = Measured({name: _mark_not_a_time(found) for name, found in beside.latency.items()}, {})
    model = library.model
    latency = {"compute": beside.latency[LIBRARY], **_copy_latency(model, first, rules.latency)}
    if rules.emulated:
        latency = {name: _mark_not_a_time(found) for name, found in latency.items()}
    kernels_ms = _kernels_ms(model) if rules.on_this_host else {}
    gpu = _gpu_numbers(session, shipped, model, rules.cold_starts)
    executed = model.executed()
    outputs = run_in_batches(
        model, inputs, batch, lambda done, total: progress("evaluating on the device", done, total)
    )
    by_size = _by_size(model, first, rules, latency["compute"])
    return DeviceNumbers(cold, latency, beside, outputs, executed, gpu, by_size, kernels_ms)


def _start(session: DeviceSession, form: LibraryForm, inputs: Arrays) -> RemoteModel:
    model = form.upload_and_start(session)
    model.set_inputs(*inputs)
    return model


def _watch_of(model: ReportsState, rules: DeviceRules) -> Watch | None:
    """Return the watch of the machine that a library runs on; None if its clock is not a time."""
    if rules.is_counted:
        return None
    return host_watch(rules.threads) if rules.on_this_host else DeviceWatch(model, rules.threads)


def _kernels_ms(model: RemoteModel) -> dict[str, float]:
    """Return the time of all calls of a kernel in one run, the median of several profiles; empty if the device has no
    profile.
    """
    found: dict[str, list[float]] = {}
    for _ in range(_PROFILES):
        sums: dict[str, float] = {}
        for name, calls, nanoseconds in model.profile(_PROFILED_RUNS):
            sums[name] = sums.get(name, 0.0) + nanoseconds / max(calls, 1) / 1e6
        for name, milliseconds in sums.items():
            found.setdefault(name, []).append(milliseconds)
    return {name: median(each) for name, each in found.items()}


def _by_size(model: RemoteModel, inputs: Arrays, rules: DeviceRules, largest: Latency) -> dict[str, Latency]:
    """Return label -> latency of a run in each bucket, with inputs that fill it."""
    sizes = rules.sizes
    if sizes is None or not model.takes_sizes:
        return {}
    found = {}
    for bucket in sizes.all[:-1]:
        model.set_sized(bucket, *sizes.cut(inputs, bucket))
        latency = measure(model.time_runs, rules.latency)
        found[sizes.label(bucket)] = _mark_not_a_time(latency) if rules.emulated else latency
    return {**found, sizes.label(sizes.largest): largest}


def _mark_not_a_time(latency: Latency) -> Latency:
    return replace(latency, badges=(NOT_A_TIME,), is_time=False)


def _copy_latency(model: RemoteModel, inputs: Arrays, rules: LatencyRules) -> dict[str, Latency]:
    """Return copy_in and copy_out on the host's clock, through the transport; compute uses the device's clock."""
    copies = LatencyRules(3, _COPY_TURNS, _COPY_TURN_MS, 2.0, rules.max_foreign_load)
    return {
        "copy_in": measure(make_timer(lambda: model.set_inputs(*inputs)), copies),
        "copy_out": measure(make_timer(model.outputs), copies),
    }


def _gpu_numbers(session: DeviceSession, form: LibraryForm, model: RemoteModel, starts: int) -> GpuNumbers | None:
    """Measure the numbers of a GPU library; its program cache is warm by now."""
    copies = model.copies_ms(_COPIED_RUNS) if session.gpu else None
    name = session.upload(form.file) if copies else ""
    compiled = session.opening_ms(name, keeps_programs=False) if copies else None
    if copies is None or compiled is None:
        return None
    opened = sorted(session.opening_ms(name, keeps_programs=True) or compiled for _ in range(max(starts, 1)))
    return GpuNumbers(compiled, opened[len(opened) // 2], *copies)


def _cold_starts(session: DeviceSession, form: LibraryForm, inputs: Arrays, count: int) -> list[ColdStart]:
    """Start the library several times, each from a newly uploaded file."""
    starts = []
    for _ in range(count):
        name = session.upload(form.file)
        started = time.perf_counter()
        model = form.start(session, name)
        model.set_inputs(*inputs)
        ready = time.perf_counter()
        model.invoke()
        ran = time.perf_counter()
        first_ms = model.last_run_ms() or (ran - ready) * 1e3
        model.outputs()
        starts.append(ColdStart((time.perf_counter() - started) * 1e3, first_ms, model.memory_bytes()))
    return starts
