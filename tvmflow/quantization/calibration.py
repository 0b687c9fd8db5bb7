"""Run the float network on the calibration samples, record statistics, and choose scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TypeVar

import numpy as np

from tvmflow.config.stage_params import Int8Params
from tvmflow.ir.relax.emit import float_module
from tvmflow.ir.relax.graph import Array, Arrays, Graph, Step, read_graph
from tvmflow.ir.relax.layers import ADD, CONCAT, MEAN, MOVE, Layer, Network, joins_unscaled
from tvmflow.ir.relax.numpy_interpreter import scales_with_batch
from tvmflow.ir.relax.scales import Scale, asymmetric, power_of_two
from tvmflow.quantization.integer_matmul import fuse_for_library, run_fast, start_compiling
from tvmflow.quantization.observers import OBSERVERS, Observed, noise_share
from tvmflow.quantization.parallel import on_processors
from tvmflow.support.errors import UnknownNameError
from tvmflow.support.progress import Progress
from tvmflow.support.samples import WHOLE

CHUNK_BYTES = 64 << 20
_SHARES = 8  # least number of pieces, if there are enough samples, so that all processors have some
R = TypeVar("R")
_BEYOND = 1e30  # larger numbers are masks (substitutes of minus infinity), not parts of a range
_FINEST = 3  # halvings below the largest number of the smallest value; smaller scales clip nearly all numbers


class Calibration:
    """The float network and the statistics of its values on the calibration samples; `fill_histograms` completes them.

    samples: the inputs, each (N, ...). outputs: of the float network. seen: statistics of float values.
    """

    def __init__(self, network: Network, samples: Arrays, progress: Progress) -> None:
        start_compiling()  # compiles in the background while the float network runs
        self.samples, self.count = samples, len(samples[0])
        self.graph = read_graph(float_module(network))
        self.can_batch = scales_with_batch(self.graph)
        self.values = {*network.graph.inputs, *(item.name for item in network.items)}
        self.seen: dict[str, Observed] = {}
        outputs = []
        for output, found in self._each_piece(lambda _name, value: Observed.of(value), progress):
            outputs.append(output)
            for name, observed in found.items():
                self.seen.setdefault(name, Observed()).add(observed)
        self.outputs = concatenate_outputs(outputs, self.count)

    def for_equalized(self, network: Network, factors: Mapping[str, Array]) -> Calibration:
        """Return the statistics of an equalized network. factors: value -> divisors of its channels."""
        twin = copy(self)
        twin.graph = read_graph(float_module(network))
        ones = np.ones(1)
        twin.seen = {name: observed.divide(factors.get(name, ones)) for name, observed in self.seen.items()}
        return twin

    def fill_histograms(self, twin: Calibration | None, factors: Mapping[str, Array], progress: Progress) -> None:
        """Fill the histograms of this and of the equalized network."""

        def count(name: str, value: Array) -> tuple[Array, Array | None]:
            if twin is None or name not in factors:
                return self.seen[name].count(value), None
            column = factors[name].astype(np.float32).reshape(1, -1, *(1,) * (value.ndim - 2))
            return self.seen[name].count(value), twin.seen[name].count(value / column)

        for _, found in self._each_piece(count, progress):
            for name, (counts, others) in found.items():
                self.seen[name].counts += counts
                if twin is not None:
                    twin.seen[name].counts += counts if others is None else others

    def channel_ranges(self) -> dict[str, Array]:
        """Return the largest magnitude per channel of every value."""
        return {name: observed.channel_magnitude for name, observed in self.seen.items()}

    def chunks(self) -> list[Arrays]:
        """Split the calibration samples as `chunks_of` does."""
        return self.chunks_of(self.samples)

    def chunks_of(self, samples: Arrays) -> list[Arrays]:
        """Split samples into pieces whose values fit into memory, several for each processor."""
        batch = self.graph.batch
        if not self.can_batch:
            return split_batches(samples, batch, 1)
        largest = sum(int(np.prod(step.shape)) * 4 for step in self.graph.steps) / batch
        share = -(-len(samples[0]) // (batch * _SHARES))
        return split_batches(samples, batch, max(1, min(int(CHUNK_BYTES / max(largest, 1) / batch), share)))

    def _each_piece(self, see: Callable[[str, Array], R], progress: Progress) -> Iterator[tuple[Arrays, dict[str, R]]]:
        """Yield the outputs of each piece, and the results of `see` for each value."""

        def run(piece: Arrays) -> tuple[Arrays, dict[str, R]]:
            found: dict[str, R] = {}

            def look(name: str, value: Array) -> None:
                if value.dtype.kind == "f" and value.ndim:
                    found[name] = see(name, _without_masks(value))

            def watch(step: Step, value: Array) -> None:
                if step.name in self.values:
                    look(step.name, value)

            for name, value in zip(self.graph.inputs, piece, strict=True):
                look(name, value)
            return run_fast(self.graph, piece, watch), found

        chunks = self.chunks()
        with on_processors() as each:
            for start in range(0, len(chunks), _SHARES):
                yield from each(run, chunks[start : start + _SHARES])
                progress("calibrating", min(start + _SHARES, len(chunks)), len(chunks))


def _without_masks(value: Array) -> Array:
    """Return the value with masked numbers replaced by 0."""
    return value if max(value.max(), -value.min()) < _BEYOND else np.where(np.abs(value) < _BEYOND, value, 0)


def outputs_of(graph: Graph, pieces: Sequence[Arrays], count: int) -> Arrays:
    """Return the graph's outputs to all pieces."""
    with on_processors() as each:
        fused = fuse_for_library(graph)
        return concatenate_outputs(each(lambda piece: run_fast(fused, piece), pieces), count)


