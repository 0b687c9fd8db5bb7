"""Prove that no value of a plan is overwritten while it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT
from tvmflow.support.errors import StageError

if TYPE_CHECKING:
    from tvmflow.codegen.network.plan import Plan


def check(plan: Plan) -> None:
    """Track every byte of the arena. Raises StageError if a step reads bytes that were not written or
    were overwritten.
    """
    owner: dict[int, int] = {}  # index of a block of ALIGNMENT bytes -> the memory that it holds
    for step in plan.steps:
        read = set[int]()
        for position, at in enumerate(step.arguments):
            value = plan.values[at]
            memory = plan.memories[value.memory]
            if value.offset + value.size > memory.size:
                raise StageError(f"{step.kernel} accesses bytes beyond its memory", "a value within it")
            if memory.place != "arena":
                continue
            first = memory.offset + value.offset
            blocks = range(first // ALIGNMENT, -(-(first + value.size) // ALIGNMENT))
            if position < len(step.arguments) - step.written:
                if any(owner.get(block) != value.memory for block in blocks):
                    raise StageError(
                        f"{step.kernel} reads bytes that were not written or were overwritten", "separate memory"
                    )
                read.update(blocks)
            elif read.intersection(blocks):
                raise StageError(f"{step.kernel} overwrites its own input", "separate memory")
            else:
                owner.update(dict.fromkeys(blocks, value.memory))
