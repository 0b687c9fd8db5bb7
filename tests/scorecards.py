"""Build a complete scorecard of a small cell, whose parts a test replaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvmflow.evaluation.agreement import Agreement
from tvmflow.evaluation.latency_summary import Latency
from tvmflow.evaluation.scorecard import AcceleratorPart, Accuracy, Device, LatencyByPart, Scorecard

CELL = "small@local-cpu:float32"
AGREEMENT = Agreement(1.0, 1e-6, 1e-6, 100.0, 1.0, 8)
DEVICE = Device("local-cpu", "cpu-test-t2", 2)


def latency(median_ms: float = 1.0, **changes: Any) -> Latency:
    known = Latency(median_ms, median_ms, 1.2 * median_ms, median_ms, 2 * median_ms, 0.1, 30, 60, 60)
    return replace(known, low_ms=0.99 * median_ms, high_ms=1.01 * median_ms, **changes)


def latency_by_part(compute: Latency) -> LatencyByPart:
    return LatencyByPart(compute, latency(0.1), latency(0.2))


def accuracy(built: float, source: float = 0.9) -> Accuracy:
    return Accuracy(source, source, built, built, 8)


def simulated_part(**details: Any) -> AcceleratorPart:
    return AcceleratorPart(name="d", simulated=True, estimated_ms=0.5, metrics={}, **details)


def scorecard(**changes: Any) -> Scorecard:
    card = Scorecard(
        cell=CELL,
        device=DEVICE,
        batch=1,
        library_bytes=50_000,
        coverage=1.0,
        cold_start_ms=(3.0,),
        latency=latency_by_part(latency()),
        peers={},
        agreement=AGREEMENT,
        accuracy=accuracy(0.9),
        part=None,
    )
    return replace(card, **changes)
