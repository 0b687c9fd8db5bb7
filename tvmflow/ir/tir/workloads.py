"""Workloads: the kernels of a network that can be tuned, named in a way that outlives a version of TVM.

TVM's structural hash changes from release to release, so a record kept under it is lost with every upgrade. Here the
key is made of what a kernel computes: buffers, and for each block its name, its loops and the regions it reads.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tir.blocks import block_ref, extents, look_at, new_schedule, region_buffer
from tvmflow.ir.tvm_compat import buffer_of, constant_value, shape_of, type_of


@dataclass(frozen=True)
class Workload:
    """One kernel to tune: its key, a name for people, how often the network calls it, and its PrimFunc."""

    key: str
    name: str
    calls: int
    function: Any


def workload_key(function: Any) -> str:
    """Return 32 hex digits that are equal for kernels that compute the same on the same shapes."""
    parts: list[str] = []
    for parameter in function.params:
        buffer = buffer_of(function, parameter)
        parts.append("scalar" if buffer is None else f"{_sizes(buffer)}:{buffer.dtype}")
    try:
        schedule = new_schedule(function)
        for block in schedule.get_child_blocks(schedule.get_sblock("root", "main")):
            node = schedule.get(block)
            loops = [(int(v.iter_type), str(v.dom.extent).removeprefix("T.int64")) for v in node.iter_vars]
            names = {str(v.var.name): f"i{index}" for index, v in enumerate(node.iter_vars)}
            regions = [_region(read, names) for read in node.reads]
            parts.append(f"{re.sub(r'_?[0-9]+$', '', node.name_hint)} {loops} {regions}")
    except (RuntimeError, ValueError, TypeError):
        parts.append(str(function))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _region(region: Any, names: dict[str, str]) -> str:
    ranges = [f"{bound.min}+{bound.extent}" for bound in region.region]
    text = f"{_sizes(region_buffer(region))}{ranges}"
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda match: names.get(match[0], match[0]), text)


def _sizes(buffer: Any) -> list[int | str]:
    return [int(extent.value) if hasattr(extent, "value") else str(extent) for extent in buffer.shape]


def workload_name(name_hint: str, function: Any) -> str:
    """Return a name like `conv2d_nchwc_add_relu 1x4x8x8x16`: what it does and the shape that it makes."""
    output = buffer_of(function, list(function.params)[-1])
    shape = [] if output is None else _sizes(output)
    stem = re.sub(r"\d+(?=_|$)", "", name_hint.removeprefix("fused_"))
    return f"{stem} {'x'.join(str(d) for d in shape)}"


def count_calls(lowered: Any) -> Counter[str]:
    """Return how often `main` calls each kernel, in the order of first calls."""
    calls: Counter[str] = Counter()

    def visit(expression: Any) -> None:
        if (call := called(expression)) is not None:
            calls[call[0]] += 1

    relax.analysis.post_order_visit(lowered["main"], visit)
    return calls


def kernel_keys(lowered: Any) -> dict[str, str]:
    """Return the workload key of each kernel that `main` calls, by its name in the module."""
    return {
        name: workload_key(lowered[name]) for name in count_calls(lowered) if isinstance(lowered[name], tirx.PrimFunc)
    }


def called(expression: Any) -> tuple[str, Any] | None:
    """Return the name of the kernel that an expression calls and what it is given, None for any other expression."""
    if not isinstance(expression, relax.Call):
        return None
    if getattr(expression.op, "name", "") == "relax.call_tir":
        return str(expression.args[0].name_hint), expression.args[1].fields
    if isinstance(expression.op, tvm.ir.GlobalVar):  # where memory is laid out already
        return str(expression.op.name_hint), expression.args
    return None


def anchor_extents(function: Any) -> list[int]:
    """Return the loop extents of the block that does the work; empty for kernels without a single reduction."""
    schedule = new_schedule(function)
    kernel = look_at(schedule)
    if kernel.anchor is None:
        return []
    return extents(schedule, schedule.get_loops(block_ref(schedule, kernel.anchor)))


def operations(function: Any) -> float:
    """Return the arithmetic operations of one call: two per step of its reductions, or one per value of its output."""
    sums = _sums(function)
    if sums is None:
        return 0.0
    steps = sum(count for count, _ in sums)
    if steps:
        return 2.0 * steps
    output = buffer_of(function, list(function.params)[-1])
    return float(math.prod(int(d) for d in output.shape)) if output is not None else 0.0


def multiplied(function: Any) -> str:
    """Return the type of a kernel that bounds how fast it multiplies: of what its largest sum reads, or the narrowest
    that it is given.
    """
    _, read = max(_sums(function) or (), key=lambda found: found[0], default=(0, set[str]()))
    widest = next((dtype for dtype in ("float32", "float16", "bfloat16") if dtype in read), None)
    if widest is not None:
        return widest
    dtypes = {str(buffer.dtype) for p in function.params if (buffer := buffer_of(function, p)) is not None}
    if dtypes & {"int8", "uint8"}:
        return "int8"
    return next((dtype for dtype in ("bfloat16", "float16") if dtype in dtypes), "float32")


def _sums(function: Any) -> list[tuple[int, set[str]]] | None:
    """Return the steps of each reduction of a kernel, and the types of what it reads beside what it makes; None where
    that cannot be told.
    """
    try:
        schedule = new_schedule(function)
        found = []
        for name in look_at(schedule).reductions:
            block = block_ref(schedule, name)
            made, *read = (
                region_buffer(region) for region in (*schedule.get(block).writes, *schedule.get(block).reads)
            )
            dtypes = {str(buffer.dtype) for buffer in read if not buffer.same_as(made)}
            found.append((math.prod(extents(schedule, schedule.get_loops(block))), dtypes))
    except (RuntimeError, ValueError, TypeError):
        return None
    return found


def constants_of(lowered: Any) -> dict[str, list[tuple[int, int]]]:
    """Return kernel -> values and bytes of each constant that its calls in `main` are given; one that several are given
    counts for the first.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    seen = set()

    def visit(expression: Any) -> None:
        if (call := called(expression)) is None:
            return
        name, arguments = call
        for given in arguments:
            if constant_value(given) is not None and given not in seen:
                seen.add(given)
                shape, dtype = shape_of(given), str(type_of(given).dtype)
                found.setdefault(name, []).append((math.prod(shape), bytes_of(shape, dtype)))

    relax.analysis.post_order_visit(lowered["main"], visit)
    return found


def least_bytes(function: Any) -> int:
    """Return the bytes of a kernel's inputs and outputs, each once: the least that memory has to move."""
    buffers = [buffer for p in function.params if (buffer := buffer_of(function, p)) is not None]
    return sum(bytes_of(buffer.shape, buffer.dtype) for buffer in buffers)


def extract_workloads(lowered: Any) -> list[Workload]:
    """Return the distinct kernels of a lowered module, in order of their keys' first call in `main`."""
    calls = count_calls(lowered)
    workloads: dict[str, Workload] = {}
    for name in calls:
        function = lowered[name]
        if not isinstance(function, tirx.PrimFunc):
            continue
        key = workload_key(function)
        before = workloads[key].calls if key in workloads else 0
        workloads[key] = Workload(key, workload_name(name, function), before + calls[name], function)
    return list(workloads.values())
