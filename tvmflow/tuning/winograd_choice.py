"""Which convolutions to compute by Winograd's algorithm: decided by measurement, for each shape, after tuning both
ways.

First by the kernels alone, then in the whole network: transformed weights are up to four times as large, and a kernel
that is measured alone finds them in its cache, where in a network they have to come from memory. Where nothing is
measured, by counting multiplications, on processors where that was seen to be faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmflow.backends.backend import Backend
from tvmflow.codegen.lower import lower
from tvmflow.ir.tir.workloads import Workload, extract_workloads
from tvmflow.ir.tvm_compat import constant_value
from tvmflow.passes.legalize.convolutions import convolution_key, convolutions
from tvmflow.passes.legalize.winograd import TILES, tiles_along, winograd_error
from tvmflow.tuning.records.record import TuningRecord

Speedup = Callable[[dict[str, int], dict[str, int]], float]
LARGE_WEIGHTS = 9 * 128 * 128  # fewer stay in the caches of any machine, transformed or not
# what transforming a value costs, in multiplications of vectors; from times on x86 and instructions counted on arm64
_TRANSFORMED = 8
# what a weight costs that comes from memory: two x86 cores multiply so many times faster than they load, and more cores
# share the memory
_LOADED = 20
_GPU_TILES = (
    32  # of fewer tiles a GPU computes as long: weights are loaded for few pixels each; measured on PoCL and lavapipe
)
_GAIN = 0.01  # what more weights have to bring
_LOSS = 0.0025  # what fewer weights may cost: they start faster, and take less memory and disk


@dataclass(frozen=True)
class Alternative:
    """Computing the convolutions of one key with tiles of m x m: which kernels go, and which come instead."""

    key: str
    m: int
    removed: tuple[Workload, ...]
    added: tuple[Workload, ...]


def alternatives(
    packed: Any, backend: Backend, base: list[Workload], max_error: Mapping[str, float]
) -> list[Alternative]:
    """Return every way to replace a convolution shape whose rounding error stays in bounds for all its weights.

    max_error: dtype of the weights -> bound; what it does not have is never replaced.
    """
    ways = []
    for key, weights in _weights_by_key(packed, backend).items():
        bound = max_error.get(str(weights[0].dtype), 0.0)
        if not bound:
            continue
        for m in TILES:
            if max(winograd_error(weight, m) for weight in weights) > bound:
                continue
            other = extract_workloads(lower(packed, backend, winograd={key: m}))
            added = _difference(other, base)
            if added:  # none where the target has no instruction that would make it worth while
                ways.append(Alternative(key, m, _difference(base, other), added))
    return ways


def _weights_by_key(packed: Any, backend: Backend) -> dict[str, list[Any]]:
    by_key: dict[str, list[Any]] = {}
    for call in convolutions(packed):
        key, constant = convolution_key(call), constant_value(call.args[1])
        if key and constant is not None and (backend.is_cpu or int(call.attrs.dilation[0]) == 1):
            by_key.setdefault(key, []).append(constant.numpy())
    return by_key


def _difference(of: list[Workload], without: list[Workload]) -> tuple[Workload, ...]:
    """Return the workloads that one variant calls more often than another, with the number of calls more."""
    calls = {workload.key: workload.calls for workload in without}
    return tuple(
        Workload(w.key, w.name, w.calls - calls.get(w.key, 0), w.function) for w in of if w.calls > calls.get(w.key, 0)
    )


def unmeasured(packed: Any, backend: Backend, max_error: Mapping[str, float]) -> dict[str, int]:
    """Return key -> m where nothing is measured: the way of least multiplications and, of large weights on CPUs,
    loads.
    """
    chosen = {}
    for key, weights in _weights_by_key(packed, backend).items():
        dtype = str(weights[0].dtype)
        if weight_values(key) > backend.winograd_weights(dtype):
            continue
        costs = {
            m: _multiplications(key, m, backend.is_cpu, _LOADED * max(backend.target.threads / 2, 1))
            for m in (0, *TILES)
        }
        for m in sorted(TILES, key=lambda m: costs[m]):
            if costs[m] < costs[0] and max(winograd_error(weight, m) for weight in weights) <= max_error.get(
                dtype, 0.0
            ):
                chosen[key] = m
                break
    return chosen


def carried(winograd: Mapping[str, int], packed: Any, smaller: Sequence[Any]) -> dict[str, int]:
    """Return the choice with the convolutions of the same network at smaller sizes as those of the largest: their
    weights are the same ones.
    """
    found = dict(winograd)
    for other in smaller:
        for theirs, call in zip(convolutions(packed), convolutions(other), strict=True):
            m, key = winograd.get(convolution_key(theirs)), convolution_key(call)
            if m and key:
                found.setdefault(key, m)
    return dict(sorted(found.items()))


def _multiplications(key: str, m: int, on_cpu: bool, load: float) -> float:
    """Return what the convolution of a key costs with tiles of m x m, 0 for without, in multiplications: its transforms
    and loads of weights, `load` each, among them.
    """
    parts = key.split()
    data, weight, padding = (part.lstrip("p").replace(",", "x").split("x") for part in parts[:3])
    dilation = next((int(part[1:]) for part in parts[3:] if part.startswith("d")), 1)
    n, blocks, height, width, lanes = (int(d) for d in data)
    inputs, outputs, (top, left, bottom, right) = blocks * lanes, int(weight[0]) * lanes, (int(p) for p in padding)
    rows, columns = height + top + bottom - 2 * dilation, width + left + right - 2 * dilation
    taps = (m + 2) ** 2 if m else 9
    places = n * tiles_along(rows, m, dilation) * tiles_along(columns, m, dilation) if m else n * rows * columns
    if m and not on_cpu:
        places = max(places, _GPU_TILES)
    values = inputs * outputs + (_TRANSFORMED * (inputs + outputs) if m else 0)
    loaded = inputs * outputs if on_cpu and weight_values(key) > LARGE_WEIGHTS else 0
    return taps * (places * values + load * loaded)


def choose(candidates: list[Alternative], best: Mapping[str, TuningRecord]) -> dict[str, int]:
    """Return key -> m where the kernels that come were measured to be faster than those that go."""
    chosen: dict[str, tuple[float, int]] = {}
    for alternative in candidates:
        before, after = (_seconds(kernels, best) for kernels in (alternative.removed, alternative.added))
        if before is None or after is None or after >= before:
            continue
        gain = before - after
        if gain > chosen.get(alternative.key, (0.0, 0))[0]:
            chosen[alternative.key] = (gain, alternative.m)
    return {key: m for key, (_, m) in sorted(chosen.items())}


def settle(
    candidates: list[Alternative],
    chosen: dict[str, int],
    best: Mapping[str, TuningRecord],
    speedup: Speedup,
    may_go_on: Callable[[], bool] = lambda: True,
    counted: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the choice that is fastest in the whole network, large weights first; of those as fast the one with fewer
    weights.

    speedup(now, other): how many times faster the network is with the other choice. may_go_on: asked before each
    comparison; what is not compared stays as the kernels alone decided. counted: the choice without a measurement,
    where the search starts if the network is faster with its large weights.
    """
    options: dict[str, set[int]] = {}
    seconds: dict[tuple[str, int], float] = {}  # of the kernels alone
    for alternative in candidates:
        after = _seconds(alternative.added, best)
        if after is not None:
            options.setdefault(alternative.key, {0}).add(alternative.m)
            before = _seconds(alternative.removed, best)
            seconds[alternative.key, 0] = math.inf if before is None else before
            seconds[alternative.key, alternative.m] = after
    large = sorted((key for key in options if weight_values(key) >= LARGE_WEIGHTS), key=weight_values, reverse=True)
    start = chosen if counted is None else chosen | {key: counted.get(key, 0) for key in large}
    start = {key: m for key, m in start.items() if m in options.get(key, ()) and m}
    if start != chosen and may_go_on() and speedup(chosen, start) > 1:
        chosen = start
    for key in large:
        for m in sorted(options[key] - {chosen.get(key, 0)}):
            if m > chosen.get(key, 0) and seconds[key, m] >= seconds[key, chosen.get(key, 0)]:
                continue  # slower by itself, and with more weights to read
            other = {k: v for k, v in {**chosen, key: m}.items() if v}
            if not may_go_on():
                return chosen
            least = (
                1 + _GAIN if m > chosen.get(key, 0) else 1 - _LOSS
            )  # larger tiles, and tiles at all, have more weights
            if speedup(chosen, other) > least:
                chosen = other
    return chosen


def weight_values(key: str) -> int:
    """Return how many weights the convolution of a key has."""
    return math.prod(int(d) for d in key.split()[1].split("x"))


def _seconds(kernels: tuple[Workload, ...], best: Mapping[str, TuningRecord]) -> float | None:
    if any(w.key not in best for w in kernels):
        return None
    return sum(best[w.key].median_s * w.calls for w in kernels)
