"""Lower a recurrent layer to one kernel: a loop over time with the product of the hidden state and the gates in it.

A tile of hidden units and samples keeps its sums of all gates in registers, and computes the gates of its units before
the next tile: the weights are packed in the order in which tiles read them. Tiles at the end overlap the ones before;
what both compute is the same, since states are read from one half of a buffer and written to the other. Threads take
directions and samples, which do not wait for each other; or, where there are too few and the weights are many, shares
of the hidden units, and wait for each other at each time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.recurrent import Array, Recurrence, recurrence_of
from tvmflow.ir.tir.tvm_script import parsed
from tvmflow.ir.tvm_compat import Call, constant_value, shape_of, type_of
from tvmflow.passes.legalize.recurrent_activations import format_activation
from tvmflow.support.errors import StageError
from tvmflow.targets.cpu_features import CpuFeatures

_LEAST_SUMS, _MOST_SUMS = 8, 12  # vectors of sums that hide the latency of a multiplication
_LEAST_WORK = 50_000  # multiplications of a layer below which threads cost more than they save
_LEAST_SHARED = 100_000  # the same of one time, if threads wait for each other after it


@dataclass(frozen=True)
class Tiling:
    """How a kernel computes: vectors of `lanes` units, tiles of `vectors` of them and `rows` samples.

    chunks: of samples, over threads with the directions. shares: of tiles over threads at each time; 1 for none.
    """

    lanes: int
    vectors: int
    rows: int
    chunks: int
    shares: int

    @property
    def units(self) -> int:
        return self.lanes * self.vectors


def legalize_recurrent(builder: Any, call: Call, cpu: CpuFeatures) -> Any:
    """Return the call of a kernel for a recurrent call."""
    recurrence = recurrence_of(call)
    operands = dict(zip(recurrence.operands, call.args, strict=True))
    weight = constant_value(operands.pop("weight"))
    if weight is None:
        raise StageError("a recurrent layer whose weights are computed", "constant weights", "fold them in the model")
    times, samples = recurrence.sizes(shape_of(operands["gates"]))
    block = shape_of(operands["gates"])[4] if recurrence.packed_times else cpu.channel_block
    tiling = choose_tiling(recurrence, times, samples, cpu, block)
    weights = [constant(one, "float32") for one in _pack(recurrence, weight.numpy(), tiling)]
    dtypes = {name: str(type_of(v).dtype) for name, v in operands.items()}
    kernel = _Kernel(recurrence, times, samples, tiling, dtypes, shape_of(operands["gates"]))
    function = builder.add_func(parsed(kernel.text()).without_attr("global_symbol"), f"recurrent_{recurrence.kind}")
    return relax.call_tir(function, [*weights, *operands.values()], list(type_of(call).fields))


def choose_tiling(recurrence: Recurrence, times: int, samples: int, cpu: CpuFeatures, block: int) -> Tiling:
    """Return how to compute a layer on a processor; block: the most lanes of a vector."""
    hidden, directions = recurrence.hidden, len(recurrence.reverse)
    lanes = min(block, 1 << (hidden.bit_length() - 1))
    step = samples * hidden * hidden * recurrence.gates
    chunks, shares = 1, 1
    if cpu.threads > 1 and step * times * directions >= _LEAST_WORK:
        chunks = min(-(-cpu.threads // directions), samples)
        if chunks * directions < cpu.threads and step >= _LEAST_SHARED:
            chunks, shares = 1, cpu.threads
    gates = max(len(phase) for phase in _phases(recurrence))
    most = min(cpu.accumulators(lanes, spare=4), _MOST_SUMS)
    rows_at_a_time = -(-samples // chunks)
    found = [
        (rows, vectors)
        for rows in range(1, rows_at_a_time + 1)
        for vectors in range(1, hidden // lanes + 1)
        if rows * vectors * gates <= most
    ] or [(1, 1)]

    def cost(tile: tuple[int, int]) -> float:
        """Return the time of a multiplication: as many loads as multiplications fit in; tiles at the end overlap."""
        rows, vectors = tile
        computed = math.ceil(rows_at_a_time / rows) * rows / rows_at_a_time
        computed *= math.ceil(hidden / (vectors * lanes)) * vectors * lanes / hidden
        slowest = max(1.0, 1 / rows + 1 / (gates * vectors), _LEAST_SUMS / (rows * vectors * gates))
        return computed * slowest + 0.1 / rows  # weights come from L2

    rows, vectors = min(found, key=cost)
    return Tiling(lanes, vectors, rows, chunks, min(shares, -(-hidden // (lanes * vectors))))


def _phases(recurrence: Recurrence) -> list[list[int]]:
    """Return the gates whose products are summed together; a GRU that resets its state has two phases."""
    if recurrence.kind == "gru" and not recurrence.reset_after:
        return [[0, 1], [2]]
    return [list(range(recurrence.gates))]


def _starts(hidden: int, units: int) -> list[int]:
    return [min(start, hidden - units) for start in range(0, hidden, units)]


def _pack(recurrence: Recurrence, weight: Array, tiling: Tiling) -> list[Array]:
    """Return for each phase (directions, tiles, hidden, gates, units)."""
    starts = _starts(recurrence.hidden, tiling.units)
    packed = []
    for phase in _phases(recurrence):
        tiles = [weight[:, phase, start : start + tiling.units].transpose(0, 3, 1, 2) for start in starts]
        packed.append(np.ascontiguousarray(np.stack(tiles, axis=1)))
    return packed


class _Kernel:
    """The TVMScript text of a layer's kernel."""

    def __init__(
        self,
        recurrence: Recurrence,
        times: int,
        samples: int,
        tiling: Tiling,
        dtypes: dict[str, str],
        gates: tuple[int, ...],
    ) -> None:
        self.gates = gates
        self.recurrence, self.times, self.samples, self.tiling, self.dtypes = recurrence, times, samples, tiling, dtypes
        self.directions = len(recurrence.reverse)
        self.rows = -(-samples // tiling.chunks)  # of a chunk
        self.tiles = -(-recurrence.hidden // tiling.units)
        self.lines: list[str] = []
        self.depth = 0

    # -- the text --

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextlib.contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def _loop(self, variable: str, extent: int, kind: str = "serial") -> Any:
        return self._block(f"for {variable} in T.{kind}(T.int64({extent})):")

    @contextlib.contextmanager
    def _vectors(self) -> Iterator[None]:
        """Loop over the vectors of a tile: rows r, vectors n, lanes l."""
        with (
            self._loop("r", self.tiling.rows, "unroll"),
            self._loop("n", self.tiling.vectors, "unroll"),
            self._loop("l", self.tiling.lanes, "vectorized"),
        ):
            yield

    def text(self) -> str:
        of, tiling = self.recurrence, self.tiling
        phases = _phases(of)
        weights = [
            f"weight{at}: {_buffer(self.directions, self.tiles, of.hidden, len(phase), tiling.units)}"
            for at, phase in enumerate(phases)
        ]
        state = (self.directions, self.samples, of.hidden)
        shapes = {
            "gates": self.gates,
            "reset_bias": (self.directions, of.hidden),
            "peephole": (self.directions, 3, of.hidden),
            "hidden": state,
            "cell": state,
            "lengths": (self.samples,),
        }
        operands = [f"{name}: {_buffer(*shapes[name], dtype=dtype)}" for name, dtype in self.dtypes.items()]
        made = [f"outputs: {_buffer(self.times, self.samples, self.directions * of.hidden)}"]
        made += [f"{name}: {_buffer(*state)}" for name in ("last_hidden", "last_cell")[: of.states]]
        self._line("@T.prim_func(s_tir=True)")
        with self._block(f"def recurrent({', '.join([*weights, *operands, *made])}) -> None:"):
            self._line('T.func_attr({"tirx.noalias": True, "op_pattern": 8})')
            self._allocate()
            tasks = self.directions * tiling.chunks
            parallel = tasks > 1 and tiling.shares == 1 and tiling.chunks * self.directions > 1 and self._is_threaded
            with self._loop("task", tasks, "parallel" if parallel else "serial"):
                self._start()
                with self._loop("s", self.times):
                    for at, phase in enumerate(phases):
                        self._phase(at, phase, last=at == len(phases) - 1)
                self._finish()
        return "\n".join(self.lines)

    @property
    def _is_threaded(self) -> bool:
        work = self.samples * self.recurrence.hidden**2 * self.recurrence.gates * self.times * self.directions
        return work >= _LEAST_WORK

    def _allocate(self) -> None:
        of, tiling = self.recurrence, self.tiling
        tasks = self.directions * tiling.chunks
        for name in self._states:
            self._line(f"{name} = T.sblock_alloc_buffer(({tasks}, 2, {self.rows}, {of.hidden}))")
        if len(_phases(of)) > 1:
            self._line(f"kept = T.sblock_alloc_buffer(({tasks}, 2, {self.rows}, {of.hidden}))")
        tile = f"{tiling.rows}, {tiling.vectors}, {tiling.lanes}"
        for at, phase in enumerate(_phases(of)):
            self._line(f'sums{at} = T.sblock_alloc_buffer(({len(phase)}, {tile}), scope="local")')
            self._line(f'made{at} = T.sblock_alloc_buffer((5, {tile}), scope="local")')

    @property
    def _states(self) -> list[str]:
        return ["h", "c"][: self.recurrence.states]

    # -- indices --

    @property
    def _direction(self) -> str:
        return "0" if self.directions == 1 else f"(task // {self.tiling.chunks})"

    def _sample(self, row: str) -> str:
        """Return the sample of a row of a chunk; the last chunk overlaps the one before."""
        if self.tiling.chunks == 1:
            return row
        chunk = f"(task % {self.tiling.chunks})"
        last = self.samples - self.rows
        return f"(T.min({chunk} * {self.rows}, {last}) + {row})"

    def _row(self) -> str:
        """Return the row of a vector of a tile."""
        last = self.rows - self.tiling.rows
        return "r" if last == 0 else f"(T.min(rows * {self.tiling.rows}, {last}) + r)"

    def _unit(self) -> str:
        return f"({self._start_of_vector} + l)"

    @property
    def _start_of_vector(self) -> str:
        first = f"tile * {self.tiling.units}"
        last = self.recurrence.hidden - self.tiling.units
        if last % self.tiling.units:
            first = f"T.min({first}, {last})"
        return f"({first} + n * {self.tiling.lanes})"

    def _time(self, sample: str) -> str:
        """Return the time of a step of a direction."""
        length = f'T.Cast("int64", lengths[{sample}])' if "lengths" in self.dtypes else str(self.times)
        backward = (
            f"{length} - 1 - s" if "lengths" not in self.dtypes else f"T.Select(s < {length}, {length} - 1 - s, s)"
        )
        if not any(self.recurrence.reverse):
            return "s"
        if all(self.recurrence.reverse):
            return f"({backward})"
        reverses = [at for at, reverse in enumerate(self.recurrence.reverse) if reverse]
        return f"T.Select({self._direction} == {reverses[0]}, {backward}, s)"

    def _gate(self, gate: int, sample: str) -> str:
        """Return the products of the inputs for a gate."""
        hidden, time = self.recurrence.hidden, self._time(sample)
        first = f"{self._direction} * {self.recurrence.gates * hidden} + {gate * hidden}"
        if not self.recurrence.packed_times:
            return f"gates[{time}, {sample}, {first} + {self._unit()}]"
        block = self.tiling.lanes  # a vector is a block of channels
        return f"gates[0, ({first} + {self._start_of_vector}) // {block}, 0, ({time}) * {self.samples} + {sample}, l]"

    # -- parts --

    def _start(self) -> None:
        for state, name in zip(self._states, ("hidden", "cell"), strict=False):
            with self._loop("b", self.rows), self._loop("u", self.recurrence.hidden):
                given = f"{name}[{self._direction}, {self._sample('b')}, u]"
                self._line(f"{state}[task, 0, b, u] = {given if name in self.dtypes else 'T.float32(0)'}")

    def _finish(self) -> None:
        for state, name in zip(self._states, ("last_hidden", "last_cell"), strict=False):
            with self._loop("b", self.rows), self._loop("u", self.recurrence.hidden):
                self._line(f"{name}[{self._direction}, {self._sample('b')}, u] = {state}[task, {self.times % 2}, b, u]")

    def _phase(self, at: int, phase: list[int], last: bool) -> None:
        row_tiles = -(-self.rows // self.tiling.rows)
        tile = contextlib.ExitStack()
        with tile:
            if self.tiling.shares > 1:
                each = -(-self.tiles // self.tiling.shares)
                tile.enter_context(self._loop("share", self.tiling.shares, "parallel"))
                tile.enter_context(self._loop("one", each))
                guard = self.tiles % self.tiling.shares
                index = f"share * {each} + one"
                self._line(f"tile: T.int64 = T.min({index}, {self.tiles - 1})" if guard else f"tile: T.int64 = {index}")
            else:
                tile.enter_context(self._loop("tile", self.tiles))
            tile.enter_context(self._loop("rows", row_tiles))
            self._product(at, phase)
            self._gates(at, last)

    def _product(self, at: int, phase: list[int]) -> None:
        of = self.recurrence
        row, sample = self._row(), self._sample(self._row())
        for position, gate in enumerate(phase):
            with self._vectors():
                # A GRU's candidate resets only the product, so its gate is added behind.
                starts_empty = of.kind == "gru" and of.reset_after and gate == 2
                given = self._gate(gate, sample)
                if starts_empty:
                    bias = f"reset_bias[{self._direction}, {self._unit()}]"
                    given = bias if "reset_bias" in self.dtypes else "T.float32(0)"
                self._line(f"sums{at}[{position}, r, n, l] = {given}")
        unrolled = next(count for count in (4, 2, 1) if of.hidden % count == 0)
        source = "kept[task, 0" if at else "h[task, s % 2"
        with self._loop("outer", of.hidden // unrolled), self._loop("inner", unrolled, "unroll"):
            with self._loop("g", len(phase), "unroll"), self._vectors():
                k = f"outer * {unrolled} + inner"
                self._line(
                    f"sums{at}[g, r, n, l] = sums{at}[g, r, n, l] + {source}, {row}, {k}]"
                    f" * weight{at}[{self._direction}, tile, {k}, g, n * {self.tiling.lanes} + l]"
                )

    def _gates(self, at: int, last: bool) -> None:
        {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[self.recurrence.kind](at)
        if last:
            self._store(at)

    def _assign(self, place: str, value: str) -> str:
        """Assign to a tile, in a loop of its own: one around several would make local buffers scalars."""
        with self._vectors():
            self._line(f"{place} = {value}")
        return place

    def _set(self, at: int, slot: int, value: str) -> str:
        return self._assign(f"made{at}[{slot}, r, n, l]", value)

    def _state(self, name: str, new: bool = False) -> str:
        return f"{name}[task, {'(s + 1)' if new else 's'} % 2, {self._row()}, {self._unit()}]"

    def _lstm(self, at: int) -> None:
        of = self.recurrence
        sums = [f"sums{at}[{gate}, r, n, l]" for gate in range(4)]

        def peek(which: int, cell: str) -> str:
            given = f" + peephole[{self._direction}, {which}, {self._unit()}] * {cell}"
            return given if "peephole" in self.dtypes else ""

        cell = self._state("c")
        i = self._set(at, 0, self._activate(0, sums[0] + peek(0, cell)))
        f = self._set(at, 1, f"T.float32(1) - {i}" if of.coupled else self._activate(0, sums[1] + peek(1, cell)))
        g = self._set(at, 2, self._activate(1, sums[2]))
        new = self._set(at, 3, f"{f} * {cell} + {i} * {g}")
        o = self._set(at, 4, self._activate(0, sums[3] + peek(2, new)))
        self._set(at, 0, f"{o} * {format_activation(of.activations[2], new)}")

    def _gru(self, at: int) -> None:
        of, h = self.recurrence, self._state("h")
        if at == 0:
            z = self._set(0, 1, self._activate(0, "sums0[0, r, n, l]"))
            r = self._set(0, 2, self._activate(0, "sums0[1, r, n, l]"))
        if not of.reset_after and at == 0:
            self._assign(f"kept[task, 0, {self._row()}, {self._unit()}]", f"{r} * {h}")
            self._assign(f"kept[task, 1, {self._row()}, {self._unit()}]", z)
            return
        if of.reset_after:
            sample = self._sample(self._row())
            candidate = f"{self._gate(2, sample)} + {r} * sums0[2, r, n, l]"
        else:
            candidate = "sums1[0, r, n, l]"
            z = self._set(1, 1, f"kept[task, 1, {self._row()}, {self._unit()}]")
        n = self._set(at, 3, self._activate(1, candidate))
        self._set(at, 0, f"{n} + {z} * ({h} - {n})")

    def _rnn(self, at: int) -> None:
        self._set(at, 0, self._activate(0, f"sums{at}[0, r, n, l]"))

    def _store(self, at: int) -> None:
        """Store the new states, and the output; samples that have ended keep their states."""
        sample = self._sample(self._row())
        made = {"h": f"made{at}[0, r, n, l]", "c": f"made{at}[3, r, n, l]"}
        output = made["h"]
        running = f's < T.Cast("int64", lengths[{sample}])'
        for name in self._states:
            value = made[name]
            if "lengths" in self.dtypes:
                value = f"T.Select({running}, {value}, {self._state(name)})"
            self._assign(self._state(name, new=True), value)
        if "lengths" in self.dtypes:
            output = f"T.Select({running}, {output}, T.float32(0))"
        unit = f"{self._direction} * {self.recurrence.hidden} + {self._unit()}"
        self._assign(f"outputs[{self._time(sample)}, {sample}, {unit}]", output)

    def _activate(self, which: int, value: str) -> str:
        return format_activation(self.recurrence.activations[which], value, self.recurrence.clip)


def _buffer(*shape: int, dtype: str = "float32") -> str:
    return f'T.Buffer(({", ".join(f"T.int64({size})" for size in shape)},), "{dtype}")'
