"""Fuse steps of an integer graph that the C library of `integer_matmul` computes at once.

These are a convolution with its requantization, and a residual sum. It is independent of the computation. Only values
that no other step reads or watches are fused away.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Array, Graph, Ref, Step, scalar_of
from tvmflow.ir.relax.numpy_interpreter import run_step


@dataclass(frozen=True)
class Fused(Step):
    """Several steps as one, with the name and type of the last one; `parts` in order.

    A convolution: clip(round((sums + offset) * factor) + zero), all float32 and per channel except the int32 offset;
    low and high are None if it ends before the clip. A sum: clip((a * factor[0] + b * factor[1] + offset) >> shift).
    """

    parts: tuple[Step, ...] = ()
    offset: Any = None
    factor: Any = None
    zero: float = 0.0
    shift: int = 0
    low: Any = None
    high: Any = None

    def run(self, arguments: list[Any]) -> Any:
        """Compute the steps one by one with the numpy interpreter."""
        given = dict(
            zip(
                self.refs,
                [x for x, from_ in zip(arguments, self.args, strict=True) if isinstance(from_, Ref)],
                strict=True,
            )
        )
        for part in self.parts:
            given[part.name] = run_step(part, [given[x.name] if isinstance(x, Ref) else x for x in part.args])
        return given[self.name]


def fuse_steps(graph: Graph, seen: Collection[str] = ()) -> Graph:
    """Return the graph with fused steps. seen: names of values that must be kept."""
    users = graph.users()
    found: dict[str, Fused] = {}
    gone: set[str] = set()
    steps = {step.name: step for step in graph.steps}
    hidden = {name for name, readers in users.items() if len(readers) == 1 and name not in (*seen, *graph.outputs)}

    def behind(step: Step) -> Step | None:
        return users[step.name][0] if step.name in hidden else None

    for step in graph.steps:
        one = None
        if step.op == "relax.nn.conv2d" and step.dtype == "int32":
            one = _fuse_convolution(step, behind)
        elif step.op == "relax.add" and step.dtype == "int32" and all(isinstance(x, Ref) for x in step.args):
            one = _fuse_sum(step, steps, hidden, behind)
        if one is not None:
            found[one.name] = one
            gone.update(part.name for part in one.parts[:-1])
    kept = [found.get(step.name, step) for step in graph.steps if step.name not in gone]
    return replace(graph, steps=kept)


def _fuse_convolution(step: Step, behind: Any) -> Fused | None:
    channels = step.shape[1]
    parts, at = [step], behind(step)
    offset: Array | None = np.zeros(channels, np.int32)
    if at is not None and (constant := _constant(at, "relax.add")) is not None:
        offset, parts, at = _expand_to_channels(constant, channels), [*parts, at], behind(at)
    if at is None or at.op != "relax.astype" or at.dtype != "float32":
        return None
    parts, at = [*parts, at], behind(at)
    if at is None or (constant := _constant(at, "relax.multiply")) is None:
        return None
    factor = _expand_to_channels(constant, channels)
    parts, at = [*parts, at], behind(at)
    if at is None or at.op != "relax.round" or offset is None or factor is None:
        return None
    parts, at = [*parts, at], behind(at)
    zero = 0.0
    if at is not None and (constant := _constant(at, "relax.add")) is not None and constant.size == 1:
        zero, parts, at = float(constant.reshape(-1)[0]), [*parts, at], behind(at)
    limits, more = _match_clip(at, channels, behind)
    low, high = limits
    last = (parts := [*parts, *more])[-1]
    return Fused(
        last.name,
        "fused.conv2d",
        step.args,
        step.call,
        last.shape,
        last.dtype,
        tuple(parts),
        offset,
        factor,
        zero,
        0,
        low,
        high,
    )


def _match_clip(at: Step | None, channels: int, behind: Any) -> tuple[tuple[Any, Any], list[Step]]:
    """Return the limits of each channel and the steps that clip and cast to 8 bits; (None, None) and none for other
    steps.
    """
    nothing: tuple[tuple[Any, Any], list[Step]] = (None, None), []
    if at is None:
        return nothing
    low: Array | None
    high: Array | None
    if at.op == "relax.clip":
        low, high, parts = np.full(channels, scalar_of(at.args[1])), np.full(channels, scalar_of(at.args[2])), [at]
    else:
        below, most = behind(at), _constant(at, "relax.minimum")
        least = None if below is None else _constant(below, "relax.maximum")
        if most is None or least is None:
            return nothing
        low, high, parts = _expand_to_channels(least, channels), _expand_to_channels(most, channels), [at, below]
    last = behind(parts[-1])
    if low is None or high is None or last is None or last.op != "relax.astype" or last.dtype not in ("int8", "uint8"):
        return nothing
    fits = np.iinfo(last.dtype).min <= low.min() and high.max() <= np.iinfo(last.dtype).max and (low <= high).all()
    return ((low.astype(np.float32), high.astype(np.float32)), [*parts, last]) if fits else nothing


def _fuse_sum(step: Step, steps: dict[str, Step], hidden: set[str], behind: Any) -> Fused | None:
    """Fuse astype(a) * m + astype(b) * n + offset >> shift, clipped and cast to 8 bits."""
    operands, factors, parts = [], [], []
    for argument in step.args:
        assert isinstance(argument, Ref)
        times = steps.get(argument.name)
        if (
            times is None
            or times.name not in hidden
            or (factor := _constant(times, "relax.multiply")) is None
            or factor.size != 1
        ):
            return None
        wide = steps.get(times.args[0].name) if isinstance(times.args[0], Ref) else None
        if wide is None or wide.name not in hidden or wide.op != "relax.astype" or not isinstance(wide.args[0], Ref):
            return None
        operands.append(wide.args[0])
        factors.append(int(factor.reshape(-1)[0]))
        parts += [wide, times]
    chain, constants, at = [step], [], behind(step)
    for op in ("relax.add", "relax.right_shift"):
        if at is None or (constant := _constant(at, op)) is None or constant.size != 1:
            return None
        constants.append(int(constant.reshape(-1)[0]))
        chain.append(at)
        at = behind(at)
    limits, more = _match_clip(at, 1, behind)
    if limits[0] is None:
        return None
    last = more[-1]
    return Fused(
        last.name,
        "fused.add",
        tuple(operands),
        step.call,
        last.shape,
        last.dtype,
        (*parts, *chain, *more),
        constants[0],
        tuple(factors),
        0.0,
        constants[1],
        int(limits[0][0]),
        int(limits[1][0]),
    )


def _constant(step: Step, op: str) -> Array | None:
    """Return the constant second operand of a step of this operator."""
    return step.args[1] if step.op == op and len(step.args) == 2 and isinstance(step.args[1], np.ndarray) else None


def _expand_to_channels(constant: Array, channels: int) -> Array | None:
    """Return a number, or one per channel, as (channels,); None for other shapes."""
    if (constant.size != 1 and constant.shape[1:2] != (channels,)) or constant.size not in (1, channels):
        return None
    return np.ascontiguousarray(np.broadcast_to(constant.reshape(-1), (channels,)))
