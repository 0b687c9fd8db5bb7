"""Share reductions among the threads of a workgroup: one launch for few outputs of long sums.

Each row is a workgroup. Each thread sums a part, and all of them get the total by TVM's reductions over threads, which
GLSL has for subgroups of any size (`tvmflow/gpu_codegen/glsl.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, axes, block_ref, extents
from tvmflow.schedules.cpu.norm import norm_blocks
from tvmflow.schedules.template import divisors, unroll_loops
from tvmflow.targets.gpu_features import GpuFeatures

_LANES = 4
_MOST_GROUPS = 65535  # workgroups along an axis that every device supports
_LEAST_SUMS = 64  # numbers of a workgroup; with fewer it costs more than it saves
_LEAST_ROUNDS = 8  # numbers of a thread (twice as many vectors) above which it pays even if workgroups fill the GPU
_MOST_OUTPUTS = 32  # outputs of a thread, or twice as many as it sums; more take another launch
_SUBGROUPS = (1, 4)  # subgroups of a workgroup
_NORM = "packed_norm"  # block of norms on packed channels, `tvmflow/passes/layout/norm.py`
_OPERATIONS = ("Add", "Max", "Min")
_DTYPES = ("float32", "float16", "int32")


@dataclass(frozen=True)
class _Rows:
    """The rows of a kernel, each of which is a workgroup.

    shared: number of leading axes that all blocks share; is_vector: whether the last axis is a vector of four; outputs:
    of a row, in vectors if is_vector; sums: the shortest reduction; once: whether separate threads would read no common
    or no contiguous data.
    """

    shared: int
    groups: int
    is_vector: bool
    outputs: int
    sums: int
    once: bool


def threads_to_try(schedule: Any, kernel: Kernel, gpu: GpuFeatures) -> list[int]:
    """Return how many threads may share a sum, the most promising first; none if outputs are many or sums short."""
    if not gpu.subgroups or not kernel.reductions:
        return []
    if _NORM in kernel.after:
        batch, blocks, height, width, _ = extents(schedule, schedule.get_loops(block_ref(schedule, _NORM)))
        threads = max(divisors(blocks, gpu.subgroups))
        return [threads] if threads > gpu.subgroups // 2 and batch * height * width <= _MOST_GROUPS else []
    return [
        one
        for one in (gpu.subgroups * count for count in _SUBGROUPS)
        if _pays(_find_rows(schedule, kernel, one)[0], one, gpu)
    ]


def _pays(rows: _Rows | None, threads: int, gpu: GpuFeatures) -> bool:
    if rows is None or rows.groups > _MOST_GROUPS or rows.sums < threads:
        return False
    if rows.sums * (_LANES if rows.is_vector else 1) < _LEAST_SUMS:
        return False
    rounds = _LEAST_ROUNDS * (2 if rows.is_vector else 1)
    return rows.groups * threads <= gpu.threads or (rows.once and rows.sums >= rounds * threads)


def _find_rows(schedule: Any, kernel: Kernel, threads: int) -> tuple[_Rows | None, bool]:
    """Return the rows of a kernel, and whether its last block takes a separate launch; None if subgroups cannot sum
    them.
    """
    rows = _match_rows(schedule, kernel, _last_block(kernel))
    if len(kernel.reductions) > 1 or _last_block(kernel) in kernel.reductions:
        return rows, False
    if rows is not None and rows.outputs <= max(2 * rows.sums, _MOST_OUTPUTS * threads):
        return rows, False
    return _match_rows(schedule, kernel, kernel.reductions[0]), True


def _match_rows(schedule: Any, kernel: Kernel, last: str) -> _Rows | None:
    outputs, sums, is_row = [], [], True
    for name in kernel.reductions:
        shape, block = axes(schedule, name), schedule.get(block_ref(schedule, name))
        if shape is None or not _is_supported_reduction(block):
            return None
        sizes = extents(schedule, shape[0])
        outputs.append(sizes[: shape[1]])
        sums.append(math.prod(sizes[shape[1] :]))
        is_row &= _sums_along_rows(block)
    last_sizes = (
        outputs[-1] if last in kernel.reductions else extents(schedule, schedule.get_loops(block_ref(schedule, last)))
    )
    all_of = [*outputs, last_sizes]
    is_vector = len(outputs) == 1 and all(len(one) > 1 and one[-1] == _LANES for one in all_of)
    most = min(map(len, all_of)) - is_vector
    shared = next((at for at in range(most) if len({one[at] for one in all_of}) > 1), most)
    if any(math.prod(one[shared:]) != (_LANES if is_vector else 1) for one in outputs):
        return None
    once = math.prod(outputs[0][2:-1]) == 1 if is_vector else is_row
    vectors = math.prod(last_sizes[shared:]) // (_LANES if is_vector else 1)
    return _Rows(shared, math.prod(outputs[0][:shared]), is_vector, vectors, min(sums), once)


def _is_supported_reduction(block: Any) -> bool:
    value: Any = getattr(block.body, "value", None)
    return type(value).__name__ in _OPERATIONS and str(value.ty.dtype) in _DTYPES


def _sums_along_rows(block: Any) -> bool:
    """Whether a single tensor is summed along its last axis; in a matmul other rows read the same data."""
    summed = [axis.var for axis in block.iter_vars if int(axis.iter_type) != 0]
    found = [[any(axis.min.same_as(one) for one in summed) for axis in read.region] for read in block.reads]
    of_sums = [axes_of for axes_of in found if any(axes_of)]
    return len(of_sums) == 1 and of_sums[0][-1]


def share_sums(schedule: Any, kernel: Kernel, threads: int) -> list[str]:
    """Schedule a kernel so that threads of a workgroup share its sums; return the blocks left for a separate launch, at
    most one.

    Raises ScheduleError or ValueError if other blocks cannot be inlined.
    """
    if _NORM in kernel.after:
        _share_norm(schedule, kernel, threads)
        return []
    rows, apart = _find_rows(schedule, kernel, threads)
    if rows is None:
        raise ValueError("the outputs are not rows of the reductions")
    last = _last_block(kernel)
    for name in (*kernel.before, *kernel.after):
        if name != last and name not in kernel.reductions:
            schedule.compute_inline(block_ref(schedule, name))
    final, summed = block_ref(schedule, last), block_ref(schedule, kernel.reductions[-1])
    if apart or last in kernel.reductions:
        final = schedule.cache_write(summed, 0, "local")
    else:
        schedule.set_scope(summed, 0, "local")
    if rows.is_vector:
        group = _share_vectors(schedule, kernel.reductions[0], rows, threads)
        schedule.reverse_compute_at(final, group, preserve_unit_loops=True)
        _distribute_outputs(schedule, final, rows, threads)
        return [last] if apart else []
    loops = list(schedule.get_loops(final))
    group = schedule.fuse(*loops[: rows.shared]) if rows.shared else schedule.add_unit_loop(loops[0])
    schedule.bind(group, "blockIdx.x")
    _distribute_outputs(schedule, final, rows, threads)
    for name in reversed(kernel.reductions):
        _share_numbers(schedule, name, group, threads)
    return [last] if apart else []


def _last_block(kernel: Kernel) -> str:
    return kernel.after[-1] if kernel.after else kernel.reductions[-1]


def _split_over_threads(schedule: Any, loops: list[Any], threads: int) -> Any:
    """Fuse loops and split them over the threads of a workgroup; return the loop over threads."""
    return schedule.split(schedule.fuse(*loops) if len(loops) > 1 else loops[0], [None, threads])[1]


def _share_numbers(schedule: Any, name: str, group: Any, threads: int) -> None:
    block = block_ref(schedule, name)
    schedule.set_scope(block, 0, "local")
    loops, spatial = axes(schedule, name) or ([], 0)
    schedule.compute_at(block, group, preserve_unit_loops=True)
    schedule.bind(
        _split_over_threads(schedule, list(schedule.get_loops(block))[spatial - len(loops) :], threads), "threadIdx.x"
    )


def _share_vectors(schedule: Any, name: str, rows: _Rows, threads: int) -> Any:
    """Sum a share of a vector in each thread, then reduce over threads; return the loop over workgroups."""
    block = block_ref(schedule, name)
    loops, spatial = axes(schedule, name) or ([], 0)
    part = schedule.rfactor(_split_over_threads(schedule, loops[spatial:], threads), 0)
    schedule.set_scope(part, 0, "local")
    loops = list(schedule.get_loops(part))
    *units, lanes, outer, thread = loops[rows.shared :]
    group = schedule.fuse(*loops[: rows.shared]) if rows.shared else schedule.add_unit_loop(loops[0])
    schedule.reorder(thread, *units, outer, lanes)
    schedule.bind(group, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(lanes)
    schedule.decompose_reduction(part, outer)
    schedule.reverse_compute_at(block, group, preserve_unit_loops=True)
    thread, *inner = list(schedule.get_loops(block))[1:]
    schedule.reorder(*inner, thread)
    schedule.bind(thread, "threadIdx.x")
    unroll_loops(schedule, *inner)
    return group


def _distribute_outputs(schedule: Any, block: Any, rows: _Rows, threads: int) -> None:
    """Distribute the rest of a row of outputs over the threads of its workgroup."""
    inner = list(schedule.get_loops(block))[1:]
    lanes = inner.pop() if rows.is_vector else None
    if not inner:
        inner = [schedule.add_unit_loop(block if lanes is None else lanes)]
    schedule.bind(_split_over_threads(schedule, inner, threads), "threadIdx.x")
    if lanes is not None:
        schedule.vectorize(lanes)


def _share_norm(schedule: Any, kernel: Kernel, threads: int) -> None:
    """Schedule a norm on packed channels: a pixel for each workgroup, an equal number of blocks of channels for each
    thread.
    """
    after = kernel.after[kernel.after.index(_NORM) :]
    for name in after[:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    batch, blocks, row, column, lanes = schedule.get_loops(block_ref(schedule, after[-1]))
    schedule.reorder(batch, row, column, blocks, lanes)
    group = schedule.fuse(batch, row, column)
    schedule.bind(group, "blockIdx.x")
    schedule.bind(_split_over_threads(schedule, [blocks], threads), "threadIdx.x")
    schedule.vectorize(lanes)
    for name in norm_blocks(kernel):
        block = block_ref(schedule, f"{_NORM}_{name}")
        schedule.set_scope(block, 0, "local")
        part = None
        if name.endswith("of_lane"):
            part = schedule.rfactor(_split_over_threads(schedule, schedule.get_loops(block)[-1:], threads), 0)
            schedule.set_scope(part, 0, "local")
        schedule.compute_at(block, group, preserve_unit_loops=True)
        if part is None:
            continue
        thread, *inner = list(schedule.get_loops(block))[1:]
        schedule.reorder(*inner, thread)
        schedule.bind(thread, "threadIdx.x")
        schedule.unroll(inner[-1])
        schedule.compute_at(part, group, preserve_unit_loops=True)
        thread, *pixel, lanes, over = list(schedule.get_loops(part))[1:]
        schedule.reorder(thread, *pixel, over, lanes)
        schedule.bind(thread, "threadIdx.x")
        schedule.vectorize(lanes)
        schedule.decompose_reduction(part, over)
