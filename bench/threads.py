"""Compare each network on one and on several threads, in short interleaved turns.

    python -m bench.threads [NAME ...] [--threads 2 4 8 16] [--turns 30] [--libraries FOLDER] [--before FOLDER]

Ten networks below 1 ms (bench/small_networks.py) and some of bench/zoo.py, float32, default schedules, built for the
number of threads that they run on. A row for each number of threads that there are CPUs for: medians, and the median
over rounds of the time at so many threads over that at one (1 is even; above 1.02 is marked). Two threads run on the
pair of CPUs with the shortest round trip of a line of the cache, and on that with the longest, where the process has
more than two; the round trips are measured before and after each row. Half of the rounds count: those with the fewest
involuntary context switches. --libraries: where libraries are kept and found again, so that networks need not be built
here; --before: libraries of an earlier version in a folder of that kind, run at as many threads in the same rounds:
then `before` is the time now over the time then.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.evaluation.interleaved_timing import (
    TimedModel,
    Turn,
    TurnRules,
    classify_turns,
    measure_interleaved,
    ratio_of,
)
from tvmflow.evaluation.machine_state import host_probe, host_watch
from tvmflow.support.runtime_binding import network_binding

SOME = ("mobilenet_v3_small", "shufflenet_v2_x1_0", "squeezenet1_1", "resnet18")
TURN_S, MOST_RUNS = 0.05, 100_000
MOST_RATIO = 1.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks; by default the ten small ones and " + ", ".join(SOME))
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--libraries", type=Path)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    names = options.names or [*_small(), *SOME]
    with tempfile.TemporaryDirectory() as place:
        clock = Clock(Path(place))
        folder = options.libraries or Path(place)
        rows = _measured(names, options, folder, clock)
    over = [row for row in rows if row.ratio > MOST_RATIO]
    print(
        f"{len(over)} of {len(rows)} rows above {MOST_RATIO}; geometric mean "
        f"{geometric_mean([row.ratio for row in rows]):.3f}"
    )
    if options.before:
        changes = [row.change for row in rows if row.change]
        print(f"time now over before: geometric mean {geometric_mean(changes):.3f}, most {max(changes):.3f}")


@dataclass(frozen=True)
class Row:
    """ratio: time at several threads over that at one; change: over that of an earlier version at as many threads, 0
    without any.
    """

    ratio: float
    change: float


def _measured(names: Sequence[str], options: argparse.Namespace, folder: Path, clock: Clock) -> list[Row]:
    print(
        f"{'network':31}{'threads':>8}{'used':>5}{'CPUs':>9}{'trip ns':>15}"
        f"{'one us':>10}{'us':>10}{'ratio':>7}{'before':>8}"
    )
    rows = []
    cpus = sorted(os.sched_getaffinity(0))
    for threads in (count for count in options.threads if count <= len(cpus)):
        places = _places(cpus, threads, clock)
        for name in names:
            library = library_of(folder, name, threads)
            for place in places:
                rows.append(_row(name, library, options, threads, place, clock))
    return rows


def _row(
    name: str, library: Path, options: argparse.Namespace, threads: int, place: Sequence[int], clock: Clock
) -> Row:
    """Measure a library on some CPUs, print what was found and return it."""
    with _kept_on(place):
        contestants = {"one": Opened(library, 1), "many": Opened(library, threads)}
        if options.before:
            contestants["before"] = Opened(library_of(options.before, name, threads), threads)
        trips = [clock.round_trip_ns(place)]
        turns = clock.turns(contestants, options.turns, threads)
        trips.append(clock.round_trip_ns(place))
        used = contestants["many"].used
    times = {name: median(turn.median_s for turn in taken) for name, taken in turns.items()}
    found = Row(_ratio(turns, "many", "one"), _ratio(turns, "many", "before") if "before" in turns else 0)
    shown = f"{place[0]},{place[1]}" if len(place) == 2 else "any"
    print(
        f"{name:31}{threads:8}{used:5}{shown:>9}{trips[0]:7.0f} "
        f"{trips[1]:7.0f}{1e6 * times['one']:10.2f}{1e6 * times['many']:10.2f}{found.ratio:7.3f}"
        + (f"{found.change:8.3f}" if found.change else f"{'':8}")
        + ("  above" if found.ratio > MOST_RATIO else ""),
        flush=True,
    )
    return found


def _ratio(turns: dict[str, list[Turn]], ours: str, theirs: str) -> float:
    """Return the time of ours over that of theirs, in rounds of one state."""
    return 1 / ratio_of(classify_turns(turns, threads=2), ours, theirs)[0].value


def _places(cpus: Sequence[int], threads: int, clock: Clock) -> list[list[int]]:
    """Return the CPUs to run on: for two threads the nearest and the farthest pair."""
    if threads != 2 or len(cpus) == 2:
        return [list(cpus)]
    by_trip = sorted(combinations(cpus, 2), key=clock.round_trip_ns)
    return [list(by_trip[0]), list(by_trip[-1])]


@contextmanager
def _kept_on(cpus: Sequence[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Opened:
    """An instance of a library on random inputs, with arrays that C runs it on."""

    def __init__(self, library: Path, threads: int) -> None:
        self.network = network_binding().Network(library, threads)
        self._threads = threads
        draw = np.random.default_rng(0)
        self._inputs = [_drawn(spec, draw) for spec in self.network.inputs]
        self._outputs = [_line_of(np.zeros(spec.shape, spec.dtype)) for spec in self.network.outputs]
        self.inputs = (ctypes.c_void_p * len(self._inputs))(*(array.ctypes.data for array in self._inputs))
        self.outputs = (ctypes.c_void_p * len(self._outputs))(*(array.ctypes.data for array in self._outputs))

    @property
    def used(self) -> int:
        """Return how many threads the next run uses; of an earlier version of the library as many as were asked for."""
        try:
            return int(self.network.threads)
        except network_binding().NetworkError:
            return self._threads


def _drawn(spec: Any, draw: np.random.Generator) -> Any:
    if spec.dtype.startswith("float"):
        return _line_of(draw.standard_normal(spec.shape).astype(spec.dtype))
    return _line_of(np.ones(spec.shape, spec.dtype))


def _line_of(array: Any) -> Any:
    """Return an array with the same numbers that begins at a line of the cache."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    found = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


