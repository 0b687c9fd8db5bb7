"""Kernels without a reduction, or with several (softmax): every element-wise block over threads and in vectors."""

from __future__ import annotations

from typing import Any

from tvmflow.kernels.blocks import Kernel, block_ref, extents
from tvmflow.targets.cpu_features import CpuFeatures
from tvmflow.templates.primitives import (
    SPREAD_LANES,
    Knobs,
    Template,
    divisors,
    merge_epilogue,
    parallel_first,
    spread,
    work_of,
)  # fmt: skip

_PACKED_AXES = 5  # (n, c, h, w, lane)
_FEW = 4  # values of a last axis that is too short for a vector: the axis before it goes into one


def _candidates(schedule: Any, kernel: Kernel, _cpu: CpuFeatures) -> list[Knobs]:
    work = max((work_of(schedule, name) for name in kernel.after), default=0) * len(kernel.after)
    order = parallel_first(work)
    if kernel.reductions or not kernel.after:
        return [{"parallel": parallel, "rows": 0, "rows_first": 0} for parallel in order]
    sizes = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.after[-1])))
    ways = [(0, 0)] if len(sizes) < 3 else [(1, 0), (0, 0)] if sizes[-1] <= _FEW else [(0, 0), (1, 0)]
    if len(sizes) == _PACKED_AXES and sizes[1] > 1:
        ways.append((1, 1))
    return [{"parallel": parallel, "rows": rows, "rows_first": first} for rows, first in ways for parallel in order]


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    if not kernel.reductions:
        last = merge_epilogue(schedule, kernel)
        if last is not None:
            if knobs["rows"]:
                _by_rows(schedule, last, knobs)
            else:
                spread(schedule, last, knobs["parallel"])
        return
    for name in kernel.after:
        if name not in kernel.reductions:
            spread(schedule, name, knobs["parallel"])


def _by_rows(schedule: Any, name: str, knobs: Knobs) -> None:
    """Keep the last axes apart, so that indices of a padding or a change of layout stay simple within a vector.

    rows_first: of packed channels, rows of the image go to threads, as convolutions give them.
    """
    *outer, row, last = schedule.get_loops(block_ref(schedule, name))
    if knobs["rows_first"]:
        batch, channels, height = outer
        schedule.reorder(batch, height, channels)
        outer = [batch, height, channels]
    inner: list[Any] = []
    if extents(schedule, [last])[0] <= _FEW:
        inner, last = [last], row
    else:
        outer.append(row)
    left, lanes = schedule.split(last, [None, max(divisors(extents(schedule, [last])[0], SPREAD_LANES))])
    schedule.reorder(*outer, left, *inner, lanes)
    for axis in inner:
        schedule.unroll(axis)
    schedule.vectorize(lanes)
    rows = schedule.fuse(*outer)
    if knobs["parallel"]:
        schedule.parallel(rows)


ELEMENTWISE = Template("elementwise", lambda _schedule, _kernel: True, _candidates, _apply)