def concatenate_outputs(parts: Sequence[Arrays], count: int) -> Arrays:
    """Return the outputs of all pieces, each as one array of `count` samples."""
    return tuple(np.concatenate([np.atleast_1d(part) for part in same])[:count] for same in zip(*parts, strict=True))


def split_batches(samples: Arrays, batch: int, batches: int) -> list[Arrays]:
    """Split samples into pieces of whole batches, or samples that are WHOLE; the last sample is repeated to fill the
    last batch.
    """
    count = len(samples[0])
    if batch == WHOLE:
        return [tuple(np.asarray(x[at]) for x in samples) for at in range(count)]
    missing = -count % batch
    full = tuple(np.concatenate([x, np.repeat(x[-1:], missing, axis=0)]) if missing else x for x in samples)
    return [
        tuple(x[start : start + batch * batches] for x in full) for start in range(0, count + missing, batch * batches)
    ]


def int8_scales(network: Network, run: Calibration, options: Int8Params) -> dict[str, Scale]:
    if options.observer not in OBSERVERS:
        raise UnknownNameError(f"no observer {options.observer!r}", legal=OBSERVERS)
    scales = {}
    for name, observed in run.seen.items():
        low, high = OBSERVERS[options.observer](observed, options.percentile, 255)
        scales[name] = asymmetric(low, high, options.activations)
    return _shared_scales(network, scales)


def _shared_scales(network: Network, scales: dict[str, Scale]) -> dict[str, Scale]:
    """Give each value that only a concat reads the scale of the concat, to avoid a second rounding."""
    users = network.users()
    for item in reversed(network.items):
        readers = users[item.name]
        if len(readers) != 1 or item.name not in scales:
            continue
        reader = readers[0]
        if isinstance(reader, Layer) and reader.kind == CONCAT:
            if not joins_unscaled(network, reader, users[reader.name]):
                scales[item.name] = scales[reader.name]
    return scales


def power_of_two_scales(network: Network, run: Calibration, names: set[str], *, one: bool) -> dict[str, Scale]:
    """Return a power of two for each named value that minimizes the relative noise; one for all if `one`.

    The operands of a residual sum and the sum share a scale, so that no shifts are needed.
    """
    scales = {}
    for group in [sorted(names)] if one else _groups(network, names):
        observed = [run.seen[name] for name in group]
        largest = [max(abs(s.low), abs(s.high)) for s in observed]
        top, low = power_of_two(max(largest)), power_of_two(min(filter(None, largest), default=0.0))
        choices = [top]
        while choices[-1].scale > low.scale / 2**_FINEST:
            choices.append(replace(top, scale=choices[-1].scale / 2))
        best = min(choices, key=lambda scale: sum(noise_share(s, scale) for s in observed))
        scales.update(dict.fromkeys(group, best))
    return scales


def _groups(network: Network, names: set[str]) -> list[list[str]]:
    """Return groups of values with a common scale: of a residual sum, a concat, and around a data movement or mean."""
    group = {name: [name] for name in names}
    for layer in network.layers:
        if layer.kind in (ADD, CONCAT, MOVE, MEAN):
            tied = [name for name in (*layer.inputs, layer.name) if name in names]
            joined = sorted({name for member in tied for name in group[member]})
            group.update(dict.fromkeys(joined, joined))
    return list({id(members): members for members in group.values()}.values())
