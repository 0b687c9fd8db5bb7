"""Make schedules of a product of matrices whose loops are known."""

from __future__ import annotations

from typing import Any

from tvm import te

from tvmflow.ir.tir.blocks import block_ref, new_schedule


def matmul(knobs: dict[str, int], size: int) -> Any:
    """Return the product of two square matrices, in tiles of i x j sums that take k steps at a time."""
    a, b = te.placeholder((size, size), name="a"), te.placeholder((size, size), name="b")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = new_schedule(te.create_prim_func([a, b, c]))
    loops = schedule.get_loops(block_ref(schedule, "c"))
    i, j, r = (schedule.split(loop, [None, knobs[name]]) for loop, name in zip(loops, "ijk", strict=True))
    schedule.reorder(i[0], j[0], r[0], r[1], i[1], j[1])
    schedule.parallel(i[0])
    schedule.vectorize(j[1])
    return schedule.mod["main"]
