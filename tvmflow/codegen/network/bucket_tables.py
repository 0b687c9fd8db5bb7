"""Generate the C tables of a network that is compiled for several sizes.

Each bucket has a plan of its own; all share one set of weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tvmflow.codegen.network.plan import Memory, Plan
from tvmflow.config.buckets import MAX_AXES, MAX_SIZES, Axis, Numbers, Sizes
from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT
from tvmflow.support.errors import StageError

if TYPE_CHECKING:
    from tvmflow.codegen.compile import Scheduled


@dataclass(frozen=True)
class SizedOutputs:
    """The sizes that a run chooses, and the dynamic axes of the outputs."""

    sizes: Sizes
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Bucket:
    """The network at sizes smaller than the largest. `RenameKernels` makes the kernel names unique."""

    sizes: Numbers
    scheduled: Scheduled


@dataclass(frozen=True)
class BucketPlan:
    sizes: Numbers
    plan: Plan


def share_constants(first: Plan, others: Sequence[BucketPlan]) -> list[BucketPlan]:
    """Return the plans of other buckets with constants at the offsets of equal bytes in the first or earlier plans.

    New constants follow behind them.
    """
    places: dict[bytes, int] = {}
    end = 0

    def place(plan: Plan, memory: Memory) -> int:
        nonlocal end
        digest = hashlib.sha256(plan.constants[memory.index].tobytes()).digest()
        at = places.setdefault(digest, memory.offset if plan is first else -(-end // ALIGNMENT) * ALIGNMENT)
        end = max(end, at + memory.size)
        return at

    for memory in first.memories:
        if memory.place == "constant":
            place(first, memory)
    found = []
    for other in others:
        memories = tuple(
            replace(memory, offset=place(other.plan, memory)) if memory.place == "constant" else memory
            for memory in other.plan.memories
        )
        found.append(BucketPlan(other.sizes, replace(other.plan, memories=memories)))
    return found


def size_tables(plan: Plan, sized: SizedOutputs, others: Sequence[BucketPlan]) -> list[str]:
    """Return the tables of the sizes as C; plan: of the largest bucket."""
    sizes, values = sized.sizes, [plan.values[at] for at in (*plan.inputs, *plan.outputs)]
    if len(sizes.names) > MAX_SIZES or any(len(value.shape) > MAX_AXES for value in values):
        raise StageError(
            f"{len(sizes.names)} sizes, of tensors of {max(len(v.shape) for v in values)} axes",
            f"at most {MAX_SIZES} and {MAX_AXES}",
        )
    if [other.sizes for other in others] != list(sizes.all[:-1]):
        raise StageError(f"plans for {[other.sizes for other in others]}", f"one for each of {sizes.all[:-1]}")
    axes = [*sizes.axes, *(replace(axis, tensor=axis.tensor + len(plan.inputs)) for axis in sized.axes)]
    lines = [f"extern const plan_tables plan{at};" for at in range(len(others))]
    for at, buckets in enumerate(sizes.buckets):
        lines.append(f"static const int64_t buckets{at}[] = {{{', '.join(map(str, buckets))}}};")
    for at, bucket in enumerate(sizes.all):
        lines.append(f"static const int64_t sizes{at}[] = {{{', '.join(map(str, bucket))}}};")
    for at, (place, pad) in enumerate(zip(plan.inputs, sizes.pads, strict=True)):
        element = np.asarray(pad).astype(plan.values[place].dtype).tobytes()
        lines.append(f"static const unsigned char pad{at}[] = {{{', '.join(map(str, element))}}};")
    names = ", ".join(f'{{"{name}", buckets{at}, {len(sizes.buckets[at])}}}' for at, name in enumerate(sizes.names))
    plans = [*(f"plan{at}" for at in range(len(others))), "plan"]
    return [
        *lines,
        f"static const tvmflow_size all_sizes[] = {{{names}}};",
        f"static const plan_axis axes[] = "
        f"{{{', '.join(f'{{{a.tensor}, {a.axis}, {a.size}, {a.times}, {a.plus}, {a.over}}}' for a in axes)}}};",
        f"static const plan_bucket all_buckets[] = "
        f"{{{', '.join(f'{{&{name}, sizes{at}}}' for at, name in enumerate(plans))}}};",
        f"static const unsigned char *const pads[] = {{{', '.join(f'pad{at}' for at in range(len(plan.inputs)))}}};",
        f"static const plan_sizes sizes = {{all_sizes, axes, all_buckets, pads, {len(axes)}, {len(plans)}}};",
    ]
