"""Describe a candidate to the cost model: by its knobs, by the loops of its schedule, or by its memory curves.

Loops and curves are read from the scheduled kernel (Chen et al., Learning to Optimize Tensor Programs, 2018, section
4). They need no names of knobs; the knobs need no schedule, so that records of other networks, which hold no kernel,
teach by knobs only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from tvmflow.ir.tvm_compat import symbolic_bounds

if TYPE_CHECKING:
    from tvmflow.schedules.template import Knobs

FeatureKind = Literal["knobs", "loops", "curves"]
Features = dict[str, float]

_EXTENTS = 9  # leading loop extents of the workload beside the knobs
_LOOPS = 14  # innermost loops of the schedule
_BUFFERS = 4  # the buffer that is written, then those that are read
_CURVE = range(4, 26, 2)  # log2 of the bytes at which a curve is sampled: 16 B, a register, to 16 MB
_KINDS = {1: "parallel", 2: "vectorized", 3: "unrolled", 4: "thread"}  # of TVM's ForKind


def knob_features(extents: list[int], knobs: Knobs) -> Features:
    """Return loop extents of the workload, knobs, and combinations of them."""
    sizes = (extents + [1] * _EXTENTS)[:_EXTENTS]
    tiles = [value for name, value in knobs.items() if name.endswith("_tile")]
    held = math.prod(tiles)
    chunk = max(knobs.get("chunk", 1), 1)
    pieces = sizes[2] / chunk * (1 if knobs.get("rows_first") else sizes[1] / max(knobs.get("c_tile", 1), 1))
    return {
        **{f"extent {index}": math.log2(size) for index, size in enumerate(sizes)},
        **{f"knob {name}": math.log2(1 + knobs[name]) for name in sorted(knobs)},
        "held": float(held),
        "square": math.log2(held / max(sum(tiles), 1) + 1),
        "pieces": math.log2(max(pieces, 0.5)),
        "odd": float(pieces % 2),
    }


def schedule_features(kind: FeatureKind, function: Any) -> Features:
    """Return the features `loops` or `curves` of a scheduled kernel's costliest block; none if it has no loops."""
    nests = [nest for nest in _nests(function.body, ()) if _steps(nest) > 0]
    if not nests:
        return {}
    nest = max(nests, key=_steps)
    touched = _touched_bytes(nest)
    return _loop_features(nest, touched) if kind == "loops" else _curve_features(nest, touched)


# A nest: the loops and blocks around a block without blocks inside, from the outermost to itself.
_Nest = tuple[Any, ...]


def _is_loop(node: Any) -> bool:
    return hasattr(node, "loop_var")


def _nests(statement: Any, around: _Nest) -> Iterator[_Nest]:
    if hasattr(statement, "iter_values"):
        inner = list(_nests(statement.block.body, (*around, statement)))
        yield from inner or [(*around, statement)]
        return
    if hasattr(statement, "loop_var"):
        around = (*around, statement)
    for name in ("body", "then_case", "else_case"):
        if (part := getattr(statement, name, None)) is not None:
            yield from _nests(part, around)
    for part in getattr(statement, "seq", ()):
        yield from _nests(part, around)


def _extent(loop: Any) -> int:
    return int(getattr(loop.extent, "value", 1))


def _steps(nest: _Nest) -> int:
    """Return how often a block runs; reductions count twice, so that of equals the sum is taken and not the store."""
    block = nest[-1].block
    is_sum = any(int(variable.iter_type) == 2 for variable in block.iter_vars)
    loops = [node for node in nest if _is_loop(node)]
    return math.prod(map(_extent, loops)) * (2 if is_sum else 1) if loops else 0


def _touched_bytes(nest: _Nest) -> list[list[tuple[int, int]]]:
    """Return, per buffer, (values, bytes) that the loops from each one inwards touch, then those of one step."""
    from tvmflow.ir.tir.blocks import buffer_bytes, region_buffer  # imports TVM, which names of tuners do not need

    block = nest[-1].block
    regions, seen = [], list[Any]()
    for region in (*block.writes, *block.reads):
        buffer = region_buffer(region)
        if not any(buffer.same_as(other) for other in seen):
            seen.append(buffer)
            regions.append((buffer, region.region))
    regions = regions[:_BUFFERS]
    widths = [buffer_bytes(buffer) // math.prod(map(int, buffer.shape)) for buffer, _ in regions]
    found: list[list[tuple[int, int]]] = [[] for _ in regions]
    for fixed in range(sum(map(_is_loop, nest)) + 1):
        analyzer = _bounds(nest, fixed)
        for at, (buffer, region) in enumerate(regions):
            values = math.prod(
                _span(analyzer, part, int(size)) for part, size in zip(region, buffer.shape, strict=True)
            )
            found[at].append((values, values * widths[at]))
    return found


def _bounds(nest: _Nest, fixed: int) -> Any:
    """Return an analyzer in which the outer loops, that many, stand at their start."""
    make_analyzer, make_bound = symbolic_bounds()
    analyzer, loops = make_analyzer(), 0
    for node in nest:
        if _is_loop(node):
            last = 0 if loops < fixed else _extent(node) - 1
            analyzer.update(node.loop_var, make_bound(0, last), True)
            loops += 1
        else:
            for variable, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                analyzer.update(variable.var, analyzer.const_int_bound(value), True)
    return analyzer


def _span(analyzer: Any, part: Any, size: int) -> int:
    """Return how many places of a dimension a region reaches, at most its size."""
    bound = analyzer.const_int_bound(part.min)
    width = int(analyzer.const_int_bound(part.extent).max_value)
    return max(1, min(size, int(bound.max_value) - int(bound.min_value) + width))


def _loop_features(nest: _Nest, touched: list[list[tuple[int, int]]]) -> Features:
    """Return, from the innermost loop on: extent, kind, steps inside and outside it, and per buffer bytes and reuse."""
    loops = [node for node in nest if _is_loop(node)]
    found: Features = {}
    for depth, loop in list(enumerate(loops))[-_LOOPS:]:
        name = f"loop {len(loops) - 1 - depth}"
        inside = math.prod(map(_extent, loops[depth:]))
        found[f"{name} extent"] = math.log2(max(_extent(loop), 1))
        found[f"{name} inside"] = math.log2(inside)
        found[f"{name} outside"] = math.log2(math.prod(map(_extent, loops[:depth])))
        for kind, word in _KINDS.items():
            found[f"{name} {word}"] = float(int(loop.kind) == kind)
        for at, levels in enumerate(touched):
            values, size = levels[depth]
            found[f"{name} bytes {at}"] = math.log2(size)
            found[f"{name} reuse {at}"] = math.log2(inside / values)
    return found


def _curve_features(nest: _Nest, touched: list[list[tuple[int, int]]]) -> Features:
    """Return, per buffer, how often a value is used while no more than so many bytes of it are touched."""
    loops = [node for node in nest if _is_loop(node)]
    found: Features = {}
    for at, levels in enumerate(touched):
        points = [
            (size, math.prod(map(_extent, loops[depth:])) / values) for depth, (values, size) in enumerate(levels)
        ]
        for log in _CURVE:
            reuses = [reuse for size, reuse in points if size <= 1 << log]
            found[f"curve {at} {log}"] = math.log2(max(reuses, default=1.0))
    return found
