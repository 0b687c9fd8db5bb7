"""Choose which convolutions use Winograd's algorithm, by measurement of both algorithms for each shape.

The choice is made first by the kernels alone, then within the whole network: transformed weights are up to four times
as large, and a kernel measured alone finds them in its cache, whereas a network reads them from memory. Without a
device, multiplications are counted instead, for processors on which Winograd was measured to be faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmflow.backends.backend import Backend
from tvmflow.codegen.lower import lower
from tvmflow.ir.tir.workloads import Workload, extract_workloads
from tvmflow.ir.tvm_compat import IRModule, constant_value
from tvmflow.passes.legalize.convolutions import convolution_key, convolutions, winograd_dtype
from tvmflow.passes.legalize.winograd import TILES, count_tiles, winograd_error
from tvmflow.tuning.records.record import TuningRecord

Speedup = Callable[[dict[str, int], dict[str, int]], float]
LARGE_WEIGHTS = 9 * 128 * 128  # smaller weights stay in the cache, transformed or not
_LOAD_COST = 20  # of a weight from memory in multiplications, with two x86 cores; more cores share the memory
# The same with a core of arm64, which multiplies eight values per cycle and loads one or two from memory.
_ARM64_LOAD_COST = 5
# Cost of transforming a value in vector multiplications, from times on x86, and by tile from instructions on arm64.
_TRANSFORM_COST = 8
_ARM64_TRANSFORM_COST = {2: 6, 4: 7, 6: 10}
# Fewer tiles take as long on a GPU, since weights are loaded for few pixels each; measured on PoCL and lavapipe.
_GPU_TILES = 32
_GAIN = 0.01  # least gain of a choice with more weights
_LOSS = 0.0025  # tolerated loss of a choice with fewer weights, which starts faster and takes less memory and disk


@dataclass(frozen=True)
class Alternative:
    """A convolution key computed by Winograd with tiles of m x m: the kernels that it removes and adds."""

    key: str
    m: int
    removed: tuple[Workload, ...]
    added: tuple[Workload, ...]


def find_alternatives(
    packed: IRModule, backend: Backend, base: list[Workload], max_error: Mapping[str, float]
) -> list[Alternative]:
    """Return all Winograd alternatives whose rounding error is within the bound for all weights of a key.

    max_error: dtype of the weights -> bound; other dtypes are never replaced.
    """
    found = []
    for key, weights in _weights_by_key(packed, backend).items():
        bound = max_error.get(str(weights[0].dtype), 0.0)
        if not bound:
            continue
        for m in tiles_of(backend):
            if max(winograd_error(weight, m) for weight in weights) > bound:
                continue
            other = extract_workloads(lower(packed, backend, winograd={key: m}))
            added = _extra_calls(other, base)
            if added:  # none if the target has no instructions that make it worthwhile
                found.append(Alternative(key, m, _extra_calls(base, other), added))
    return found


def _weights_by_key(packed: IRModule, backend: Backend) -> dict[str, list[Any]]:
    """Return convolution key -> weights, in the type in which transformed ones are stored."""
    by_key: dict[str, list[Any]] = {}
    for call in convolutions(packed):
        key, constant = convolution_key(call), constant_value(call.args[1])
        if key and constant is not None and _is_known(call, backend):
            values, dtype = constant.numpy(), winograd_dtype(call)
            by_key.setdefault(key, []).append(values if str(values.dtype) == dtype else values.astype(dtype))
    return by_key


def _is_known(call: Any, backend: Backend) -> bool:
    """Whether Winograd was tried for a kind of convolutions on a target: of float16 on arm64 alone."""
    if not backend.is_cpu and int(call.attrs.dilation[0]) > 1:
        return False
    weight: Any = constant_value(call.args[1])
    if str(weight.dtype) != "float16":
        return True
    return _is_arm64(backend) and (winograd_dtype(call) != "float16" or "fp16" in backend.cpu_features().dots)


def _extra_calls(of: list[Workload], without: list[Workload]) -> tuple[Workload, ...]:
    """Return the workloads that one network calls more often than another, with the number of additional calls."""
    calls = {workload.key: workload.calls for workload in without}
    return tuple(
        Workload(w.key, w.name, w.calls - calls.get(w.key, 0), w.function) for w in of if w.calls > calls.get(w.key, 0)
    )


def tiles_of(backend: Backend) -> tuple[int, ...]:
    """Return the tiles worth trying: F(6x6) needs 32 registers, and more of the caches than x86 gains by it."""
    return TILES if _is_arm64(backend) else TILES[:2]


def _is_arm64(backend: Backend) -> bool:
    return backend.is_cpu and "neon" in backend.cpu_features().dots


def choose_by_cost(packed: IRModule, backend: Backend, max_error: Mapping[str, float]) -> dict[str, int]:
    """Return key -> m without measurement: the tile with the fewest multiplications plus, for large weights on CPUs,
    loads.
    """
    chosen, tiles = {}, tiles_of(backend)
    for key, weights in _weights_by_key(packed, backend).items():
        dtype = str(weights[0].dtype)
        if weight_values(key) > backend.winograd_weights(dtype):
            continue
        costs = {m: _cost(key, m, backend) for m in (0, *tiles)}
        for m in sorted(tiles, key=lambda m: costs[m]):
            if costs[m] < costs[0] and max(winograd_error(weight, m) for weight in weights) <= max_error.get(
                dtype, 0.0
            ):
                chosen[key] = m
                break
    return chosen


def describe_tiles(packed: IRModule, backend: Backend, winograd: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return a row per convolution that is computed by Winograd's algorithm: its key, tile and rounding error, which is
    relative to the spread of its outputs.
    """
    return [
        {"convolution": key, "tile": winograd[key], "error": max(winograd_error(one, winograd[key]) for one in weights)}
        for key, weights in _weights_by_key(packed, backend).items()
        if winograd.get(key)
    ]


