"""Measure one compiled kernel on one device: check its output, then time it against the fastest one so far."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvmflow.devices.session import DeviceSession, RemoteKernel
from tvmflow.ir.tir.workloads import Workload
from tvmflow.ir.tvm_compat import PrimFunc, buffer_of
from tvmflow.support.dtypes import numpy_dtype
from tvmflow.tuning.records.record import OK, WRONG_OUTPUT
from tvmflow.tuning.rules import MeasureRules

Array = np.ndarray[Any, Any]
_TOLERANCE = 1e-4  # for float32 sums in another order; relative to the largest output
_LOW_TOLERANCE = 2e-2  # for kernels with 16-bit floats, which may round intermediate results
_NOISE = 0.03  # relative half-width above which a promising kernel is timed again
_MOST_ROUNDS = 4
_GATHER = re.compile(r"\b(\w+)\[([^\[\]\n]*?)\b(\w+)\[")  # TABLE[..., INDICES[
_PAIRS = 9  # pairs of times: of a candidate and of the fastest one
_AGREEING_PAIRS = 5  # enough if all of them agree
# Number of pairs -> half of the 95 % interval of their mean, in standard errors: fewer pairs are enough if it excludes
# 1.
_STUDENT = {3: 4.30, 4: 3.18}
_SAME = 1e-3  # ratios that differ by less come from a clock that counts, or a quiet machine: further pairs add nothing
_PAIRED = 1 / 3  # share of a repeat's time per time of a pair: all pairs take twice as long as three repeats
_CLEARLY_SLOWER = 1.03  # in every pair: no further pairs are needed;
_MUCH_SLOWER = 1.1  # nor if the median pair is this much slower
_HOPELESS = 2.5  # times slower than the best: one repeat is enough
_SLOW = 1.3  # times slower than the best: two repeats are enough


def inputs_of(workload: Workload) -> list[Array]:
    """Return fixed random arrays for the parameters of a kernel, the last of which is its output."""
    generator = np.random.default_rng(0)
    limits = _index_limits(workload.function)
    return [_array(workload, parameter, generator, limits) for parameter in workload.function.params]


def _index_limits(function: PrimFunc) -> dict[str, int]:
    """Return buffer -> exclusive upper limit of its values, for buffers that hold the indices of a gather."""
    shapes = {str(buffer.name): [int(extent) for extent in buffer.shape] for buffer in _buffers(function)}
    found: dict[str, int] = {}
    for table, between, name in _GATHER.findall(function.script(show_meta=False)):
        if table in shapes and name in shapes:
            axis = between.count(",")
            extent = min(shapes[table]) if "(" in between else shapes[table][axis]
            found[name] = min(found.get(name, extent), extent)
    return found


def _buffers(function: PrimFunc) -> list[Any]:
    return [buffer for parameter in function.params if (buffer := buffer_of(function, parameter)) is not None]


def _array(workload: Workload, parameter: Any, generator: np.random.Generator, limits: dict[str, int]) -> Array:
    buffer = buffer_of(workload.function, parameter)
    assert buffer is not None, "kernels of a network have buffer parameters only"
    shape = [int(extent) for extent in buffer.shape]
    dtype = numpy_dtype(str(buffer.dtype))
    if str(buffer.name) in limits and dtype.kind in "iu":
        return generator.integers(0, limits[str(buffer.name)], shape).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        low, high = (-128, 128) if dtype.kind == "i" else (0, 256)
        return generator.integers(low, high, shape).astype(dtype)
    return (generator.standard_normal(shape, dtype=np.float32) * 0.5).astype(dtype)


class KernelBench:
    """Measure one workload on one device. `reference` is the output of the reference kernel, computed once per
    workload.
    """

    def __init__(
        self,
        workload: Workload,
        session: DeviceSession,
        rules: MeasureRules,
        arrays: list[Array],
        reference: Array | None,
        reference_kernel: Path | None,
    ) -> None:
        self.workload, self.session, self.rules = workload, session, rules
        self._bench = session.bench(arrays)
        self._fastest: tuple[RemoteKernel, float] | None = None  # the fastest kernel measured here, and its seconds
        low = any(array.dtype.itemsize == 2 and array.dtype.kind not in "iu" for array in arrays)
        self._tolerance = _LOW_TOLERANCE if low else _TOLERANCE
        if reference is None:
            assert reference_kernel is not None
            reference = self._bench.load(reference_kernel).output()
        self.reference = reference

    def measure(self, library: Path, best_s: float = float("inf")) -> tuple[str, tuple[float, ...], str]:
        """Return (status, seconds per repeat, error). Raises DeviceLostError when the device is lost.

        A candidate that may be the fastest is timed interleaved with the fastest one, and its seconds are scaled to
        that one's: changes of the clock or of the core affect both. best_s: the best known time.
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
        found = (
            self._time_interleaved(kernel, found) if self._fastest else self._time_until_stable(kernel, found, best_s)
        )
        if self._fastest is None or median(found) < self._fastest[1]:
            self._fastest = kernel, median(found)
        return OK, tuple(found), ""

    def forget_fastest(self) -> None:
        """Drop the fastest kernel, so that the next candidate is timed at the device's current speed."""
        self._fastest = None

    def measure_alone(self, library: Path) -> tuple[float, ...]:
        """Return the seconds per repeat of a kernel at the device's current speed, empty for a wrong output."""
        kernel = self._bench.load(library)
        return () if self._difference(kernel.output()) else tuple(self._time_until_stable(kernel, []))

    def measure_beside(
        self, library: Path, known: KernelBench, known_library: Path
    ) -> tuple[str, tuple[float, ...], str, float]:
        """Time a kernel in turns with a known one. Return (status, seconds per turn, error, seconds of the known one).

        The last are such that the ratio of the medians is the median ratio of the pairs: the speed of the device may
        change between them.
        """
        kernel, other = self._bench.load(library), known._bench.load(known_library)
        wrong = self._difference(kernel.output())
        if wrong:
            return WRONG_OUTPUT, (), wrong, 0.0
        other.output()
        pairs = []
        for number in range(_PAIRS):
            if number % 2:
                ours_s, theirs_s = self._time_briefly(kernel), known._time_briefly(other)
            else:
                theirs_s, ours_s = known._time_briefly(other), self._time_briefly(kernel)
            pairs.append((ours_s, theirs_s))
        seconds = tuple(ours_s for ours_s, _ in pairs)
        return OK, seconds, "", median(seconds) / median(ours_s / theirs_s for ours_s, theirs_s in pairs)

    def _time_interleaved(self, kernel: RemoteKernel, found: list[float]) -> list[float]:
        """Return the times of a kernel relative to the fastest one's, interleaved until the pairs tell which is faster.

        found: times of the kernel alone.
        """
        assert self._fastest is not None
        fastest, fastest_s = self._fastest
        alone = median(found) / fastest_s
        ratios: list[float] = []
        for number in range(_PAIRS):
            if number % 2:  # alternate which one goes first
                ours_s, theirs_s = self._time_briefly(kernel), self._time_briefly(fastest)
            else:
                theirs_s, ours_s = self._time_briefly(fastest), self._time_briefly(kernel)
            ratios.append(ours_s / theirs_s)
            if max(alone, *ratios) - min(alone, *ratios) <= _SAME * alone or self._is_decided(ratios):
                break
        return [fastest_s * ratio for ratio in ratios]

    def _is_decided(self, ratios: list[float]) -> bool:
        """Return whether pairs tell which of two kernels is faster."""
        count = len(ratios)
        if count < self.rules.repeats:
            return False
        if min(ratios) > _CLEARLY_SLOWER or median(ratios) > _MUCH_SLOWER:
            return True
        if count in _STUDENT:
            logs = np.log(ratios)
            return bool(abs(logs.mean()) > _STUDENT[count] * logs.std(ddof=1) / math.sqrt(count))
        return count >= _AGREEING_PAIRS and (min(ratios) > 1 or max(ratios) < 1)

    def _time_until_stable(self, kernel: RemoteKernel, found: list[float], best_s: float = float("inf")) -> list[float]:
        found = found + self._time(kernel, self.rules.repeats - len(found))
        for _ in range(_MOST_ROUNDS):
            spread = (max(found) - min(found)) / 2 / median(found)
            if len(found) < 2 or spread <= _NOISE or min(found) > 1.1 * best_s:
                break
            found = found + self._time(kernel, self.rules.repeats)
        return found

    def _time(self, kernel: RemoteKernel, repeat: int) -> list[float]:
        return kernel.time(repeat, self.rules.min_repeat_ms) if repeat > 0 else []

    def _time_briefly(self, kernel: RemoteKernel) -> float:
        return kernel.time(1, _PAIRED * self.rules.min_repeat_ms)[0]

    def _difference(self, output: Array) -> str:
        """Return how an output differs from the reference, "" if it does not."""
        if self.reference.dtype.kind in "iub":
            count = int(np.count_nonzero(output != self.reference))
            return f"{count} of {output.size} values differ from the reference kernel's" if count else ""
        reference = self.reference.astype(np.float64)
        largest = max(float(np.abs(reference).max(initial=0.0)), 1e-6)
        error = float(np.abs(output.astype(np.float64) - reference).max(initial=0.0)) / largest
        if error <= self._tolerance:  # false for NaN
            return ""
        return f"relative error {error:.2g} against the reference kernel, at most {self._tolerance:g}"
