"""Measure one compiled kernel on one device: check the output, then time it in turns with the fastest one so far."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvmflow.devices.session import DeviceSession, RemoteKernel
from tvmflow.ir.relax.serialization import numpy_dtype
from tvmflow.ir.tir.workloads import Workload
from tvmflow.ir.tvm_compat import buffer_of
from tvmflow.tuning.records.record import OK, WRONG_OUTPUT
from tvmflow.tuning.rules import MeasureRules

Array = np.ndarray[Any, Any]
_TOLERANCE = 1e-4  # float32 sums in another order; relative to the largest output
_LOW_TOLERANCE = 2e-2  # of kernels that read or write 16-bit floats, and may round in between
_NOISE = 0.03  # half the spread over the median, above which a promising kernel is timed again
_MOST_ROUNDS = 4
_LOOKUP = re.compile(r"\b(\w+)\[([^\[\]\n]*?)\b(\w+)\[")  # TABLE[..., PLACES[
_PAIRS = 9  # of times of a candidate and of the fastest one
_AGREEING_PAIRS = 5  # that all say the same are enough
_PAIRED = 1 / 3  # of a repeat's time for each time of a pair: all pairs take twice as long as three repeats
_CLEARLY_SLOWER = 1.03  # in every pair: fewer pairs will do;
_MUCH_SLOWER = 1.1  # or in the median pair
_HOPELESS = 2.5  # so many times slower than the best: one repeat says enough
_SLOW = 1.3  # so many times slower: two do


def inputs_of(workload: Workload) -> list[Array]:
    """Return fixed random arrays for the parameters of a kernel, the last of which is its output."""
    generator = np.random.default_rng(0)
    places = _places(workload.function)
    return [_array(workload, parameter, generator, places) for parameter in workload.function.params]


def _places(function: Any) -> dict[str, int]:
    """Return buffer -> how many places there are, for buffers whose numbers are places in another (lookups in a
    table).
    """
    shapes = {str(buffer.name): [int(extent) for extent in buffer.shape] for buffer in _buffers(function)}
    found: dict[str, int] = {}
    for table, between, name in _LOOKUP.findall(function.script(show_meta=False)):
        if table in shapes and name in shapes:
            axis = between.count(",")
            extent = min(shapes[table]) if "(" in between else shapes[table][axis]
            found[name] = min(found.get(name, extent), extent)
    return found


def _buffers(function: Any) -> list[Any]:
    return [buffer for parameter in function.params if (buffer := buffer_of(function, parameter)) is not None]


def _array(workload: Workload, parameter: Any, generator: np.random.Generator, places: dict[str, int]) -> Array:
    buffer = buffer_of(workload.function, parameter)
    assert buffer is not None, "a kernel of a network takes buffers only"
    shape = [int(extent) for extent in buffer.shape]
    dtype = numpy_dtype(str(buffer.dtype))
    if str(buffer.name) in places and dtype.kind in "iu":
        return generator.integers(0, places[str(buffer.name)], shape).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        low, high = (-128, 128) if dtype.kind == "i" else (0, 256)
        return generator.integers(low, high, shape).astype(dtype)
    return (generator.standard_normal(shape, dtype=np.float32) * 0.5).astype(dtype)


class KernelBench:
    """One workload on one device. `reference` is the output of the plain kernel, made once per workload."""

    def __init__(
        self,
        workload: Workload,
        session: DeviceSession,
        rules: MeasureRules,
        arrays: list[Array],
        reference: Array | None,
        plain: Path | None,
    ) -> None:
        self.workload, self.session, self.rules = workload, session, rules
        self._bench = session.bench(arrays)
        self._fastest: tuple[RemoteKernel, float] | None = None  # that was measured here, and its seconds
        low = any(array.dtype.itemsize == 2 and array.dtype.kind not in "iu" for array in arrays)
        self._tolerance = _LOW_TOLERANCE if low else _TOLERANCE
        if reference is None:
            assert plain is not None
            reference = self._bench.load(plain).output()
        self.reference = reference

    def measure(self, library: Path, best_s: float = float("inf")) -> tuple[str, tuple[float, ...], str]:
        """Return (status, seconds per repeat, what was wrong). Raises DeviceLostError when the device goes away.

        A candidate that may be the fastest is timed in turns with the one that is, and its seconds are on that one's
        scale: a clock that moves, and cores that a hypervisor moves, fall on both. best_s: of the fastest one that is
        known.
        """
        kernel = self._bench.load(library)
        wrong = self._difference(kernel.output())
        if wrong:
            return WRONG_OUTPUT, (), wrong
        found = self._time(kernel, 1)
        if found[0] > _HOPELESS * best_s:
            return OK, tuple(found), ""
        if found[0] > _SLOW * best_s and self.rules.repeats > 1:
            found += self._time(kernel, 1)
            if min(found) > _SLOW * best_s:
                return OK, tuple(found), ""
        found = self._in_turns(kernel) if self._fastest else self._until_quiet(kernel, found, best_s)
        if self._fastest is None or median(found) < self._fastest[1]:
            self._fastest = kernel, median(found)
        return OK, tuple(found), ""

    def forget_fastest(self) -> None:
        """Let the next candidate's seconds be those of the speed that the device has then."""
        self._fastest = None

    def measure_alone(self, library: Path) -> tuple[float, ...]:
        """Return the seconds per repeat of a kernel at the speed that the device has now, nothing for a wrong
        output.
        """
        kernel = self._bench.load(library)
        return () if self._difference(kernel.output()) else tuple(self._until_quiet(kernel, []))

    def _in_turns(self, kernel: RemoteKernel) -> list[float]:
        """Return the times of a kernel relative to the fastest one's, timed in turns until it is clearly slower, or
        often enough.
        """
        assert self._fastest is not None
        fastest, fastest_s = self._fastest
        ratios: list[float] = []
        for number in range(_PAIRS):
            if number % 2:  # each is the first of every second pair
                ours_s, theirs_s = self._short_time(kernel), self._short_time(fastest)
            else:
                theirs_s, ours_s = self._short_time(fastest), self._short_time(kernel)
            ratios.append(ours_s / theirs_s)
            is_slower = min(ratios) > _CLEARLY_SLOWER or median(ratios) > _MUCH_SLOWER
            if number + 1 >= self.rules.repeats and is_slower:
                break
            if number + 1 >= _AGREEING_PAIRS and (min(ratios) > 1 or max(ratios) < 1):
                break
        return [fastest_s * ratio for ratio in ratios]

    def _until_quiet(self, kernel: RemoteKernel, found: list[float], best_s: float = float("inf")) -> list[float]:
        found = found + self._time(kernel, self.rules.repeats - len(found))
        for _ in range(_MOST_ROUNDS):
            spread = (max(found) - min(found)) / 2 / median(found)
            if len(found) < 2 or spread <= _NOISE or min(found) > 1.1 * best_s:
                break
            found = found + self._time(kernel, self.rules.repeats)
        return found

    def _time(self, kernel: RemoteKernel, repeat: int) -> list[float]:
        return kernel.time(repeat, self.rules.min_repeat_ms) if repeat > 0 else []

    def _short_time(self, kernel: RemoteKernel) -> float:
        return kernel.time(1, _PAIRED * self.rules.min_repeat_ms)[0]

    def _difference(self, output: Array) -> str:
        """Say how an output differs from the plain kernel's; nothing where it is right."""
        if self.reference.dtype.kind in "iub":
            count = int(np.count_nonzero(output != self.reference))
            return f"{count} of {output.size} values differ from the plain kernel's" if count else ""
        reference = self.reference.astype(np.float64)
        largest = max(float(np.abs(reference).max(initial=0.0)), 1e-6)
        error = float(np.abs(output.astype(np.float64) - reference).max(initial=0.0)) / largest
        if error <= self._tolerance:  # a NaN is not
            return ""
        return f"relative error {error:.2g} against the plain kernel, at most {self._tolerance:g}"