class Clock:
    """bench/threads.c, compiled to a folder."""

    def __init__(self, folder: Path) -> None:
        source, library = Path(__file__).with_suffix(".c"), folder / "threads.so"
        flags = ("-std=c11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", f"-I{RUNTIME / 'include'}")
        subprocess.run(["gcc", *flags, "-o", library, source], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.turn.restype = ctypes.c_long
        self._times = np.zeros(MOST_RUNS)

    def round_trip_ns(self, cpus: Sequence[int]) -> float:
        """Return the round trip between the first and the last of some CPUs, 0 where it cannot be measured."""
        probe = host_probe()
        return (probe.probe_cpus((cpus[0], cpus[-1]))[1] if probe else None) or 0.0

    def turns(self, contestants: dict[str, Opened], count: int, threads: int) -> dict[str, list[Turn]]:
        """Return the turns of libraries in this process, with the state of the machine beside each."""
        taking = [TimedModel(name, partial(self.times, opened, 1e9)) for name, opened in contestants.items()]
        return measure_interleaved(taking, TurnRules(count, TURN_S, 3), host_watch(threads))

    def times(self, opened: Opened, seconds: float, most: int) -> Any:
        """Return the seconds of single runs: for so many seconds, at most so many."""
        network = opened.network
        times = self._times.ctypes.data_as(ctypes.c_void_p)
        done = self._library.turn(
            ctypes.byref(network._api),
            network._handle,
            opened.inputs,
            opened.outputs,
            ctypes.c_double(seconds),
            times,
            ctypes.c_long(min(most, MOST_RUNS)),
        )
        assert done > 0, f"{network.name} failed"
        return self._times[:done].copy()


def _small() -> dict[str, Any]:
    from bench.small_networks import SMALL

    return SMALL


def entry_of(name: str) -> Any:
    """Return a network by its name: a small one, or one of bench/zoo.py."""
    from bench.zoo import network_named

    return _small().get(name) or network_named(name)


def library_of(folder: Path, name: str, threads: int) -> Path:
    """Return the library of a network for so many threads, built where the folder has none."""
    path = folder / f"{name.replace('/', '_')}.{threads}.so"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _build(path, name, threads)
    return path


def _build(path: Path, name: str, threads: int) -> None:
    import torch

    from tvmflow.backends.cpu import CpuBackend
    from tvmflow.codegen.compile import build_scheduled
    from tvmflow.codegen.network.description import Network
    from tvmflow.codegen.network.link import write_network
    from tvmflow.config.stage_params import TuneParams
    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.targets.resolve import host_target
    from tvmflow.toolchain.compilers import Command
    from tvmflow.tuning.winograd_choice import choose_by_cost

    entry = entry_of(name)
    module = canonicalize(ExportedModel(entry.make(), entry.inputs).to_relax())
    backend = CpuBackend(replace(host_target(), threads=threads))
    packed = backend.pack(module, None)[0]
    bounds = TuneParams().winograd_bounds
    scheduled = build_scheduled(packed, backend, {}, winograd=choose_by_cost(packed, backend, bounds))
    with torch.inference_mode():
        made = entry.make()(*map(torch.from_numpy, entry.samples()))
    outputs = tuple(f"output{at}" for at in range(len(torch.utils._pytree.tree_leaves(made))))
    write_network(path, scheduled, Network("bench@cpu:float32", entry.inputs, outputs, threads), Command(("gcc",)))


if __name__ == "__main__":
    main()
