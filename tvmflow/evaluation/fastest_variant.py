"""Find the fastest way of a framework to run a model that computes what the framework computes.

Knows nothing of frameworks: a way is prepared, checked against the expected outputs, and timed in turns with the
others.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tvmflow.evaluation.latency import timed
from tvmflow.frontends.source_model import Arrays, PreparedRun, Way
from tvmflow.support.errors import first_line

TOLERANCE = 1e-3  # of the largest output: more than float32 in another order, less than 16 bits
LEAST_EQUAL = 0.9  # of integers, as between stages
COMPILE_FROM_S = 0.002  # shorter runs gain nothing from a compiler, whose own calls cost 0.1 to 0.2 ms
COMPILE_LIMIT_S = 60.0
_WARMUP_RUNS, _LEAST_RUNS, _ROUNDS, _TURN_S, _SECONDS = 3, 3, 5, 0.01, 2.0

TimedRuns = Callable[[int], list[float]]


class FastestVariant:
    """Ways that can be run, and why others cannot.

    expected: what each must compute, once `adjust` has made its outputs what these are. compile_limit_s: for all that
    compile.
    """

    def __init__(
        self,
        ways: Sequence[Way],
        expected: Arrays,
        adjust: Callable[[Arrays], Arrays] = tuple,
        compile_limit_s: float = COMPILE_LIMIT_S,
    ) -> None:
        self.left_out: dict[str, str] = {}
        self._expected, self._adjust, self._compile_limit_s = expected, adjust, compile_limit_s
        self._later = [way for way in ways if way.compiles_long]
        self._ready = self._prepared([way for way in ways if not way.compiles_long])

    def choose(self) -> tuple[str, TimedRuns] | None:
        """Return the name of the fastest and what times it, None where none can be run. Call it while nothing else
        runs.
        """
        least = _least_times(self._ready)
        if self._later and least and min(least.values()) >= COMPILE_FROM_S:
            with _limit(self._compile_limit_s):
                compiled = self._prepared(self._later)
            self._ready |= compiled
            least = _least_times(self._ready) if compiled else least
        if not least:
            return None
        name = min(least, key=lambda way: least[way])
        return name, timer_of(self._ready[name])

    def _prepared(self, ways: Sequence[Way]) -> dict[str, PreparedRun]:
        ready = {}
        for way in ways:
            try:
                prepared = way.prepare()
                difference = difference_of(self._adjust(prepared.read(prepared.run())), self._expected)
            except Exception as error:  # frameworks raise what they like on models that they cannot run so
                difference = f"it cannot run this model: {first_line(error)}"
            if difference is None:
                ready[way.name] = prepared
            else:
                self.left_out[way.name] = difference
        return ready


def difference_of(outputs: Arrays, expected: Arrays) -> str | None:
    """Return how outputs differ from what is expected by more than rounding, None where they do not."""
    if [output.shape for output in outputs] != [output.shape for output in expected]:
        shapes = [" and ".join(str(list(x.shape)) for x in some) or "none" for some in (outputs, expected)]
        return f"it computes something else: outputs of {shapes[0]}, not of {shapes[1]}"
    for output, right in zip(outputs, expected, strict=True):
        if right.dtype.kind in "iub":
            if right.size and (equal := float((output == right).mean())) < LEAST_EQUAL:
                return (
                    f"it computes something else: {equal:.0%} of the integers are equal, at least "
                    f"{LEAST_EQUAL:.0%} must be"
                )
            continue
        largest = float(np.abs(right, dtype=np.float64).max(initial=0.0))
        error = float(np.abs(output.astype(np.float64) - right).max(initial=0.0)) / (largest or 1.0)
        if not error <= TOLERANCE:
            return f"it computes something else: off by {error:.1e} of the largest output, at most {TOLERANCE:.0e}"
    return None


def _least_times(ready: Mapping[str, PreparedRun]) -> dict[str, float]:
    """Return the seconds of the shortest run of each, of several in turns: what others take of the machine only
    adds.
    """
    timers = {name: timer_of(prepared) for name, prepared in ready.items()}
    counts = {}
    for name, time_runs in timers.items():
        counts[name] = max(_LEAST_RUNS, int(_TURN_S / max(min(time_runs(_WARMUP_RUNS)), 1e-9)))
    least = dict.fromkeys(timers, float("inf"))
    started = time.monotonic()
    for _ in range(_ROUNDS):
        for name, time_runs in timers.items():
            least[name] = min(least[name], *time_runs(counts[name]))
        if time.monotonic() - started > _SECONDS:
            break
    return least


def timer_of(prepared: PreparedRun) -> TimedRuns:
    """Return what times so many runs of a prepared model."""
    if prepared.time_runs is not None:
        return prepared.time_runs
    time_runs = timed(prepared.run)
    return lambda count: list(time_runs(count))


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
