"""Proof that no value of a plan is written over while it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT
from tvmflow.support.errors import StageError

if TYPE_CHECKING:
    from tvmflow.codegen.network.plan import Plan


def check(plan: Plan) -> None:
    """Follow every byte of the arena through the steps. Raises StageError where one is read that was not written, or
    written over.
    """
    owner: dict[int, int] = {}  # block of ALIGNMENT bytes of the arena -> the memory whose value it holds
    for step in plan.steps:
        read = set[int]()
        for position, at in enumerate(step.arguments):
            value = plan.values[at]
            memory = plan.memories[value.memory]
            if value.offset + value.size > memory.size:
                raise StageError(f"{step.kernel} goes beyond its memory", "a value within it")
            if memory.place != "arena":
                continue
            first = memory.offset + value.offset
            blocks = range(first // ALIGNMENT, -(-(first + value.size) // ALIGNMENT))
            if position < len(step.arguments) - step.written:
                if any(owner.get(block) != value.memory for block in blocks):
                    raise StageError(
                        f"{step.kernel} reads what was not written or was written over", "memory of its own"
                    )
                read.update(blocks)
            elif read.intersection(blocks):
                raise StageError(f"{step.kernel} writes over what it reads", "memory of its own")
            else:
                owner.update(dict.fromkeys(blocks, value.memory))
