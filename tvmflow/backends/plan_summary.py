"""Define plan.json: the calls of a run in order, the steps that each computes, and the memory in use during it."""

from __future__ import annotations

from dataclasses import dataclass

PLAN_NAME = "plan.json"


@dataclass(frozen=True)
class PlannedCall:
    """A call of a kernel. steps: of the packed network, none where unknown; live_bytes: of the arena, in use during it;
    written_bytes: of its outputs.
    """

    kernel: str
    steps: tuple[str, ...]
    live_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class PlanSummary:
    """The calls of a run in order. arena_bytes: of the whole arena, gaps included."""

    arena_bytes: int
    constant_bytes: int
    calls: tuple[PlannedCall, ...]
