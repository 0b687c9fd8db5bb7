"""Measure a library on its device: cold starts, latency, and the outputs for the evaluation set."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.devices.session import DeviceSession, RemoteModel
from tvmflow.evaluation.latency import LIBRARY, Latency, LatencyRules, Measured, measure, measure_in_turns, timed
from tvmflow.evaluation.load import read_cpu
from tvmflow.evaluation.turns import Contestant
from tvmflow.frontends.source_model import batch_at, run_in_batches
from tvmflow.progress import Progress

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]


@dataclass(frozen=True)
class DeviceRules:
    """cold_starts: how many times the library is loaded anew. threads: of library and peers; on_this_host: where they run."""

    latency: LatencyRules
    cold_starts: int
    threads: int
    on_this_host: bool
    peers: tuple[Contestant, ...] = ()


@dataclass(frozen=True)
class DeviceNumbers:
    """latency: of compute, copy_in and copy_out; beside: the library and its peers; outputs: all outputs for all samples, each (N, ...)."""

    cold_start_ms: list[float]
    latency: dict[str, Latency]
    beside: Measured
    outputs: Arrays

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as the scorecard has them: without the outputs."""
        return {
            "cold_start_ms": self.cold_start_ms,
            "latency": {name: found.to_json() for name, found in self.latency.items()},
            "peers": {name: found.to_json() for name, found in self.beside.latency.items() if name != LIBRARY},
            "advantages": {name: found.to_json() for name, found in self.beside.advantages.items()},
        }


def measure_on_device(
    session: DeviceSession, library: Path, inputs: Arrays, batch: int, rules: DeviceRules, progress: Progress
) -> DeviceNumbers:
    """Measure with the first batch of the inputs, then run all of them (N, ...)."""
    first = batch_at(inputs, 0, batch)
    cold = _cold_starts(session, library, first, rules.cold_starts)
    model = session.model(library)
    progress("measuring latency, in turns with the peers" if rules.peers else "measuring latency", 0, 0)
    model.set_inputs(*first)
    contestants = (Contestant(LIBRARY, model.time_runs), *rules.peers)
    beside = measure_in_turns(contestants, rules.latency, rules.threads, read_cpu if rules.on_this_host else None)
    latency = {"compute": beside.latency[LIBRARY], **_copies(model, first, rules.latency)}
    outputs = run_in_batches(
        model, inputs, batch, lambda done, total: progress("evaluating on the device", done, total)
    )
    return DeviceNumbers(cold, latency, beside, outputs)


def _copies(model: RemoteModel, inputs: Arrays, rules: LatencyRules) -> dict[str, Latency]:
    """Return copy_in and copy_out on our clock, through the transport; compute is on the device's."""
    copies = LatencyRules(3, min(rules.min_runs, 30), 0.1, 2.0, rules.max_spread, rules.max_foreign_load)
    return {
        "copy_in": measure(timed(lambda: model.set_inputs(*inputs)), copies),
        "copy_out": measure(timed(model.outputs), copies),
    }


def _cold_starts(session: DeviceSession, library: Path, inputs: Arrays, count: int) -> list[float]:
    """Return milliseconds from 'the file is on the device' to the first output, each with a file of its own name."""
    found = []
    for _ in range(count):
        name = session.upload(library)
        started = time.perf_counter()
        session.model_on_device(name).run(*inputs)
        found.append((time.perf_counter() - started) * 1e3)
    return found
