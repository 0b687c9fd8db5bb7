"""Ways to run a model in a tool environment: its worker prepares, runs and times it; only the seconds come back."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tvmflow.frontends.source_model import Array, Arrays, PreparedRun, Variant
from tvmflow.toolchain.environments import ToolProcess


def tool_variants(process: ToolProcess, names: Sequence[str], x: Array) -> tuple[Variant, ...]:
    """Return those ways that a worker knows by these names, of a model with one input and one output."""
    return tuple(Variant(name, functools.partial(_prepared, process, name, x)) for name in names)


def _prepared(process: ToolProcess, name: str, x: Array) -> PreparedRun:
    def run() -> Arrays:
        return (process.arrays("outputs", way=name)[0][1],)

    def time_runs(count: int) -> list[float]:
        times: list[float] = process.arrays("time", way=name, count=count)[0][1].tolist()
        return times

    process.arrays("prepare", x, way=name)
    return PreparedRun(run, lambda outputs: outputs, time_runs)
