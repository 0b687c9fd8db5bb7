"""Run a model's variants in a tool environment: its worker prepares, runs and times them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from tvmflow.frontends.source_model import Array, Arrays, PreparedRun, Variant
from tvmflow.toolchain.environments import ToolProcess

Inputs = Array | Mapping[str, Array]


def tool_variants(
    process: ToolProcess, names: Sequence[str], x: Inputs, plain: Callable[[Iterable[Array]], Arrays] = tuple
) -> tuple[Variant, ...]:
    """Return a worker's variants of these names. x: the input, or several by name; plain: makes a model's outputs of
    the worker's.
    """
    return tuple(Variant(name, functools.partial(_prepare, process, name, x, plain)) for name in names)


def _prepare(process: ToolProcess, name: str, x: Inputs, plain: Callable[[Iterable[Array]], Arrays]) -> PreparedRun:
    def run() -> Arrays:
        return plain(array for _, array in process.arrays("outputs", way=name))

    def time_runs(count: int) -> list[float]:
        times: list[float] = process.arrays("time", way=name, count=count)[0][1].tolist()
        return times

    process.arrays("prepare", x, way=name)
    return PreparedRun(run, lambda outputs: outputs, time_runs)
