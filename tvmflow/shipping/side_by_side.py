"""Measure two libraries of a cell in turns in one session of its device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tvmflow.backends.backend import Backend
from tvmflow.backends.registry import backend_for
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.devices.network_forms import LibraryForm
from tvmflow.devices.registry import open_session, transport_of
from tvmflow.devices.restartable import Restartable
from tvmflow.devices.session import DeviceSession, RemoteModel, SessionLimits
from tvmflow.evaluation.comparison import compare_exact, compare_libraries
from tvmflow.evaluation.interleaved_timing import TimedModel
from tvmflow.evaluation.latency import LatencyRules
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.evaluation.machine_state import host_watch
from tvmflow.frontends.source_model import batch_at
from tvmflow.sources.data.datasets import Arrays, random_inputs
from tvmflow.sources.model_files import random_specs

Start = Callable[[DeviceSession], RemoteModel]
Pair = tuple[Restartable, Restartable]


def compare_on_device(
    workspace: Workspace, cell: Cell, start: tuple[Start, Start], then: Callable[[Pair], None] = lambda _: None
) -> Comparison:
    """Return the latency of the second library over that of the first. start: starts each; then: gets both after."""
    params = workspace.params
    entry, rules, measure = params.targets[cell.target], params.release, params.evaluate
    limits = SessionLimits(params.deploy.session_timeout_s + 600, params.deploy.device_wait_s)
    backend = backend_for(entry)
    with open_session(entry.device, backend, limits) as session:
        a, b = (Restartable(functools.partial(one, session)) for one in start)
        if transport_of(entry.device).is_emulated:  # its clock counts instructions
            counts = [round(1e9 * one.model.time_runs(1)[0]) for one in (a, b)]
            return compare_exact(counts[0], counts[1], "executed instructions")
        costs = [cost_of_one_run(backend, session, one.model) for one in (a, b)]
        if costs[0] is not None and costs[1] is not None:
            return compare_exact(costs[0], costs[1], "estimated cycles")
        watch = host_watch(entry.threads) if transport_of(entry.device).is_this_host and backend.is_cpu else None
        turns = LatencyRules(3, rules.compare_rounds, measure.turn_ms, math.inf, measure.max_foreign_load)
        before, after = (
            TimedModel(name, one.time_runs, relocate=one.relocate) for name, one in (("champion", a), ("candidate", b))
        )
        found = compare_libraries(before, after, turns, entry.threads, rules.confidence, watch)
        then((a, b))
        return found


def started(form: LibraryForm, inputs: Arrays, session: DeviceSession) -> RemoteModel:
    """Start a library and run it once."""
    model = form.upload_and_start(session)
    model.set_inputs(*inputs)
    model.invoke()
    return model


def inputs_of(workspace: Workspace, cell: Cell) -> Arrays:
    """Return random inputs of one batch."""
    model = workspace.params.models[cell.model]
    return batch_at(random_inputs(model.batch or 1, random_specs(model), seed=0).inputs, 0, model.batch)


def cost_of_one_run(backend: Backend, session: DeviceSession, model: RemoteModel) -> int | None:
    """Return the cost of one run on a simulated device, whose clock is not a time; None on others."""
    before = backend.cost(session.call)
    if before is None:
        return None
    model.invoke()
    return (backend.cost(session.call) or 0) - before
