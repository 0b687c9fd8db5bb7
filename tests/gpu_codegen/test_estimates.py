"""Test counts of loads, stores and registers on kernels with known numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.launch_estimates import LaunchEstimate, estimate
from tests.gpu_codegen.kernels import bind_flat, new_schedule_of
from tvmflow.gpu_codegen.launches import DeviceKernel, DeviceProgram, lower_for_device
from tvmflow.support.errors import StageError

ROWS, COLUMNS, SUMMED = 8, 4, 16


def _estimated(schedule: Any, calls: int = 1) -> Any:
    import tvm

    return estimate(lower_for_device(tvm.IRModule({"k0": schedule.mod["main"]}), _target()), {"k0": calls})


def _target() -> Any:
    import tvm

    return tvm.target.Target({"kind": "opencl"}, host={"kind": "llvm"})


def _elements() -> Any:
    """A sum of two vectors of 128 values."""
    from tvm import te

    x0, x1 = (te.placeholder((128,), "float32", name=f"x{i}") for i in range(2))
    schedule = new_schedule_of(x0, x1, te.compute((128,), lambda i: x0[i] + x1[i], name="y0"))
    bind_flat(schedule, "y0", 8, lanes=4)
    return schedule


def _product() -> Any:
    """A product of matrices of float16, summed in float32."""
    from tvm import te

    x0 = te.placeholder((ROWS, SUMMED), "float16", name="x0")
    x1 = te.placeholder((SUMMED, COLUMNS), "float16", name="x1")
    k = te.reduce_axis((0, SUMMED), "k")
    y0 = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.sum(x0[i, k].astype("float32") * x1[k, j].astype("float32"), axis=k),
        name="y0",
    )
    return new_schedule_of(x0, x1, y0)


def test_elements_in_vectors() -> None:
    found = _estimated(_elements(), calls=3)
    (kernel,) = found.kernels
    assert kernel.asked_bytes == kernel.least_bytes == 3 * 128 * 4
    assert kernel.launches == (LaunchEstimate("k0_kernel", 3 * 128 * 4, 0, (4, 1, 1), (8, 1, 1)),)
    assert (found.launches, found.asked_bytes, found.least_bytes) == (3, 3 * 3 * 128 * 4, 3 * 3 * 128 * 4)
    assert kernel.launches[0].lanes_used(16) == 0.5 and kernel.launches[0].lanes_used(8) == 1.0


def test_a_sum_in_a_register_loads_its_inputs_for_each_output() -> None:
    schedule = _product()
    block = schedule.get_sblock("y0", "main")
    copy = schedule.cache_write(block, 0, "local")
    thread = bind_flat(schedule, "y0", 8, loops=schedule.get_loops(copy))
    schedule.compute_at(block, thread)
    schedule.decompose_reduction(block, schedule.get_loops(block)[-1])
    (kernel,) = _estimated(schedule).kernels
    assert kernel.asked_bytes == ROWS * COLUMNS * (SUMMED * 2 * 2 + 4)
    assert kernel.least_bytes == (ROWS + COLUMNS) * SUMMED * 2 + ROWS * COLUMNS * 4
    assert [launch.registers for launch in kernel.launches] == [1]


def test_a_sum_in_parts_moves_them_through_memory_that_the_least_leaves_out() -> None:
    parts = 4
    schedule = _product()
    block = schedule.get_sblock("y0", "main")
    outer, _ = schedule.split(schedule.get_loops(block)[-1], [parts, None])
    partial = schedule.rfactor(outer, 0)
    for one, spatial in ((partial, 3), (block, 2)):
        loops = schedule.get_loops(one)
        ordered = [loops[2], loops[0], loops[1], loops[3]] if spatial == 3 else loops
        schedule.reorder(*ordered)
        bind_flat(schedule, schedule.get(one).name_hint, 8, loops=ordered[:spatial])
        schedule.decompose_reduction(one, ordered[spatial])
    (kernel,) = _estimated(schedule).kernels
    sums, added = kernel.launches
    outputs = ROWS * COLUMNS
    # each sum is kept in memory: stored once as zero, and loaded and stored for each number that is added
    assert sums.asked_bytes == parts * outputs * 4 + outputs * SUMMED * (2 * 2 + 2 * 4)
    assert added.asked_bytes == outputs * 4 + outputs * parts * 3 * 4
    assert kernel.least_bytes == (ROWS + COLUMNS) * SUMMED * 2 + outputs * 4


def test_both_sides_of_a_condition_count() -> None:
    from tvm import te

    x0 = te.placeholder((16,), "float32", name="x0")
    padded = te.compute((18,), lambda i: te.if_then_else(te.all(i >= 1, i < 17), x0[i - 1], 0.0), name="y0")
    schedule = new_schedule_of(x0, padded)
    bind_flat(schedule, "y0", 6)
    (kernel,) = _estimated(schedule).kernels
    assert kernel.asked_bytes == (18 + 18) * 4 and kernel.least_bytes == (16 + 18) * 4


def test_a_loop_of_unknown_length_is_refused() -> None:
    import tvm
    from tvm import tirx

    program = lower_for_device(tvm.IRModule({"k0": _elements().mod["main"]}), _target())
    (launch,) = program.kernels["k0"].launches
    loop = tirx.For(tirx.Var("i", "int32"), 0, tirx.Var("n", "int32"), tirx.ForKind.SERIAL, launch.function.body)
    unknown = DeviceKernel((replace(launch, function=launch.function.with_body(loop)),), ())
    with pytest.raises(StageError, match="loop over n"):
        estimate(DeviceProgram({"k0": unknown}), {"k0": 1})
