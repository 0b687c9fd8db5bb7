"""Run a model's variants in a tool environment: its worker prepares, runs and times them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tvmflow.frontends.source_model import Array, Arrays, PreparedRun, Variant
from tvmflow.toolchain.environments import ToolProcess


def tool_variants(process: ToolProcess, names: Sequence[str], x: Array) -> tuple[Variant, ...]:
    """Return a worker's variants of these names, for a model with one input and one output."""
    return tuple(Variant(name, functools.partial(_prepare, process, name, x)) for name in names)


def _prepare(process: ToolProcess, name: str, x: Array) -> PreparedRun:
    def run() -> Arrays:
        return (process.arrays("outputs", way=name)[0][1],)

    def time_runs(count: int) -> list[float]:
        times: list[float] = process.arrays("time", way=name, count=count)[0][1].tolist()
        return times

    process.arrays("prepare", x, way=name)
    return PreparedRun(run, lambda outputs: outputs, time_runs)
