"""Summarize a plan for people: each call with the layers' steps that it computes, and the memory in use during it."""

from __future__ import annotations

from collections.abc import Sequence

from tvmflow.backends.plan_summary import PlannedCall, PlanSummary
from tvmflow.codegen.network.plan import Plan


def summarize_plan(plan: Plan, calls: Sequence[tuple[str, tuple[str, ...]]]) -> PlanSummary:
    """Return the summary of a plan. calls: kernel and steps of each call, in the order of the plan, which may lack some
    and have others, such as an accelerator's. A GPU's launches of a kernel follow each other.
    """
    live, planned, next_at = _live_bytes(plan), list[PlannedCall](), 0
    steps: tuple[str, ...] = ()
    for at, step in enumerate(plan.steps):
        is_next_launch = step.launch is not None and next_at > 0 and _is_of(step.kernel, calls[next_at - 1][0])
        if not is_next_launch:
            found = next((k for k in range(next_at, len(calls)) if _is_of(step.kernel, calls[k][0])), None)
            steps, next_at = ((), next_at) if found is None else (calls[found][1], found + 1)
        written = sum(plan.values[value].size for value in step.arguments[len(step.arguments) - step.written :])
        planned.append(PlannedCall(step.kernel, steps, live[at], written))
    constants = sum(memory.size for memory in plan.memories if memory.place == "constant")
    return PlanSummary(plan.arena_bytes, constants, tuple(planned))


def _is_of(step: str, kernel: str) -> bool:
    """Return whether a step of the plan is of a kernel; the names of a GPU's launches continue its name."""
    return step == kernel or step.startswith(f"{kernel}_kernel")


def _live_bytes(plan: Plan) -> list[int]:
    """Return the bytes of the arena that hold values which are still read, during each step."""
    ends: dict[int, list[int]] = {}
    for at, step in enumerate(plan.steps):
        for value in step.arguments:
            memory = plan.values[value].memory
            ends.setdefault(memory, [at, at])[1] = at
    for source, _ in plan.copies:  # at the end of the run
        ends.setdefault(plan.values[source].memory, [0, 0])[1] = len(plan.steps) - 1
    used = [0] * len(plan.steps)
    for memory, (first, last) in ends.items():
        if plan.memories[memory].place == "arena":
            for at in range(first, last + 1):
                used[at] += plan.memories[memory].size
    return used
