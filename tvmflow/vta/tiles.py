"""Find the tile of each convolution: all that fit are counted by formula, the best are built and their cycles estimated."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

from tvmflow.artifacts import digest_of
from tvmflow.errors import ProgramError
from tvmflow.vta.config import Memory, VtaConfig
from tvmflow.vta.convolution import Axis
from tvmflow.vta.counters import count, estimate
from tvmflow.vta.program import Dram, LaunchBuilder
from tvmflow.vta.schedule import ConvJob, Tile, layout_of, schedule_conv, spans

NEAR, BUILT = 1.03, 24
"""Tiles that move at most this many times the least bytes are compared by cycles, at most so many of them."""


@dataclass(frozen=True)
class TileRecord:
    """The best tile of one workload on one design. nbytes: inputs, weights, biases, outputs and micro-ops; cycles: estimated."""

    workload: str
    config: str
    tile: Tile
    nbytes: int
    cycles: int
    candidates: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> TileRecord:
        return TileRecord(**{**data, "tile": Tile(**data["tile"])})


def workload_key(config: VtaConfig, job: ConvJob) -> str:
    """Return what decides the best tile, as a digest; addresses and weights do not."""
    facts = {
        "config": config.to_json(), "geometry": asdict(job.geometry), "bias": job.bias is not None,
        "tail": [job.tail.left != 0, job.tail.right != 0, job.tail.half != 0, job.tail.saturates, job.tail.low >= 0],
        "residual": job.residual is not None and [job.residual.host_left != 0, job.residual.tail.right != 0],
    }  # fmt: skip
    return digest_of(facts)[:24]


def parts(size: int) -> list[int]:
    """Return the tile sizes worth trying: for each number of tiles the smallest that needs no more."""
    return sorted({-(-size // number) for number in range(1, size + 1)})


def _axis_parts(axis: Axis) -> list[int]:
    return sorted({-(-part // axis.dst) * axis.dst for part in parts(axis.out)})


def candidates(config: VtaConfig, job: ConvJob) -> list[Tile]:
    """Return every tile that fits; full rows only, where any of those fits."""
    g = job.geometry
    for columns in reversed(_axis_parts(g.columns)):
        found = [
            tile
            for rows, co, ci, resident, accumulators in itertools.product(
                _axis_parts(g.rows), parts(g.co_group), parts(g.ci_group), (True, False), (1, 2)
            )
            if layout_of(config, job, tile := Tile(rows, columns, co, ci, resident, accumulators)) is not None
        ]
        if found:
            return found
    raise ProgramError(
        f"a convolution {g.kernel} of {g.ci} to {g.co} blocks", f"one of which some tile fits {config.name}"
    )


def nbytes(config: VtaConfig, job: ConvJob, tile: Tile) -> int:
    """Return the bytes of inputs, weights, biases and outputs that a tile moves, by formula; micro-ops not among them."""
    g = job.geometry
    vector, block = config.element_bytes(Memory.INP), config.element_bytes(Memory.WGT)
    rows = sum(_real(g.rows, *span) for span in spans(g.rows.out, tile.rows))
    columns = sum(_real(g.columns, *span, sparse=False) for span in spans(g.columns.out, tile.columns))
    co_tiles = len(list(spans(g.co_group, tile.co))) * g.groups
    spatial = len(list(spans(g.rows.out, tile.rows))) * len(list(spans(g.columns.out, tile.columns))) * g.n
    inputs = co_tiles * g.n * g.ci_group * rows * columns * vector
    weights = g.co * g.ci_group * g.taps * block * (1 if tile.resident else spatial)
    outputs = g.n * g.co * g.rows.out * g.columns.out * vector
    bias = g.co * config.element_bytes(Memory.ACC) if job.bias is not None else 0
    residual = outputs + block if job.residual is not None else 0
    return inputs + weights + bias + outputs + residual


def _real(axis: Axis, first: int, size: int, sparse: bool = True) -> int:
    """Return how many indices inside the image a tile loads."""
    low, length = axis.window(first, size)
    if axis.is_sparse and sparse:
        return sum(0 <= low + i * axis.src < axis.size for i in range(size))
    return max(0, min(low + length, axis.size) - max(low, 0))


def measure(config: VtaConfig, job: ConvJob, tile: Tile) -> tuple[int, int]:
    """Build a tile and return (bytes with micro-ops, estimated cycles)."""
    builder = LaunchBuilder(config, Dram(config), "candidate")
    schedule_conv(builder, job, tile)
    launch = builder.finish()
    return count(config, launch.instructions).five_bytes, estimate(config, launch).total


def search(config: VtaConfig, job: ConvJob) -> TileRecord:
    """Return the tile with the fewest cycles among those that move about the least bytes."""
    ranked = sorted(((nbytes(config, job, tile), tile) for tile in candidates(config, job)), key=lambda pair: pair[0])
    least = ranked[0][0]
    near = [tile for size, tile in ranked if size <= NEAR * least]
    # Of equal bytes those with the largest steps: fewer, longer transfers and products.
    near.sort(key=lambda t: (-t.accumulators, -t.ci * t.rows * t.columns, -t.co))
    chosen = _spread(near)
    found: list[tuple[int, int, Tile]] = []
    for tile in chosen:
        try:
            size, cycles = measure(config, job, tile)
            found.append((cycles, size, tile))
        except ProgramError:  # a field that the tile needs is too narrow on this design
            continue
    if not found:
        raise ProgramError("no tile of a convolution can be encoded", f"fields wide enough in {config.name}")
    cycles, size, best = min(found, key=lambda entry: entry[:2])
    return TileRecord(workload_key(config, job), config.name, best, size, cycles, len(ranked))


def _spread(tiles: list[Tile]) -> list[Tile]:
    """Return at most BUILT of them, evenly over the list."""
    if len(tiles) <= BUILT:
        return tiles
    return [tiles[i * len(tiles) // BUILT] for i in range(BUILT)]
