"""Search for the tile of each convolution.

The traffic of all tiles that fit is computed by formula; the best are built and their cycles estimated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tvmflow.support.errors import ProgramError
from tvmflow.support.files import digest_of
from tvmflow.vta.compiler.conv_schedule import schedule_conv
from tvmflow.vta.compiler.conv_tiling import ConvJob, Tile, Walk, count_moved_bytes, count_multiplications, layout_of
from tvmflow.vta.compiler.convolution import Axis
from tvmflow.vta.compiler.dma import spans
from tvmflow.vta.compiler.requantize import tail_ops
from tvmflow.vta.compiler.tophub_schedules import reference_conv, reference_tile
from tvmflow.vta.isa.config import Memory, VtaConfig
from tvmflow.vta.isa.instructions import encode_all
from tvmflow.vta.isa.program import Dram, LaunchBuilder
from tvmflow.vta.machine.counters import DMA_LATENCY, START_LATENCY, Counters, count, estimate

NEAR, CUTS, BUILT = 1.01, 24, 6
"""Of the cuts that move at most this many times the least bytes the CUTS best by a formula of cycles are varied, BUILT
of those are built.
"""


@dataclass(frozen=True)
class TileRecord:
    """The best tile of one workload on one design. nbytes: inputs, weights, biases, outputs and micro-ops; cycles:
    estimated.

    tile: None where the reference's own schedule moves less than any of ours.
    """

    workload: str
    config: str
    tile: Tile | None
    nbytes: int
    cycles: int
    candidates: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> TileRecord:
        return TileRecord(**{**data, "tile": None if data["tile"] is None else Tile(**data["tile"])})


def workload_key(config: VtaConfig, job: ConvJob) -> str:
    """Return a digest of everything that determines the best tile; addresses and weights do not."""
    facts = {
        "config": config.to_json(),
        "geometry": asdict(job.geometry),
        "bias": job.bias is not None,
        "tail": [job.tail.left != 0, job.tail.right != 0, job.tail.half != 0, job.tail.saturates, job.tail.low >= 0],
        "residual": job.residual is not None and [job.residual.host_left != 0, job.residual.tail.right != 0],
    }
    return digest_of(facts)[:24]


def parts(size: int) -> list[int]:
    """Return the tile sizes worth trying: for each number of tiles the smallest that needs no more."""
    return sorted({-(-size // number) for number in range(1, size + 1)})


def _axis_parts(axis: Axis) -> list[int]:
    return sorted({-(-part // axis.dst) * axis.dst for part in parts(axis.out)})


def candidates(config: VtaConfig, job: ConvJob) -> Iterator[tuple[int, Tile]]:
    """Yield (bytes, tile) of every cut that fits, one input block a step and as much on the chip as there is room
    for.
    """
    g = job.geometry
    wgt, acc = config.depth(Memory.WGT), config.depth(Memory.ACC)
    for co, columns in itertools.product(parts(g.co_group), _axis_parts(g.columns)):
        if co * g.taps > wgt or co * columns > acc:
            continue
        for rows in _axis_parts(g.rows):
            if co * rows * columns > acc:
                break
            for rolling, channels_first in itertools.product((False, True), (True, False)):
                cut = Tile(rows, columns, co, 1, 1, 1, 1, rolling, channels_first)
                if (rolling and (g.rows.is_sparse or rows >= g.rows.out)) or (not channels_first and co == g.co_group):
                    continue
                tile = next(_vary_kept_data(config, job, cut), None)
                if tile is not None:
                    yield count_moved_bytes(config, job, tile), tile


def _vary_kept_data(config: VtaConfig, job: ConvJob, cut: Tile) -> Iterator[Tile]:
    """Yield a cut with all numbers of slots worth trying that fit, the largest first."""
    g, walk = job.geometry, Walk(job.geometry, cut)
    inp, wgt, steps = cut.ci * walk.rows.largest * walk.columns[0].window, cut.co * cut.ci * g.taps, len(walk.steps)
    reserved, own = (0, 0) if job.residual is None else (1, 2 * cut.columns)
    most = (config.depth(Memory.INP) - own) // inp if inp else 1
    heavy = (config.depth(Memory.WGT) - reserved) // wgt
    image, channels = walk.working * steps, len(walk.blocks) * steps
    if cut.rolling:
        inputs = {live * steps for live in (walk.rows.live, walk.rows.live + 1)}
    else:
        inputs = {1, 2, min(most, image if cut.channels_first else 2 * steps)}
    weights = {1, 2, min(heavy, 2 * steps if cut.channels_first else channels), min(heavy, steps)}
    for more, blocks in itertools.product(sorted(inputs, reverse=True), sorted(weights, reverse=True)):
        tile = replace(cut, inputs=more, weights=blocks)
        if 1 <= more <= most and 1 <= blocks <= heavy and layout_of(config, job, tile) is not None:
            yield tile


def estimate_roughly(config: VtaConfig, job: ConvJob, tile: Tile) -> float:
    """Estimate cycles by a formula without tokens, prologue and epilogue."""
    g, walk = job.geometry, Walk(job.geometry, tile)
    tiles = g.groups * g.n * len(walk.columns) * len(walk.rows.tiles) * len(walk.blocks)
    share = len(walk.steps) * len(walk.blocks) * len(walk.columns) * len(g.columns.phases) * g.n * g.groups
    pieces = walk.rows.pieces * share
    outputs = g.n * g.co * g.rows.out * g.columns.out
    alu = len(tail_ops(job.tail, job.bias is not None)) + (2 if job.residual is not None else 0)
    compute = count_multiplications(g, tile) + outputs * (1 + 2 * alu) + START_LATENCY * (pieces + tiles * (1 + alu))
    inputs, weights = walk.traffic
    vector, block = config.element_bytes(Memory.INP), config.element_bytes(Memory.WGT)
    largest = tile.ci * walk.rows.largest * walk.columns[0].window
    loads = g.ci_group * tiles if not largest else inputs / max(largest / tile.ci, 1)
    loads += weights / (tile.co * tile.ci * g.taps)
    transfer = (inputs * vector + weights * block) / config.board.bus_bytes + DMA_LATENCY * loads
    stores = outputs * vector / config.board.bus_bytes + DMA_LATENCY * tiles * tile.co
    alone = 0.0 if min(tile.inputs, tile.weights) > 1 else transfer
    return max(compute, transfer, stores) + alone + (0 if tile.accumulators > 1 else stores)


def emit_conv(builder: LaunchBuilder, job: ConvJob, tile: Tile | None) -> None:
    """Emit a convolution with a tile of the search."""
    if tile is None:
        operations = tail_ops(job.tail, job.bias is not None)
        reference_conv(builder, job, reference_tile(builder.config, job.geometry), operations)
    else:
        schedule_conv(builder, job, tile)


def measure(config: VtaConfig, job: ConvJob, tile: Tile | None) -> tuple[Counters, int]:
    """Build a tile and return (counters, estimated cycles). Raises ProgramError when an instruction cannot hold it."""
    builder = LaunchBuilder(config, Dram(config), "candidate")
    emit_conv(builder, job, tile)
    launch = builder.finish()
    encode_all(config, launch.instructions)
    return count(config, launch.instructions), estimate(config, launch).total


def search(config: VtaConfig, job: ConvJob) -> TileRecord:
    """Return the tile with the fewest cycles among those that move about the least bytes, and no more than the
    reference does.
    """
    built: list[_Built] = []
    for tiles in _list_rounds(config, job):
        for tile in tiles:
            try:
                built.append((*measure(config, job, tile), tile))
            except ProgramError:  # a field that the tile needs is too narrow on this design
                continue
        if built:
            break
    if not built:
        g = job.geometry
        raise ProgramError(
            f"a convolution {g.kernel} of {g.ci} to {g.co} blocks", f"one of which some tile fits {config.name}"
        )
    least = min(counters.dram_nbytes for counters, _, _ in built)
    near = [entry for entry in built if entry[0].dram_nbytes <= NEAR * least]
    counters, cycles, best = min(_select_no_worse(config, job, built, near), key=lambda entry: entry[1])
    return TileRecord(workload_key(config, job), config.name, best, counters.five_bytes, cycles, len(built))


_Built = tuple[Counters, int, Tile | None]


def _select_no_worse(config: VtaConfig, job: ConvJob, built: list[_Built], near: list[_Built]) -> list[_Built]:
    """Return the tiles that transfer no more than the reference.

    Searched in this order: the near ones, all, those with single slots, and at last the reference itself.

    Single slots need the fewest micro-ops, which dominate in a small convolution.
    """
    if job.residual is not None:
        return near
    try:
        limit = _reference(config, job)
    except ProgramError:
        return near

    def lean() -> Iterator[_Built]:
        for tile in {tile: None for _, _, tile in built if tile is not None}:
            for inputs, weights in ((2, 1), (1, 2), (1, 1)):
                single = replace(tile, inputs=inputs, weights=weights, accumulators=1)
                if layout_of(config, job, single) is not None:
                    yield (*measure(config, job, single), single)

    for entries in (near, built, lean()):
        kept = [e for e in entries if e[0].five_bytes <= limit.five_bytes and e[0].dram_nbytes <= limit.dram_nbytes]
        if kept:
            return kept
    return [(*measure(config, job, None), None)]


def _reference(config: VtaConfig, job: ConvJob) -> Counters:
    builder = LaunchBuilder(config, Dram(config), "reference")
    reference_conv(builder, job, reference_tile(config, job.geometry))
    return count(config, builder.finish().instructions)


def _list_rounds(config: VtaConfig, job: ConvJob) -> Iterator[list[Tile]]:
    """Yield tiles to build, the best first, until there are no more."""
    ranked = sorted(candidates(config, job), key=lambda pair: (pair[0], -pair[1].rows * pair[1].columns, -pair[1].co))
    while ranked:
        near = [tile for size, tile in ranked if size <= NEAR * ranked[0][0]]
        ranked = ranked[len(near) :]
        near.sort(key=lambda tile: estimate_roughly(config, job, tile))
        for first, number in spans(len(near), CUTS):
            yield _vary_slots(config, job, near[first : first + number])


def _vary_slots(config: VtaConfig, job: ConvJob, cuts: list[Tile]) -> list[Tile]:
    """Return the cuts with other steps, slots and regions, the best by formula."""
    tiles = {
        tile: None
        for cut in cuts
        for ci, accumulators in itertools.product(parts(job.geometry.ci_group), (2, 1))
        for tile in _vary_kept_data(config, job, replace(cut, ci=ci, accumulators=accumulators))
    }
    rows = [(count_moved_bytes(config, job, tile), estimate_roughly(config, job, tile), tile) for tile in tiles]
    least = min((row[0] for row in rows), default=0)
    rows = sorted((row for row in rows if row[0] <= NEAR * least), key=lambda row: row[1])
    return [tile for _, _, tile in rows[:BUILT]]
