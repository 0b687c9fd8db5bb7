"""The least time that a network's arithmetic and constants allow on this machine, by measured ceilings, and the share
of it that is reached.

A ceiling is the most that the target's threads do together: multiply-adds in registers of each type that the network
multiplies, by the target's widest instructions; reads of a buffer as large as the network's constants, again and again,
so that caches hold of it what they can. The arithmetic is that of the kernels as they are built: Winograd's products
count, and what they save does not. Activations are no traffic here: kernels that follow each other may leave them in a
cache.
"""

from __future__ import annotations

import ctypes
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.devices.programs import run_compiler
from tvmflow.evaluation.machine_load import CpuReading, foreign_share, read_cpu
from tvmflow.support.errors import StageError
from tvmflow.targets.resolve import ResolvedTarget

SOURCE = Path(__file__).with_name("roofline_peaks.c")
_NEEDED = {"avx2", "fma"}
_EXTENSIONS = (
    "avx2",
    "fma",
    "avxvnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vnni",
    "avx512bf16",
    "avx512fp16",
    "amx-tile",
    "amx-int8",
    "amx-bf16",
)
_COMPILE = ("-x", "c", "-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
_MEASURE_S = 0.5
_ROUNDS = 6_000_000  # 10 ms: starting threads is little beside them, and other processes seldom come in between
_READ_BYTES = 1 << 30
_STEP = 192  # values that ceiling_read takes at once
_LINE = 64


@dataclass(frozen=True)
class Work:
    """What one run does at least. operations: type that is multiplied -> how many; constant_bytes: that it reads."""

    operations: Mapping[str, float]
    constant_bytes: int

    @classmethod
    def of(cls, kernels: Iterable[Mapping[str, Any]]) -> Work:
        """Return the sum over kernels as manifest.json has them."""
        operations: dict[str, float] = {}
        constants = 0
        for kernel in kernels:
            operations[kernel["dtype"]] = operations.get(kernel["dtype"], 0.0) + kernel["operations"]
            constants += kernel["constant_bytes"]
        return cls({dtype: count for dtype, count in sorted(operations.items()) if count}, constants)


@dataclass(frozen=True)
class Ceilings:
    """operations: type -> operations a second; read: bytes a second of a buffer as large as the constants, None without
    any.

    Raises StageError for what no machine does.
    """

    operations: Mapping[str, float]
    read: float | None

    def __post_init__(self) -> None:
        for name, speed in (*self.operations.items(), *([] if self.read is None else [("reads", self.read)])):
            if not 0 < speed < math.inf:
                raise StageError(f"a ceiling of {speed} a second for {name}", "a speed")

    def least_s(self, work: Work) -> tuple[float, float]:
        """Return the seconds that the arithmetic takes at least, and those that the constants take."""
        arithmetic = sum(count / self.operations[dtype] for dtype, count in work.operations.items())
        return arithmetic, work.constant_bytes / self.read if self.read else 0.0


def bounds_of(work: Work, ceilings: Ceilings, median_ms: float | None) -> dict[str, Any]:
    """Return what the scorecard says of bounds. median_ms: of a run, None where it is no time: then no share of it is
    known.

    Raises StageError where a run was faster than its bound: then the ceilings are none.
    """
    arithmetic_ms, memory_ms = (1e3 * seconds for seconds in ceilings.least_s(work))
    least_ms = max(arithmetic_ms, memory_ms)  # a core multiplies while it reads
    if median_ms is not None and not 0 <= least_ms <= median_ms:
        raise StageError(
            f"a run took {median_ms:.4g} ms, less than its bound of {least_ms:.4g} ms: ceilings were not reached"
        )
    return {
        "operations": dict(work.operations),
        "constant_bytes": work.constant_bytes,
        "ceilings": {"operations": dict(ceilings.operations), "read": ceilings.read},
        "arithmetic_ms": arithmetic_ms,
        "memory_ms": memory_ms,
        "least_ms": least_ms,
        "share": None if median_ms is None else least_ms / median_ms,
        "reason": None,
    }


def kernel_bounds(
    kernels: Iterable[Mapping[str, Any]], ceilings: Ceilings, times_ms: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return a row per kernel whose time in a run is known, those that lose most beside the least time of their
    arithmetic first.
    """
    rows = []
    for kernel in kernels:
        if took := times_ms.get(kernel["name"]):
            least_ms = (
                1e3 * kernel["operations"] / ceilings.operations[kernel["dtype"]] if kernel["operations"] else 0.0
            )
            rows.append({"name": kernel["name"], "ms": took, "least_ms": least_ms, "share": least_ms / took})
    return sorted(rows, key=lambda row: row["least_ms"] - row["ms"])


def measure_bounds(
    kernels: Sequence[Mapping[str, Any]],
    target: ResolvedTarget,
    median_ms: float | None,
    times_ms: Mapping[str, float],
    max_foreign_load: float,
) -> dict[str, Any]:
    """Measure the ceilings and return what the scorecard says of bounds; only the reason where there can be none.

    times_ms: what all calls of a kernel in a run take, by its name, of those that are known.
    """
    work = Work.of(kernels)
    try:
        ceilings = measure_ceilings(target, work.operations, work.constant_bytes, max_foreign_load)
        return bounds_of(work, ceilings, median_ms) | {"kernels": kernel_bounds(kernels, ceilings, times_ms)}
    except StageError as error:
        return {"reason": error.found}


def measure_ceilings(
    target: ResolvedTarget,
    dtypes: Iterable[str],
    constant_bytes: int,
    max_foreign_load: float,
    read: Callable[[], CpuReading] = read_cpu,
) -> Ceilings:
    """Return the most that the target's threads reach on this machine in several tries.

    Where others took more than `max_foreign_load` of it meanwhile, it is tried once more. Raises StageError.
    """
    foreign = None
    with tempfile.TemporaryDirectory(prefix="tvmflow-ceilings-") as folder:
        library = _compiled(target, Path(folder))
        for _ in range(2):
            before = read()
            found = Ceilings(
                {dtype: _operations(library, dtype, target.threads) for dtype in dtypes},
                _reads(library, constant_bytes, target.threads) if constant_bytes else None,
            )
            foreign = foreign_share(before, read())
            if foreign is None or foreign <= max_foreign_load:
                return found
    raise StageError(f"busy machine (others {foreign:.0%}, at most {max_foreign_load:.0%})")


def _compiled(target: ResolvedTarget, folder: Path) -> ctypes.CDLL:
    from tvmflow.targets.cpu_features import features_of

    features = features_of(target.mcpu, target.mtriple, target.mattr)
    if not features >= _NEEDED or not target.runs_here:
        raise StageError(f"ceilings are not measured on {target.mcpu}", "x86-64 with AVX2")
    path = folder / "ceilings.so"
    flags = (f"-m{name}" for name in _EXTENSIONS if name in features)
    run_compiler(target.compiler.line(*_COMPILE, *flags, "-o", str(path), str(SOURCE)), "what measures ceilings")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise StageError(f"what measures ceilings cannot be loaded: {error}") from None


def _operations(library: ctypes.CDLL, dtype: str, threads: int) -> float:
    """Return operations a second; a type that the processor has no instruction for is multiplied as float32."""
    call = getattr(library, f"ceiling_{dtype}", library.ceiling_float32)
    call.restype, call.argtypes = ctypes.c_double, [ctypes.c_long]
    return _most([partial(call, _ROUNDS)] * threads)


def _reads(library: ctypes.CDLL, nbytes: int, threads: int) -> float:
    """Return bytes a second; each thread reads its own part of the buffer."""
    count = math.ceil(nbytes / 4 / threads / _STEP) * _STEP
    data = np.ones(threads * count + _LINE // 4, np.float32)
    first = data.ctypes.data + -data.ctypes.data % _LINE
    call = library.ceiling_read
    call.restype, call.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    passes = math.ceil(_READ_BYTES / (4 * count * threads))
    return _most([partial(call, first + 4 * count * at, count, passes) for at in range(threads)])


def _most(calls: list[Callable[[], float]], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the most that calls beside each other do in a second, by what they say to have done."""
    most, end = 0.0, clock() + _MEASURE_S
    with ThreadPoolExecutor(len(calls)) as pool:
        while clock() < end:
            begin = clock()
            done = sum(pool.map(lambda call: call(), calls))
            most = max(most, done / (clock() - begin))
    return most
