"""Measure a library on its device: cold starts, latency, and the outputs of the evaluation set."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from tvmflow.config.buckets import Sizes
from tvmflow.devices.network_forms import LibraryForm
from tvmflow.devices.restartable import Restartable
from tvmflow.devices.session import DeviceSession, RemoteModel
from tvmflow.evaluation.interleaved_timing import TimedModel
from tvmflow.evaluation.latency import LIBRARY, LatencyRules, Measured, make_timer, measure, measure_latencies
from tvmflow.evaluation.latency_summary import Latency
from tvmflow.evaluation.machine_state import DeviceWatch, ReportsState, Watch, host_watch
from tvmflow.evaluation.scorecard import GpuNumbers, LatencyByPart, MachineForm, OnDevice
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
class DeviceNumbers:
    """measured: for the scorecard. outputs: of all samples, each (N, ...)."""

    measured: OnDevice
    outputs: Arrays


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
    cold_start_ms, first_run_ms, memory_bytes = _cold_starts(session, shipped, first, rules.cold_starts)
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
    model, compute = library.model, beside.latency.pop(LIBRARY)
    latency = LatencyByPart(compute, *(_copy_latency(model, first, rules)))
    kernels_ms = _kernels_ms(model) if rules.on_this_host else {}
    gpu = _gpu_numbers(session, shipped, model, rules.cold_starts)
    executed = model.executed()
    outputs = run_in_batches(
        model, inputs, batch, lambda done, total: progress("evaluating on the device", done, total)
    )
    vm_latency, over_vm = beside.latency.pop(MACHINE, None), beside.advantages.pop(MACHINE, None)
    measured = OnDevice(
        cold_start_ms=cold_start_ms,
        first_run_ms=first_run_ms,
        memory_bytes=None if rules.emulated else memory_bytes,  # it would include the emulator's memory
        latency=latency,
        peers=beside.latency,
        executed=executed,
        gpu=gpu,
        sizes=_by_size(model, first, rules, compute),
        advantages=beside.advantages,
        machine=MachineForm(vm_latency, over_vm) if vm_latency else None,
        kernels_ms=kernels_ms,
    )
    return DeviceNumbers(measured, outputs)


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


def _copy_latency(model: RemoteModel, inputs: Arrays, rules: DeviceRules) -> list[Latency]:
    """Return the latency of copies in and out, on the host's clock, through the transport."""
    copies = LatencyRules(3, _COPY_TURNS, _COPY_TURN_MS, 2.0, rules.latency.max_foreign_load)
    found = [measure(make_timer(copy), copies) for copy in (lambda: model.set_inputs(*inputs), model.outputs)]
    return [_mark_not_a_time(latency) if rules.emulated else latency for latency in found]


def _gpu_numbers(session: DeviceSession, form: LibraryForm, model: RemoteModel, starts: int) -> GpuNumbers | None:
    """Measure the numbers of a GPU library; its program cache is warm by now."""
    copies = model.copies_ms(_COPIED_RUNS) if session.gpu else None
    name = session.upload(form.file) if copies else ""
    compiled = session.opening_ms(name, keeps_programs=False) if copies else None
    if copies is None or compiled is None:
        return None
    opened = sorted(session.opening_ms(name, keeps_programs=True) or compiled for _ in range(max(starts, 1)))
    return GpuNumbers(compiled, opened[len(opened) // 2], *copies)


def _cold_starts(
    session: DeviceSession, form: LibraryForm, inputs: Arrays, count: int
) -> tuple[tuple[float, ...], tuple[float, ...], int | None]:
    """Start the library several times, each from a newly uploaded file.

    Return the milliseconds from the file to the first output, through the transport; those of the first run, on the
    device's clock if available; and the most that the device's process grew (later starts reuse memory).
    """
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
        starts.append(((time.perf_counter() - started) * 1e3, first_ms, model.memory_bytes() or 0))
    total_ms, first_run_ms, memory_bytes = zip(*starts, strict=True)
    return total_ms, first_run_ms, max(memory_bytes) or None
