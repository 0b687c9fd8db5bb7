"""Test roofline bounds: operations and bytes counted by hand, peaks, shares, and refusals, independent of machine
speed.
"""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tasks import evaluate
from tests.conftest import REPOSITORY
from tests.differential.test_attention import Case, imported
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.config.params import load_params
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation import roofline as bounds
from tvmflow.evaluation.machine_load import CpuReading
from tvmflow.evaluation.roofline import Ceilings, NoBounds, Work, bounds_of, measure_bounds, measure_ceilings
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.tir.kernel_schedules import KernelSchedule
from tvmflow.ir.tir.workloads import extract_workloads, multiplied, operations
from tvmflow.report.tables import shown_bound, shown_slowest
from tvmflow.support.errors import StageError
from tvmflow.targets.resolve import ResolvedTarget, host_target

BACKEND = CpuBackend(host_target())
WORK = Work({"float32": 2e9, "int8": 1e9}, 10**8)
CEILINGS = Ceilings({"float32": 1e12, "int8": 4e12}, 4e10)
FLAGS = Path("/proc/cpuinfo").read_text(encoding="utf-8").split() if Path("/proc/cpuinfo").exists() else []
HAS_AVX2 = pytest.mark.skipif("avx2" not in FLAGS, reason="needs AVX2")


def _matmul(shape: tuple[int, int], columns: int, dtype: str, out: str) -> Any:
    weight = constant(np.ones((shape[1], columns), np.int8).astype(dtype), dtype)
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, weight, out_dtype=out))
        builder.emit_func_output(result)
    return builder.get()


