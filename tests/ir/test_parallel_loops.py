"""Test the parallel loops of kernels in the plan."""

from __future__ import annotations

from tvm import te
from tvm.s_tir import Schedule

from tvmflow.ir.tir.loops import parallel_loops


def _schedule(rows: int, columns: int) -> Schedule:
    """Return two blocks of rows x columns, one behind the other."""
    x = te.placeholder((rows, columns), "float32", name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1, name="first")
    z = te.compute(x.shape, lambda i, j: y[j % rows, i % columns] * 2, name="second")
    return Schedule(te.create_prim_func([x, z]))


def test_loops_come_in_their_order() -> None:
    schedule = _schedule(6, 10)
    first, second = (schedule.get_loops(schedule.get_sblock(name)) for name in ("first", "second"))
    schedule.parallel(second[0])
    assert parallel_loops(schedule.mod["main"]) == (6,)
    schedule.parallel(schedule.fuse(*first))
    assert parallel_loops(schedule.mod["main"]) == (60, 6)


def test_loops_within_others_are_not_known() -> None:
    schedule = _schedule(6, 10)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("first"))[1])
    assert parallel_loops(schedule.mod["main"]) == ()


def test_loops_of_one_step_are_left_out() -> None:
    schedule = _schedule(1, 10)
    for name in ("first", "second"):
        rows, columns = schedule.get_loops(schedule.get_sblock(name))
        schedule.parallel(rows if name == "first" else columns)
    assert parallel_loops(schedule.mod["main"]) == ()  # the second lies in a loop
    schedule = _schedule(1, 10)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("first"))[0])
    schedule.parallel(schedule.fuse(*schedule.get_loops(schedule.get_sblock("second"))))
    assert parallel_loops(schedule.mod["main"]) == (10,)
