"""Find the fastest execution variant of a framework whose outputs are correct.

Independent of the framework: a variant is prepared, checked against the expected outputs, and timed interleaved with
the others.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tvmflow.evaluation.latency import make_timer
from tvmflow.frontends.source_model import Arrays, PreparedRun, Variant
from tvmflow.support.errors import first_line

TOLERANCE = 1e-3  # relative to the largest output: above float32 reordering, below 16-bit rounding
LEAST_EQUAL = 0.9  # of integers, as between stages
COMPILE_FROM_S = 0.002  # shorter runs gain nothing from a compiler, whose call overhead is 0.1 to 0.2 ms
COMPILE_LIMIT_S = 60.0
_WARMUP_RUNS, _LEAST_RUNS, _ROUNDS, _TURN_S, _SECONDS = 3, 3, 5, 0.01, 2.0

TimedRuns = Callable[[int], list[float]]


class FastestVariant:
    """The variants that run, and the reasons why others do not.

    expected: the correct outputs; adjust: converts a variant's outputs to their form. compile_limit_s: for all variants
    that compile.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        expected: Arrays,
        adjust: Callable[[Arrays], Arrays] = tuple,
        compile_limit_s: float = COMPILE_LIMIT_S,
    ) -> None:
        self.left_out: dict[str, str] = {}
        self._expected, self._adjust, self._compile_limit_s = expected, adjust, compile_limit_s
        self._slow_to_compile = [variant for variant in variants if variant.compiles_long]
        self._ready = self._prepare_all([variant for variant in variants if not variant.compiles_long])

    def choose(self) -> tuple[str, TimedRuns] | None:
        """Return the name and the timer of the fastest variant, None if none runs. Call it while nothing else runs."""
        least = _least_times(self._ready)
        if self._slow_to_compile and least and min(least.values()) >= COMPILE_FROM_S:
            with _limit(self._compile_limit_s):
                compiled = self._prepare_all(self._slow_to_compile)
            self._ready |= compiled
            least = _least_times(self._ready) if compiled else least
        if not least:
            return None
        name = min(least, key=lambda variant: least[variant])
        return name, timer_of(self._ready[name])

    def _prepare_all(self, variants: Sequence[Variant]) -> dict[str, PreparedRun]:
        ready = {}
        for variant in variants:
            try:
                run = variant.prepare()
                difference = difference_of(self._adjust(run.read(run.run())), self._expected)
            except Exception as error:  # frameworks raise arbitrary errors for unsupported models
                difference = f"it cannot run this model: {first_line(error)}"
            if difference is None:
                ready[variant.name] = run
            else:
                self.left_out[variant.name] = difference
        return ready


def difference_of(outputs: Arrays, expected: Arrays) -> str | None:
    """Return how outputs differ from the expected ones beyond rounding, None if they do not."""
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
    """Return the shortest run of each variant in seconds, over interleaved rounds; a busy machine only adds time."""
    timers = {name: timer_of(run) for name, run in ready.items()}
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


def timer_of(run: PreparedRun) -> TimedRuns:
    """Return a function that times runs of a prepared model."""
    if run.time_runs is not None:
        return run.time_runs
    time_runs = make_timer(run.run)
    return lambda count: list(time_runs(count))


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
