"""Run the candidates of a benchmark in a process each, and time them in alternating turns."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from tvmflow.evaluation.interleaved_timing import TimedModel, Turn, TurnRules, foreign_load, measure_interleaved
from tvmflow.evaluation.latency import make_timer
from tvmflow.evaluation.machine_state import host_watch
from tvmflow.evaluation.turn_statistics import ratio_between

TURN_S, LEAST_RUNS = 0.3, 5
MAX_FOREIGN_LOAD = 0.1


def ratio_of(ours: Sequence[Turn], theirs: Sequence[Turn]) -> float:
    """Return the median of the rounds' ratios, below 1 where ours are faster."""
    return median(a.median_s / b.median_s for a, b in zip(ours, theirs, strict=True))


def shows_a_difference(ours: Sequence[Turn], theirs: Sequence[Turn]) -> bool:
    """Return whether the interval over the rounds leaves out 1."""
    ratio = ratio_between([turn.median_s for turn in ours], [turn.median_s for turn in theirs])
    return ratio.low is not None and ratio.high is not None and not ratio.low <= 1.0 <= ratio.high


def milliseconds(turns: Sequence[Turn]) -> float:
    """Return the median of the turns' medians."""
    return median(turn.median_s for turn in turns) * 1e3


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def print_if_busy(turns: Mapping[str, list[Turn]]) -> None:
    """Say what other processes took of the machine, where it was more than is fair."""
    load = foreign_load([turn for taken in turns.values() for turn in taken])
    if load is None or load > MAX_FOREIGN_LOAD:
        print(
            f"  busy machine: others took {'an unknown share' if load is None else f'{load:.0%}'} of it, "
            f"at most {MAX_FOREIGN_LOAD:.0%} is fair: measure again",
            flush=True,
        )


def turns_of(starts: Mapping[str, Callable[[], Peer]], rules: TurnRules, threads: int = 2) -> dict[str, list[Turn]]:
    """Start processes one after the other; return the turns of those that run at all, each on so many threads."""
    with contextlib.ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for name, start in starts.items():
            peer = stack.enter_context(start())
            if peer.ask(1) is not None:  # loads and compiles
                peers[name] = peer
            peer.send(signal.SIGSTOP)
        contestants = [TimedModel(name, peer.time_runs, peer.process.pid) for name, peer in peers.items()]
        return measure_interleaved(contestants, rules, host_watch(threads))


def environment(threads: int) -> dict[str, str]:
    """Return the variables under which a peer runs with so many threads."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "TVM_NUM_THREADS": str(threads)}


class Peer:
    """A process that runs a network in one way, a turn each time it is asked. arguments: of Python, behind -m;
    variables: its environment.
    """

    def __init__(self, label: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self.label = label
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=dict(variables),
            start_new_session=True,
        )

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()
        self.errors.close()

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def time_runs(self, count: int) -> list[float]:
        """Return the seconds of so many runs."""
        reply = self.ask(count)
        if reply is None:
            raise SystemExit(f"{self.label} ended while it was measured; why is above")
        times: list[float] = reply["times_s"]
        return times

    def ask(self, count: int) -> dict[str, Any] | None:
        """Return the reply of the process, None where it ended; then why is printed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                reply: dict[str, Any] = json.loads(line)
                return reply
        self.errors.seek(0)
        print(f"{self.label}: {(self.errors.read().strip().splitlines() or ['failed'])[-1][:150]}", file=sys.stderr)
        return None


def serve(run: Callable[[], Any]) -> None:
    """Be a Peer: time as many runs as each line of the standard input says."""
    time_runs = make_timer(run)
    for line in sys.stdin:
        print(json.dumps({"times_s": time_runs(int(line))}), flush=True)
