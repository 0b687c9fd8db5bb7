"""Identify the tunable kernels of a network by keys that are independent of TVM's version.

TVM's structural hash changes between releases, so that records by it would be lost with every upgrade. A key here
consists of what a kernel computes: its buffers, and for each block its name, loops and read regions.
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
from tvmflow.ir.tir.blocks import block_ref, classify_blocks, extents, new_schedule, region_buffer
from tvmflow.ir.tvm_compat import Expr, IRModule, PrimFunc, buffer_of, constant_value, shape_of, type_of

OFFLOADED = "tvmflow.offloaded"  # attribute of a kernel that a vendor's library computes: its operator, as JSON


@dataclass(frozen=True)
class Workload:
    """A kernel to tune: its key, a readable name, how often the network calls it, and its PrimFunc."""

    key: str
    name: str
    calls: int
    function: PrimFunc


def workload_key(function: PrimFunc) -> str:
    """Return 32 hex digits that are equal for kernels with equal computations and shapes."""
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


def workload_name(name_hint: str, function: PrimFunc) -> str:
    """Return a name such as `conv2d_nchwc_add_relu 1x4x8x8x16`: the operators and the output shape."""
    output = buffer_of(function, list(function.params)[-1])
    shape = [] if output is None else _sizes(output)
    stem = re.sub(r"\d+(?=_|$)", "", name_hint.removeprefix("fused_"))
    return f"{stem} {'x'.join(str(d) for d in shape)}"


def count_calls(lowered: IRModule) -> Counter[str]:
    """Return how often `main` calls each kernel, in the order of first calls."""
    calls: Counter[str] = Counter()

    def visit(expression: Expr) -> None:
        if (call := called(expression)) is not None:
            calls[call[0]] += 1

    relax.analysis.post_order_visit(lowered["main"], visit)
    return calls


def offloaded(function: Any) -> str | None:
    """Return the operator of a vendor's library that computes a kernel, None for a kernel of ours."""
    attributes = getattr(function, "attrs", None)
    return str(attributes[OFFLOADED]) if attributes is not None and OFFLOADED in attributes else None


def kernel_keys(lowered: IRModule) -> dict[str, str]:
    """Return the workload key of each kernel that `main` calls, by its name in the module."""
    return {
        name: workload_key(lowered[name]) for name in count_calls(lowered) if isinstance(lowered[name], tirx.PrimFunc)
    }


def called(expression: Expr) -> tuple[str, Any] | None:
    """Return the name and arguments of the kernel that an expression calls, None for any other expression."""
    if not isinstance(expression, relax.Call):
        return None
    if getattr(expression.op, "name", "") == "relax.call_tir":
        return str(expression.args[0].name_hint), expression.args[1].fields
    if isinstance(expression.op, tvm.ir.GlobalVar):  # after memory was allocated
        return str(expression.op.name_hint), expression.args
    return None


def anchor_extents(function: PrimFunc) -> list[int]:
    """Return the loop extents of the anchor block; empty for kernels without a single reduction."""
    schedule = new_schedule(function)
    kernel = classify_blocks(schedule)
    if kernel.anchor is None:
        return []
    return extents(schedule, schedule.get_loops(block_ref(schedule, kernel.anchor)))


def operations(function: PrimFunc) -> float:
    """Return the arithmetic operations of one call: two per step of its reductions, or one per value of its output."""
    sums = _sums(function)
    if sums is None:
        return 0.0
    steps = sum(count for count, _ in sums)
    if steps:
        return 2.0 * steps
    output = buffer_of(function, list(function.params)[-1])
    return float(math.prod(int(d) for d in output.shape)) if output is not None else 0.0


def multiplied(function: PrimFunc) -> str:
    """Return the type that determines a kernel's peak rate: of the inputs of its largest reduction, or its narrowest
    one.
    """
    _, read = max(_sums(function) or (), key=lambda found: found[0], default=(0, set[str]()))
    widest = next((dtype for dtype in ("float32", "float16", "bfloat16") if dtype in read), None)
    if widest is not None:
        return widest
    dtypes = {str(buffer.dtype) for p in function.params if (buffer := buffer_of(function, p)) is not None}
    if dtypes & {"int8", "uint8"}:
        return "int8"
    return next((dtype for dtype in ("bfloat16", "float16") if dtype in dtypes), "float32")


def _sums(function: PrimFunc) -> list[tuple[int, set[str]]] | None:
    """Return the steps of each reduction of a kernel and the types of its inputs, None if unknown."""
    try:
        schedule = new_schedule(function)
        found = []
        for name in classify_blocks(schedule).reductions:
            block = block_ref(schedule, name)
            made, *read = (
                region_buffer(region) for region in (*schedule.get(block).writes, *schedule.get(block).reads)
            )
            dtypes = {str(buffer.dtype) for buffer in read if not buffer.same_as(made)}
            found.append((math.prod(extents(schedule, schedule.get_loops(block))), dtypes))
    except (RuntimeError, ValueError, TypeError):
        return None
    return found


def constants_of(lowered: IRModule) -> dict[str, list[tuple[int, int]]]:
    """Return kernel -> elements and bytes of each constant argument in `main`; a shared constant counts for the first
    kernel.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    seen = set()

    def visit(expression: Expr) -> None:
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


def least_bytes(function: PrimFunc) -> int:
    """Return the bytes of a kernel's inputs and outputs, the least memory traffic."""
    buffers = [buffer for p in function.params if (buffer := buffer_of(function, p)) is not None]
    return sum(bytes_of(buffer.shape, buffer.dtype) for buffer in buffers)


def extract_workloads(lowered: IRModule) -> list[Workload]:
    """Return the distinct kernels of a lowered module, in the order of their first calls in `main`."""
    calls = count_calls(lowered)
    workloads: dict[str, Workload] = {}
    for name in calls:
        function = lowered[name]
        if not isinstance(function, tirx.PrimFunc) or offloaded(function):
            continue
        key = workload_key(function)
        before = workloads[key].calls if key in workloads else 0
        workloads[key] = Workload(key, workload_name(name, function), before + calls[name], function)
    return list(workloads.values())