def extend_to_buckets(winograd: Mapping[str, int], packed: IRModule, smaller: Sequence[Any]) -> dict[str, int]:
    """Return the choice extended to the convolutions of the smaller buckets, which share the weights of the largest."""
    found = dict(winograd)
    for other in smaller:
        for largest, call in zip(convolutions(packed), convolutions(other), strict=True):
            m, key = winograd.get(convolution_key(largest)), convolution_key(call)
            if m and key:
                found.setdefault(key, m)
    return dict(sorted(found.items()))


def _cost(key: str, m: int, backend: Backend) -> float:
    """Return the cost of a convolution with tiles of m x m (0: direct) in multiplications, including transforms and
    loads of weights that a cache does not hold.
    """
    parts = key.split()
    data, weight, padding = (part.lstrip("p").replace(",", "x").split("x") for part in parts[:3])
    dilation = next((int(part[1:]) for part in parts[3:] if part.startswith("d")), 1)
    n, blocks, height, width, lanes = (int(d) for d in data)
    inputs, outputs, (top, left, bottom, right) = blocks * lanes, int(weight[0]) * lanes, (int(p) for p in padding)
    rows, columns = height + top + bottom - 2 * dilation, width + left + right - 2 * dilation
    taps = (m + 2) ** 2 if m else 9
    tiles = n * count_tiles(rows, m, dilation) * count_tiles(columns, m, dilation) if m else n * rows * columns
    if m and not backend.is_cpu:
        tiles = max(tiles, _GPU_TILES)
    each = _ARM64_TRANSFORM_COST[m] if m and _is_arm64(backend) else _TRANSFORM_COST
    values = inputs * outputs + (each * (inputs + outputs) if m else 0)
    return taps * (tiles * values + _load_cost(backend, taps, inputs * outputs) * inputs * outputs)


def _load_cost(backend: Backend, taps: int, filters: int) -> float:
    """Return the cost of loading a weight in multiplications, 0 where a cache holds all."""
    if _is_arm64(backend):
        return _ARM64_LOAD_COST if 4 * taps * filters > backend.cpu_features().l2_bytes else 0
    if backend.is_cpu and 9 * filters > LARGE_WEIGHTS:
        return _LOAD_COST * max(backend.target.threads / 2, 1)
    return 0


def choose_by_kernel_time(candidates: list[Alternative], best: Mapping[str, TuningRecord]) -> dict[str, int]:
    """Return key -> m where the added kernels are measured to be faster than the removed ones."""
    chosen: dict[str, tuple[float, int]] = {}
    for alternative in candidates:
        before, after = (_seconds(kernels, best) for kernels in (alternative.removed, alternative.added))
        if before is None or after is None or after >= before:
            continue
        gain = before - after
        if gain > chosen.get(alternative.key, (0.0, 0))[0]:
            chosen[alternative.key] = (gain, alternative.m)
    return {key: m for key, (_, m) in sorted(chosen.items())}


def choose_by_network_time(
    candidates: list[Alternative],
    chosen: dict[str, int],
    best: Mapping[str, TuningRecord],
    speedup: Speedup,
    may_go_on: Callable[[], bool] = lambda: True,
    by_cost: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the choice that is fastest in the whole network; of equally fast ones, the one with fewer weights.

    Large weights are compared first. speedup(now, other): time ratio of two choices. may_go_on: called before each
    comparison; the rest keeps the choice by kernel times. by_cost: the choice without measurement, which is the
    starting point if it is faster for large weights.
    """
    options: dict[str, set[int]] = {}
    seconds: dict[tuple[str, int], float] = {}  # by the kernels alone
    for alternative in candidates:
        after = _seconds(alternative.added, best)
        if after is not None:
            options.setdefault(alternative.key, {0}).add(alternative.m)
            before = _seconds(alternative.removed, best)
            seconds[alternative.key, 0] = math.inf if before is None else before
            seconds[alternative.key, alternative.m] = after
    large = sorted((key for key in options if weight_values(key) >= LARGE_WEIGHTS), key=weight_values, reverse=True)
    start = chosen if by_cost is None else chosen | {key: by_cost.get(key, 0) for key in large}
    start = {key: m for key, m in start.items() if m in options.get(key, ()) and m}
    if start != chosen and may_go_on() and speedup(chosen, start) > 1:
        chosen = start
    for key in large:
        for m in sorted(options[key] - {chosen.get(key, 0)}):
            if m > chosen.get(key, 0) and seconds[key, m] >= seconds[key, chosen.get(key, 0)]:
                continue  # slower alone, and with more weights to read
            other = {k: v for k, v in {**chosen, key: m}.items() if v}
            if not may_go_on():
                return chosen
            # Larger tiles have more weights than smaller ones, and than none.
            least = 1 + _GAIN if m > chosen.get(key, 0) else 1 - _LOSS
            if speedup(chosen, other) > least:
                chosen = other
    return chosen


def weight_values(key: str) -> int:
    """Return the number of weights of a convolution key."""
    return math.prod(int(d) for d in key.split()[1].split("x"))


def _seconds(kernels: tuple[Workload, ...], best: Mapping[str, TuningRecord]) -> float | None:
    if any(w.key not in best for w in kernels):
        return None
    return sum(best[w.key].median_s * w.calls for w in kernels)
