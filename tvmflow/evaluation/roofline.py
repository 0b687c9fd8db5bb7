"""Compute a network's roofline bound on this machine from measured peaks, and the share of it that is reached.

A peak is the highest rate of all threads of the target: multiply-adds in registers for each dtype of the network, with
the target's widest instructions, and repeated reads of a buffer as large as the network's constants, which caches may
hold. Operations are those of the built kernels: with Winograd, its GEMMs count, not the multiplications that it saves.
Activations are not counted as traffic, since consecutive kernels may keep them in a cache.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from tvmflow.devices.programs import run_compiler
from tvmflow.evaluation.machine_load import CpuReading, foreign_share, read_cpu
from tvmflow.ir.tir.kernel_schedules import KernelSchedule
from tvmflow.support.errors import StageError
from tvmflow.support.temporary import temporary_folder
from tvmflow.targets.resolve import ResolvedTarget

SOURCE = Path(__file__).with_name("roofline_peaks.c")
_NEEDED = {"avx2", "fma"}
_EXTENSIONS = tuple(
    """
    avx2 fma avxvnni avx512f avx512bw avx512vl avx512vnni avx512bf16 avx512fp16 amx-tile amx-int8 amx-bf16
    """.split()
)
_COMPILE = tuple("-x c -std=c11 -O3 -Wall -Wextra -Werror -fPIC -shared".split())
_MEASURE_S = 0.5
_ROUNDS = 6_000_000  # 10 ms: long compared with starting threads, short enough to be rarely preempted
_READ_BYTES = 1 << 30
_STEP = 192  # values per step of ceiling_read
_LINE = 64
_SLOW_SHARE, _NAMED = 1 / 3, 3  # of its bound, below which the kernels that lose most are named, and how many
_MOVES = ("transpose", "reshape", "concat", "strided_slice", "permute", "move_channels", "layout")
_SCHEDULES = {"default": "not tuned", "estimate": "tuned by estimates", "record": "tuned"}


@dataclass(frozen=True)
class Work:
    """The least work of one run. operations: dtype of the multiplication -> count; constant_bytes: bytes of constants
    read.
    """

    operations: Mapping[str, float]
    constant_bytes: int

    @classmethod
    def of(cls, kernels: Iterable[KernelSchedule]) -> Work:
        """Return the sum over the kernels of manifest.json."""
        operations: dict[str, float] = {}
        constants = 0
        for kernel in kernels:
            operations[kernel.dtype] = operations.get(kernel.dtype, 0.0) + kernel.operations
            constants += kernel.constant_bytes
        return cls({dtype: count for dtype, count in sorted(operations.items()) if count}, constants)


@dataclass(frozen=True)
class Ceilings:
    """operations: dtype -> operations per second; read: bytes per second of a buffer as large as the constants, None
    without constants.

    Raises StageError for an impossible rate.
    """

    operations: Mapping[str, float]
    read: float | None

    def __post_init__(self) -> None:
        for name, speed in (*self.operations.items(), *([] if self.read is None else [("reads", self.read)])):
            if not 0 < speed < math.inf:
                raise StageError(f"a ceiling of {speed} a second for {name}", "a speed")

    def least_s(self, work: Work) -> tuple[float, float]:
        """Return the least seconds of the arithmetic and of reading the constants."""
        arithmetic = sum(count / self.operations[dtype] for dtype, count in work.operations.items())
        return arithmetic, work.constant_bytes / self.read if self.read else 0.0


@dataclass(frozen=True)
class KernelBound:
    """ms: of all its calls in a run; least_ms: the larger of its arithmetic and of reading its constants. why: what
    keeps it from its bound, in words.
    """

    name: str
    ms: float
    least_ms: float
    share: float
    why: str = ""


@dataclass(frozen=True)
class Bounds:
    """operations, constant_bytes: the least work of a run. share: of the least time in the measured one, None if that
    is not a time.
    """

    operations: Mapping[str, float]
    constant_bytes: int
    ceilings: Ceilings
    arithmetic_ms: float
    memory_ms: float
    least_ms: float
    share: float | None
    kernels: tuple[KernelBound, ...] = ()
    reason: None = None

    @property
    def slowest(self) -> tuple[KernelBound, ...]:
        """Return the kernels that lose most, of a network that reaches less than a third of its bound; else none."""
        is_slow = self.share is not None and self.share < _SLOW_SHARE
        return self.kernels[:_NAMED] if is_slow else ()

    @property
    def metrics(self) -> dict[str, float]:
        numbers = {"bound_ms.arithmetic": self.arithmetic_ms, "bound_ms.memory": self.memory_ms}
        return numbers if self.share is None else numbers | {"bound_share": self.share}


@dataclass(frozen=True)
class NoBounds:
    """reason: why the peaks were not measured."""

    reason: str


def bounds_of(work: Work, ceilings: Ceilings, median_ms: float | None) -> Bounds:
    """Return the bounds of a run. median_ms: of a run, None if it is not a time; the share is then unknown.

    Raises StageError if a run was faster than its bound, since the peaks are then too low.
    """
    arithmetic_ms, memory_ms = (1e3 * seconds for seconds in ceilings.least_s(work))
    least_ms = max(arithmetic_ms, memory_ms)  # arithmetic and reads overlap
    if median_ms is not None and not 0 <= least_ms <= median_ms:
        raise StageError(
            f"a run took {median_ms:.4g} ms, less than its bound of {least_ms:.4g} ms: ceilings were not reached"
        )
    share = None if median_ms is None else least_ms / median_ms
    return Bounds(work.operations, work.constant_bytes, ceilings, arithmetic_ms, memory_ms, least_ms, share)


def kernel_bounds(
    kernels: Iterable[KernelSchedule], ceilings: Ceilings, times_ms: Mapping[str, float]
) -> tuple[KernelBound, ...]:
    """Return a row per kernel with a known time, sorted by the time lost against its bound."""
    rows = []
    for kernel in kernels:
        if took := times_ms.get(kernel.name):
            least_ms = 1e3 * max(ceilings.least_s(Work.of([kernel])))
            rows.append(KernelBound(kernel.name, took, least_ms, least_ms / took, _why_slow(kernel)))
    return tuple(sorted(rows, key=lambda row: row.least_ms - row.ms))


def _why_slow(kernel: KernelSchedule) -> str:
    """Return what limits a kernel as far as its schedule says it."""
    if kernel.schedule == "none":
        return "no schedule template takes it: a plain loop"
    if any(move in kernel.name for move in _MOVES):
        return "changes the layout"
    return f"{kernel.template}, {_SCHEDULES[kernel.schedule]}"


def measure_bounds(
    kernels: Sequence[KernelSchedule],
    target: ResolvedTarget,
    median_ms: float | None,
    times_ms: Mapping[str, float],
    max_foreign_load: float,
) -> Bounds | NoBounds:
    """Measure the peaks and return the bounds of a run, or why there are none.

    times_ms: kernel name -> time of all its calls in a run, if known.
    """
    work = Work.of(kernels)
    try:
        ceilings = measure_ceilings(target, work.operations, work.constant_bytes, max_foreign_load)
        return replace(bounds_of(work, ceilings, median_ms), kernels=kernel_bounds(kernels, ceilings, times_ms))
    except StageError as error:
        return NoBounds(error.found)


def measure_ceilings(
    target: ResolvedTarget,
    dtypes: Iterable[str],
    constant_bytes: int,
    max_foreign_load: float,
    read: Callable[[], CpuReading] = read_cpu,
) -> Ceilings:
    """Return the highest rates of the target's threads on this machine, over several tries.

    Repeats once if others used more than `max_foreign_load` of the machine. Raises StageError.
    """
    foreign = None
    with temporary_folder("ceilings") as folder:
        library = _compile_peaks(target, Path(folder))
        for _ in range(2):
            before = read()
            found = Ceilings(
                {dtype: _measure_operations(library, dtype, target.threads) for dtype in dtypes},
                _measure_reads(library, constant_bytes, target.threads) if constant_bytes else None,
            )
            foreign = foreign_share(before, read())
            if foreign is None or foreign <= max_foreign_load:
                return found
    raise StageError(f"busy machine (others {foreign:.0%}, at most {max_foreign_load:.0%})")


def _compile_peaks(target: ResolvedTarget, folder: Path) -> ctypes.CDLL:
    from tvmflow.targets.cpu_features import features_of

    features = features_of(target.mcpu, target.mtriple, target.mattr)
    if not features >= _NEEDED or not target.runs_here:
        raise StageError(f"ceilings are not measured on {target.mcpu}", "x86-64 with AVX2")
    path = folder / "ceilings.so"
    flags = (f"-m{name}" for name in _EXTENSIONS if name in features)
    run_compiler(target.compiler.line(*_COMPILE, *flags, "-o", str(path), str(SOURCE)), "the roofline benchmark")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise StageError(f"the roofline benchmark cannot be loaded: {error}") from None


def _measure_operations(library: ctypes.CDLL, dtype: str, threads: int) -> float:
    """Return operations per second; a dtype without instructions on the processor is multiplied as float32."""
    call = getattr(library, f"ceiling_{dtype}", library.ceiling_float32)
    call.restype, call.argtypes = ctypes.c_double, [ctypes.c_long]
    return _highest_rate([partial(call, _ROUNDS)] * threads)


def _measure_reads(library: ctypes.CDLL, nbytes: int, threads: int) -> float:
    """Return bytes per second; each thread reads its own part of the buffer."""
    count = math.ceil(nbytes / 4 / threads / _STEP) * _STEP
    data = np.ones(threads * count + _LINE // 4, np.float32)
    first = data.ctypes.data + -data.ctypes.data % _LINE
    call = library.ceiling_read
    call.restype, call.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    passes = math.ceil(_READ_BYTES / (4 * count * threads))
    return _highest_rate([partial(call, first + 4 * count * at, count, passes) for at in range(threads)])


def _highest_rate(calls: list[Callable[[], float]], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the highest total rate of concurrent calls, each of which returns the work that it did."""
    most, end = 0.0, clock() + _MEASURE_S
    with ThreadPoolExecutor(len(calls)) as pool:
        while clock() < end:
            begin = clock()
            done = sum(pool.map(lambda call: call(), calls))
            most = max(most, done / (clock() - begin))
    return most