def test_operations_and_constants_are_those_that_a_run_needs() -> None:
    """Five rows of a table of a thousand are looked up, and multiplied twice by one matrix."""
    table, weight = (constant(np.ones((rows, 16), np.float32), "float32") for rows in (1000, 16))
    ids = relax.Var("ids", relax.TensorType((5,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [ids]):
        with builder.dataflow():
            rows = builder.emit(relax.op.take(table, ids, axis=0))
            once = builder.emit(relax.op.matmul(rows, weight))
            twice = builder.emit_output(relax.op.matmul(once, weight))
        builder.emit_func_output(twice)
    kernels = build_scheduled(builder.get(), BACKEND, {}).kernels
    assert Work.of(kernels) == Work({"float32": 5 * 16 + 2 * (2 * 5 * 16 * 16)}, 4 * 5 * 16 + 4 * 16 * 16)


@pytest.mark.parametrize(
    ("dtype", "out", "counted"),
    [
        ("float32", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "float16", "float16"),
        ("int8", "int32", "int8"),
    ],
)
def test_a_kernel_counts_for_the_type_that_it_multiplies(dtype: str, out: str, counted: str) -> None:
    (workload,) = extract_workloads(lower(_matmul((3, 8), 4, dtype, out), BACKEND))
    assert multiplied(workload.function) == counted and operations(workload.function) == 2 * 3 * 8 * 4


def test_all_products_of_attention_count() -> None:
    """2 heads, 7 queries, 50 keys in blocks of 16, 32 channels: Q·K^T, the maximum and the total of each row, ·V."""
    backend = CpuBackend(ResolvedTarget("llvm", "znver4", "x86_64-linux-gnu", (), 2, "g++"))
    lowered = lower(backend.pack(imported(Case(1, 2, 7, 50, 32, "", False))[0], None)[0], backend)
    (attention,) = (w for w in extract_workloads(lowered) if "attention" in w.name)
    rows = 2 * 7
    assert operations(attention.function) == 2 * rows * (64 * 32 + 2 * (64 + 16) + 32 * 50)


def test_the_least_time_is_the_larger_of_arithmetic_and_memory() -> None:
    found = bounds_of(WORK, CEILINGS, 5.0)
    assert found.arithmetic_ms == pytest.approx(2.25) and found.memory_ms == pytest.approx(2.5)
    assert found.least_ms == found.memory_ms and found.share == pytest.approx(0.5)
    assert found.metrics == {
        "bound_ms.arithmetic": found.arithmetic_ms,
        "bound_ms.memory": found.memory_ms,
        "bound_share": found.share,
    }
    assert shown_bound(found) == "2.5 ms (50% reached)"
    without = bounds_of(replace(WORK, constant_bytes=0), replace(CEILINGS, read=None), 4.5)
    assert (without.memory_ms, without.share) == (0, pytest.approx(0.5))


def test_kernels_that_lose_most_come_first() -> None:
    """2e9 operations at 1e12 a second are 2 ms, 4e9 at 4e12 are 1 ms, 2e7 bytes at 4e10 are 0.5 ms; one that computes
    and reads nothing has no least time, and one without a time no row.
    """
    kernels = [
        KernelSchedule(name, "", schedule, "any", operations, dtype, constants)
        for name, operations, dtype, schedule, constants in (
            ("near", 2e9, "float32", "record", 8),
            ("far", 4e9, "int8", "default", 0),
            ("transpose", 0.0, "bfloat16", "default", 0),
            ("scan", 0.0, "float32", "none", 0),
            ("one pixel", 1e8, "float32", "default", 2 * 10**7),
            ("unseen", 1.0, "float32", "default", 0),
        )
    ]
    times = {"near": 2.5, "far": 4.0, "transpose": 0.75, "scan": 0.6, "one pixel": 0.8, "another": 1.0}
    rows = bounds.kernel_bounds(kernels, CEILINGS, times)
    assert [astuple(row) for row in rows] == [
        ("far", 4.0, pytest.approx(1.0), pytest.approx(0.25), "any, not tuned"),
        ("transpose", 0.75, 0.0, 0.0, "changes the layout"),
        ("scan", 0.6, 0.0, 0.0, "no schedule template takes it: a plain loop"),
        ("near", 2.5, pytest.approx(2.0), pytest.approx(0.8), "any, tuned"),
        ("one pixel", 0.8, pytest.approx(0.5), pytest.approx(0.625), "any, not tuned"),
    ]
    slow, fast = (replace(bounds_of(WORK, CEILINGS, ms), kernels=rows) for ms in (8.0, 5.0))
    assert slow.slowest == rows[:3] and not fast.slowest and not replace(slow, share=None).slowest
    assert shown_slowest(slow).startswith(
        "far 4 ms (25% of its bound; any, not tuned), transpose"
    ) and not shown_slowest(fast)


def test_an_unsteady_latency_has_no_share() -> None:
    found = bounds_of(WORK, CEILINGS, None)
    assert found.share is None and set(found.metrics) == {"bound_ms.arithmetic", "bound_ms.memory"}
    assert shown_bound(found) == "2.5 ms"


@pytest.mark.parametrize("speed", [0.0, -1e9, float("inf"), float("nan")])
def test_ceilings_that_no_machine_has_are_refused(speed: float) -> None:
    with pytest.raises(StageError, match="a ceiling of"):
        Ceilings({"float32": speed}, 1e10)
    with pytest.raises(StageError, match="a second for reads"):
        Ceilings({"float32": 1e12}, speed)


def test_a_run_below_its_bound_says_that_the_ceilings_are_none() -> None:
    with pytest.raises(StageError, match=r"a run took 2\.4 ms, less than its bound of 2\.5 ms"):
        bounds_of(WORK, CEILINGS, 2.4)


@HAS_AVX2
def test_a_busy_machine_has_no_ceilings() -> None:
    clock = {"now": 0.0}

    def read(busy: float) -> CpuReading:
        clock["now"] += 1.0
        return CpuReading(clock["now"], busy * clock["now"] * 1e3, {})

    with pytest.raises(StageError, match=r"busy machine \(others 100%, at most 10%\)"):
        measure_ceilings(host_target(), (), 0, 0.1, lambda: read(1.0))
    assert clock["now"] == 4  # tried once more
    assert measure_ceilings(host_target(), (), 0, 0.1, lambda: read(0.0)) == Ceilings({}, None)


def test_a_processor_without_ceilings_says_so() -> None:
    found = measure_bounds([], ResolvedTarget("llvm", "cortex-a72", "aarch64-linux-gnu", (), 2, "g++"), 1.0, {}, 0.1)
    assert found == NoBounds("ceilings are not measured on cortex-a72")
    assert shown_bound(found) == found.reason and shown_bound(None) == "-"


def test_only_this_machines_processor_has_bounds() -> None:
    workspace = Workspace(REPOSITORY, load_params(REPOSITORY / "params.yaml"))
    here, board, accelerator = (
        evaluate.STAGE.settings(workspace, workspace.params.cell(f"digits_torch@{name}"))
        for name in ("local-cpu:float32", "rk3399:float32", "vta-sim:vta_int8")
    )
    assert evaluate.has_bounds(here) and not evaluate.has_bounds(replace(here, emulated=True))
    assert not evaluate.has_bounds(board) and not evaluate.has_bounds(accelerator)


@HAS_AVX2
@pytest.mark.parametrize(
    ("mcpu", "needs", "each"),
    [
        ("x86-64-v3", "avx2", {"float32": 2 * 8, "bfloat16": 2 * 8, "int8": 2 * 16}),
        ("alderlake", "avx_vnni", {"float32": 2 * 8, "int8": 2 * 32}),
        ("znver4", "avx512_bf16", {"float32": 2 * 16, "float16": 2 * 16, "bfloat16": 2 * 32, "int8": 2 * 64}),
    ],
)
def test_ceilings_count_what_instructions_do(mcpu: str, needs: str, each: dict[str, int], tmp_path: Path) -> None:
    if needs not in FLAGS:
        pytest.skip(f"needs {needs}")
    library = bounds._compile_peaks(replace(host_target(), mcpu=mcpu, mattr=()), tmp_path)
    for dtype, count in each.items():
        call = getattr(library, f"ceiling_{dtype}", library.ceiling_float32)
        call.restype, call.argtypes = ctypes.c_double, [ctypes.c_long]
        assert call(7) == 7 * 12 * count, dtype
    data = np.ones(3 * bounds._STEP + 16, np.float32)
    read = library.ceiling_read
    read.restype, read.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    assert read(data.ctypes.data + -data.ctypes.data % 64, 3 * bounds._STEP, 5) == 4 * 3 * bounds._STEP * 5


@pytest.mark.skipif("avx512_bf16" not in FLAGS, reason="vectors beside the tiles need AVX-512 with bfloat16")
def test_tiles_count_what_they_multiply(tmp_path: Path) -> None:
    """By the emulator of tiles where the processor has none, which refuses registers of other shapes."""
    source = REPOSITORY / "tests" / "differential" / "amx_emulator.c"
    subprocess.run(["gcc", "-O3", "-shared", "-fPIC", "-o", str(tmp_path / "emulator.so"), str(source)], check=True)
    emulator = ctypes.CDLL(str(tmp_path / "emulator.so"))
    target = replace(host_target(), mattr=("+amx-tile", "+amx-int8", "+amx-bf16"))
    library = bounds._compile_peaks(target, tmp_path)
    emulator.amx_install()
    try:
        for dtype, each in (("int8", 2 * 16 * 16 * 64), ("bfloat16", 2 * 16 * 16 * 32)):
            call = getattr(library, f"ceiling_{dtype}")
            call.restype, call.argtypes = ctypes.c_double, [ctypes.c_long]
            done, executed = zip(*(_of(call, emulator, rounds) for rounds in (16, 48)), strict=True)
            assert done[0] == 6 * each and done[1] == 3 * 6 * each
            assert executed[1] - executed[0] == 2 * 6 or "amx_tile" in FLAGS
    finally:
        emulator.amx_remove()


def _of(call: Any, emulator: Any, rounds: int) -> tuple[float, int]:
    before = emulator.amx_executed()
    return call(rounds), emulator.amx_executed() - before


def test_calls_beside_each_other_count_together() -> None:
    """Two tries within half a second are measured, of which the quicker counts; the clock is our own."""
    ticks = iter([0.0, 0.1, 0.1, 0.5, 0.45, 0.45, 0.65, 0.65])
    assert bounds._highest_rate([lambda: 30.0, lambda: 20.0], lambda: next(ticks)) == pytest.approx(50.0 / 0.2)
