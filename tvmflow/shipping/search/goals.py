"""Define goals, compare candidates by their numbers, and choose among them. Knows nothing of stages and stores."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tvmflow.config.overrides import CellOverrides

# A candidate is tuned further unless another is this many times faster and no worse in anything else: rarely does a
# larger budget gain as much.
TUNING_GAIN = 1.5

State = Literal["open", "measured", "recorded", "left out", "failed"]


@dataclass(frozen=True)
class Goals:
    """What a library may cost. None: any.

    max_drop: accuracy lost beside the source framework, as a share; without labels, the share of samples with another
    most likely class.
    """

    max_drop: float | None = None
    max_latency_ms: float | None = None
    max_memory_bytes: float | None = None
    max_library_bytes: float | None = None


@dataclass(frozen=True)
class Numbers:
    """What a candidate costs. None: not known."""

    drop: float | None = None
    latency_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    memory_bytes: float | None = None
    library_bytes: float | None = None
    badges: str = ""

    def missed(self, goals: Goals) -> tuple[str, ...]:
        """Return the goals that are not met, as text."""
        limits = (
            ("accuracy drop", self.drop, goals.max_drop, "{:.2%}"),
            ("latency", self.latency_ms, goals.max_latency_ms, "{:.4g} ms"),
            ("memory", self.memory_bytes, goals.max_memory_bytes, "{:,.0f} bytes"),
            ("library", self.library_bytes, goals.max_library_bytes, "{:,.0f} bytes"),
        )
        return tuple(
            f"{name} unknown" if value is None else f"{name} {shown.format(value)} above {shown.format(limit)}"
            for name, value, limit, shown in limits
            if limit is not None and (value is None or value > limit)
        )

    @property
    def costs(self) -> tuple[float | None, ...]:
        return self.latency_ms, self.drop, self.memory_bytes, self.library_bytes


@dataclass(frozen=True)
class Candidate:
    """A cell with settings.

    overrides: what params.yaml needs for it; trials: of each workload; place: the folder of its variant; float_layers:
    allowed in int8, None in other precisions; kept: as many are in float; is_settled: more would not be kept if they
    were allowed; why: of its state.
    """

    cell: str
    overrides: CellOverrides
    trials: int
    place: str
    float_layers: int | None = None
    kept: int | None = None
    is_settled: bool = False
    state: State = "open"
    why: str = ""
    numbers: Numbers = field(default_factory=Numbers)

    @property
    def target(self) -> str:
        return self.cell.partition("@")[2].partition(":")[0]

    @property
    def precision(self) -> str:
        return self.cell.rpartition(":")[2]

    @property
    def is_known(self) -> bool:
        """Return whether it was measured, by the search or before."""
        return self.state in ("measured", "recorded")


def _beats(a: Numbers, b: Numbers, gain: float) -> bool:
    """Return whether `a` costs no more than `b`, and less of something. gain: how much more latency `b` may have."""
    pairs = [(x, y) for x, y in zip(a.costs[1:], b.costs[1:], strict=True) if x is not None and y is not None]
    if a.latency_ms is not None and b.latency_ms is not None:
        pairs.append((a.latency_ms * gain, b.latency_ms))
    return bool(pairs) and all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)


def pareto(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the measured candidates that no other of their target beats in everything, fastest first."""
    known = [one for one in candidates if one.is_known]
    best = [
        one
        for one in known
        if not any(_beats(other.numbers, one.numbers, 1.0) for other in known if other.target == one.target)
    ]
    return sorted(best, key=lambda one: (one.target, one.numbers.latency_ms or 0.0, one.cell, one.trials))


def is_worth_more(candidate: Candidate, others: Sequence[Candidate], goals: Goals) -> str:
    """Return why a measured candidate is not to be tuned further, "" if it is."""
    numbers = candidate.numbers
    fixed = Goals(goals.max_drop, None, None, None)
    if missed := numbers.missed(fixed):
        return "; ".join(missed)
    limit = goals.max_latency_ms
    if limit is not None and numbers.latency_ms is not None and numbers.latency_ms > limit * TUNING_GAIN:
        return f"latency {numbers.latency_ms:.4g} ms: more than {TUNING_GAIN:g} times {limit:.4g} ms"
    for other in others:
        if other.target == candidate.target and other.is_known and _beats(other.numbers, numbers, TUNING_GAIN):
            return f"{other.cell} is more than {TUNING_GAIN:g} times faster and no worse"
    return ""


def split(measured: Sequence[Candidate], goals: Goals) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates of one budget, with why they are not tuned further, and those that are."""
    shown, front = [], []
    for one in measured:
        why = is_worth_more(one, measured, goals) if one.is_known else ""
        shown.append(replace(one, why=f"not tuned further: {why}") if why else one)
        if one.is_known and not why:
            front.append(one)
    return shown, front


def choose(candidates: Sequence[Candidate], goals: Goals) -> Mapping[str, Candidate]:
    """Return target -> the fastest candidate that meets the goals.

    Of several whose intervals include the fastest the one that loses least accuracy is taken, then the smallest.
    """
    chosen = {}
    good = [one for one in candidates if one.is_known and not one.numbers.missed(goals)]
    for target, group in itertools.groupby(sorted(good, key=lambda one: one.target), lambda one: one.target):
        of_target = sorted(group, key=lambda one: one.numbers.latency_ms or 0.0)
        first = of_target[0].numbers
        reach = first.high_ms or first.latency_ms or 0.0
        near = [one for one in of_target if (one.numbers.low_ms or one.numbers.latency_ms or 0.0) <= reach]
        chosen[target] = min(near, key=_order)
    return chosen


def _order(one: Candidate) -> tuple[float, float, float, int]:
    n = one.numbers
    return n.drop or 0.0, n.library_bytes or 0.0, n.latency_ms or 0.0, one.trials
