"""Measure how repeatable latencies are, on a quiet and on a busy machine, and which slowdowns are detected.

    python -m bench.measuring [--long] [--network NAME ...] [--condition NAME ...] [--repeats N] [--libraries FOLDER]

Each measurement is made as `evaluate` makes it, in new processes: a library and ONNX Runtime on the same network, in
turns, with the state of the machine beside each turn. A row for each network, condition and state of the machine:

  - spread: how far the latencies shown without a badge differ from run to run (largest over smallest, less 1), of how
    many runs; badged: the same for those with a badge;
- ratio: the median ratio to ONNX Runtime, and how far it differs from run to run;
  - found: of comparisons of the library with itself, made 5 % slower, how many find it slower, as the gate of a release
    does (more than 2 %); false: of comparisons with itself, how many find a difference. The slower one's times are
    those of a second process of the same library, times 1.05.

Conditions: quiet; one and two busy processes; memory: a process that copies 256 MB again and again; on machines with
more cores than threads also near and far: all processes kept on the pair of cores with the shortest and the longest
round trip. `alone` says how often two candidates that differ by 5 % are ranked right when each is timed by itself at
its own time, `in pairs` when nine times of each are taken in turns, as a search does with a candidate and the fastest
one so far.

The short form (some minutes) takes the two smallest networks; --long repeats all four (7 us to 50 ms) 20 times (hours).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.side_by_side import Peer, environment
from bench.threads import Clock, Opened, entry_of, library_of
from tvmflow.evaluation.interleaved_timing import TimedModel, Turn, classify_turns, measure_interleaved, ratio_of
from tvmflow.evaluation.latency import LatencyRules, summarize_turns
from tvmflow.evaluation.machine_state import host_probe, host_watch

# About 7 us, 0.2 ms, 5 ms and 50 ms on two threads.
NETWORKS = ("digits", "mobilenet_quarter", "mobilenet_v2", "resnet50")
SHORT = NETWORKS[:2]
CONDITIONS = ("quiet", "one", "two", "memory")
_SLOWER, _ALLOWED = 1.05, 1.02  # the slowdown that is made, and release.max_slowdown
_MEMORY = "import numpy as np\na = np.ones(32 << 20)\nb = np.empty_like(a)\nwhile True: b[:] = a"
_BUSY = "while True: pass"
PLACE_ANEW = 0  # runs that ask a peer to do so
_TUNER_REPEATS, _TUNER_PAIRS = 3, 9  # of tune.measure_repeats, and of tuning/measure/kernel_bench.py
_APART = 10  # turns that lie between the times of two candidates of one search


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--network", nargs="+")
    parser.add_argument("--condition", nargs="+", choices=[*CONDITIONS, "near", "far"])
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--turn-ms", type=float, default=50.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--libraries", type=Path, help="where libraries and ONNX files are kept, and found again")
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, file = options.serve
        _serve(kind, file, options.threads)
        return
    networks = options.network or (NETWORKS if options.long else SHORT)
    conditions = options.condition or (CONDITIONS if options.long else CONDITIONS[::2])
    repeats = options.repeats or (20 if options.long else 6)
    rules = LatencyRules(10, options.turns, options.turn_ms, 120.0, 0.1)
    with tempfile.TemporaryDirectory() as place:
        folder = options.libraries or Path(place)
        print(
            f"{'network':14}{'condition':>10}{'cores ns':>9}{'ms':>10}{'spread':>8}{'of':>4}{'badged':>8}{'of':>4}"
            f"{'ratio':>7}{'spread':>8}{'found':>8}{'false':>8}{'alone':>8}{'in pairs':>9}"
        )
        for name in networks:
            library, model = library_of(folder, name, options.threads), _onnx(folder, name)
            for condition in conditions:
                with _condition(condition, options.threads):
                    found = _Found()
                    for _ in range(repeats):
                        found.add(_measured(library, model, rules, options.threads), rules, options.threads)
                for line in found.rows(name, condition):
                    print(line, flush=True)


@dataclass
class _Found:
    """What several measurements said. by_state: rounded log of the round trip -> latencies, badged ones, ratios."""

    clean: dict[int, list[float]] = field(default_factory=dict)
    badged: dict[int, list[float]] = field(default_factory=dict)
    ratios: dict[int, list[float]] = field(default_factory=dict)
    trips: dict[int, list[float]] = field(default_factory=dict)
    found: list[bool] = field(default_factory=list)
    false: list[bool] = field(default_factory=list)
    alone: list[bool] = field(default_factory=list)
    in_turns: list[bool] = field(default_factory=list)

    def add(self, turns: dict[str, list[Turn]], rules: LatencyRules, threads: int) -> None:
        measured = summarize_turns({name: turns[name] for name in ("library", "onnxruntime")}, rules, threads)
        latency, advantage = measured.latency["library"], measured.advantages["onnxruntime"]
        state = self._state_of(latency.round_trip_ns)
        (self.badged if latency.badges else self.clean).setdefault(state, []).append(latency.median_ms)
        if advantage.times_faster is not None:
            self.ratios.setdefault(self._state_of(advantage.round_trip_ns), []).append(advantage.times_faster)
        slower = [Turn(np.asarray(one.times_s) * _SLOWER, one.wall_s, one.state) for one in turns["again"]]
        self.found.append(_is_slower(turns["library"], slower, threads))
        self.false.append(_differs(turns["library"], turns["again"], threads))
        self._rank([turn.median_s for turn in turns["library"]], [turn.median_s for turn in slower])

    def _state_of(self, trip_ns: float | None) -> int:
        """Return the number of a state, that of a known one where its round trips are about the same."""
        trip = trip_ns or 1.0
        for state, trips in self.trips.items():
            if max(trip, median(trips)) <= 1.5 * min(trip, median(trips)):
                trips.append(trip)
                return state
        self.trips[len(self.trips)] = [trip]
        return len(self.trips) - 1

    def _rank(self, a: Sequence[float], b: Sequence[float]) -> None:
        """Rank two candidates, of which B is slower: by three turns of each at their own times, and by turns side by
        side.
        """
        for at in range(0, len(a) - _APART - _TUNER_REPEATS, _TUNER_REPEATS):
            later = at + _APART
            self.alone.append(median(a[at : at + _TUNER_REPEATS]) < median(b[later : later + _TUNER_REPEATS]))
        for at in range(0, len(a) - _TUNER_PAIRS + 1, _TUNER_PAIRS):
            pairs = zip(a[at : at + _TUNER_PAIRS], b[at : at + _TUNER_PAIRS], strict=True)
            self.in_turns.append(median(theirs / ours for ours, theirs in pairs) > 1)

    def rows(self, name: str, condition: str) -> Iterator[str]:
        for at, state in enumerate(sorted(self.trips, key=lambda one: median(self.trips[one]))):
            trip = median(self.trips[state])
            clean, badged, ratios = (found.get(state, []) for found in (self.clean, self.badged, self.ratios))
            shown = median(clean or badged or [float("nan")])
            once = (
                "" if at else f"{_share(self.found)}{_share(self.false)}{_share(self.alone)}{_share(self.in_turns, 9)}"
            )
            yield (
                f"{name:14}{condition:>10}{trip if trip > 1 else 0:9.0f}{shown:10.4g}{_spread(clean)}{len(clean):4}"
                f"{_spread(badged)}{len(badged):4}{median(ratios or [float('nan')]):7.2f}{_spread(ratios)}{once}"
            )


def _spread(values: Sequence[float]) -> str:
    return f"{100 * (max(values) / min(values) - 1):7.1f}%" if len(values) > 1 else f"{'-':>8}"


def _share(found: Sequence[bool], width: int = 8) -> str:
    return f"{f'{sum(found)}/{len(found)}':>{width}}"


def _is_slower(a: Sequence[Turn], b: Sequence[Turn], threads: int) -> bool:
    estimate, _, _ = ratio_of(classify_turns({"a": a, "b": b}, threads), "a", "b")
    return estimate.low is not None and estimate.low > _ALLOWED


def _differs(a: Sequence[Turn], b: Sequence[Turn], threads: int) -> bool:
    return _is_slower(a, b, threads) or _is_slower(b, a, threads)


def _measured(library: Path, model: Path, rules: LatencyRules, threads: int) -> dict[str, list[Turn]]:
    """Return the turns of a library, of a second process with it, and of ONNX Runtime."""
    serve = partial(_serving, threads)
    starts = {
        "library": serve("library", library),
        "again": serve("library", library),
        "onnxruntime": serve("onnx", model),
    }
    with contextlib.ExitStack() as stack:
        peers = {name: stack.enter_context(peer) for name, peer in starts.items()}
        for peer in peers.values():
            if peer.ask(1) is None:
                raise SystemExit(f"{peer.label} does not run")
        contestants = [
            TimedModel(name, peer.time_runs, peer.process.pid, partial(_relocate, peer)) for name, peer in peers.items()
        ]
        return measure_interleaved(contestants, rules.turn_rules, host_watch(threads))


def _relocate(peer: Peer) -> None:
    peer.ask(PLACE_ANEW)


def _serving(threads: int, kind: str, file: Path) -> Peer:
    arguments = ["bench.measuring", "--threads", str(threads), "--serve", kind, str(file)]
    return Peer(f"{kind} {file.name}", arguments, environment(threads))


def _serve(kind: str, file: str, threads: int) -> None:
    """Be a Peer: reply to each line of the standard input with the times of so many runs."""
    opens = partial(_library_runs if kind == "library" else _onnx_runs, Path(file), threads)
    time_runs = opens()
    for line in sys.stdin:
        count = int(line)
        if count == PLACE_ANEW:
            time_runs = opens()
        print(json.dumps({"times_s": [round(one, 10) for one in time_runs(max(1, count))]}), flush=True)


def _library_runs(file: Path, threads: int) -> Any:
    """Return what times runs of a copy of a library, beside some memory: no other copy lies alike."""
    pad = bytearray(64 * secrets.randbelow(64))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(file, folder))
        clock, opened = _clock(), Opened(copy, threads)

    def runs(count: int, _kept: Any = pad) -> list[float]:
        return list(clock.times(opened, 1e9, count))

    return runs


@functools.cache
def _clock() -> Clock:
    with tempfile.TemporaryDirectory() as folder:
        return Clock(Path(folder))


def _onnx_runs(file: Path, threads: int) -> Any:
    import onnxruntime

    from tvmflow.evaluation.latency import make_timer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    kinds = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    feed = {
        one.name: np.ones(one.shape, kinds[one.type])
        if one.type in kinds
        else generator.standard_normal(one.shape, np.float32)
        for one in session.get_inputs()
    }
    return make_timer(lambda: session.run(None, feed))


def _onnx(folder: Path, name: str) -> Path:
    """Return the ONNX file of a network, made where the folder has none."""
    path = folder / f"{name.replace('/', '_')}.onnx"
    if not path.is_file():
        from tvmflow.frontends.pytorch.exported_program import ExportedModel

        entry = entry_of(name)
        ExportedModel(entry.make(), entry.inputs).to_onnx(path)
    return path


@contextlib.contextmanager
def _condition(name: str, threads: int) -> Iterator[None]:
    """Bring the machine into a condition, and back."""
    cpus = os.sched_getaffinity(0)
    if name in ("near", "far"):
        os.sched_setaffinity(0, _pair(sorted(cpus), name == "far"))
    programs = {"one": [_BUSY], "two": [_BUSY] * 2, "memory": [_MEMORY]}.get(name, [])
    others = [_stranger(program) for program in programs]
    try:
        yield
    finally:
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.sched_setaffinity(0, cpus)


def _stranger(program: str) -> int:
    """Start a program that is nobody's child here, so that it counts among the processes of others; return its id."""
    shell = 'setsid "$0" -c "$1" > /dev/null 2>&1 & echo $!'
    started = subprocess.run(
        ["sh", "-c", shell, sys.executable, program], stdout=subprocess.PIPE, text=True, check=True
    )
    return int(started.stdout)


def _pair(cpus: Sequence[int], far: bool) -> tuple[int, int]:
    probe = host_probe()
    if probe is None or len(cpus) < 3:
        raise SystemExit("near and far pairs need more than two CPUs and a compiler of C")
    trips = {pair: probe.probe_cpus(pair)[1] or 0.0 for pair in combinations(cpus, 2)}
    return (max if far else min)(trips, key=lambda pair: trips[pair])


if __name__ == "__main__":
    main()
