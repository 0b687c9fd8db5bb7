"""What people would use instead, measured beside the library: same input, same threads, in turns with it.

A peer runs the model as it came, or what was made of it, so each lives in a sandbox of its own. It runs it in the
fastest way that its framework has and that computes the same; one that cannot be run is left out, and why is said.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmflow.evaluation.fastest_variant import FastestVariant, TimedRuns, timer_of
from tvmflow.evaluation.interleaved_timing import TimedModel
from tvmflow.frontends.registry import frontend_named, load_source
from tvmflow.frontends.source_model import (
    Arrays,
    SourceDescription,
    Way,
    batch_at,
    by_sample,
    in_order,
    read_description,
)
from tvmflow.sandbox.process import Policy, Sandbox, memory_for
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import TvmflowError
from tvmflow.support.files import load_arrays

REPLY_TIMEOUT_S = 600.0  # of each reply: also the longest that a peer may take to start
SOURCE = "source"  # the peer that is the model's own framework


@dataclass(frozen=True)
class TimedBaseline(TimedModel):
    """variant: the way of its framework in which it runs."""

    variant: str = ""


@dataclass(frozen=True)
class Baselines:
    """left_out: name of a peer, or of one of its ways ("source, torch.compile"), and why it is not measured."""

    contestants: tuple[TimedBaseline, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the scorecard."""
        return {
            "peer_variants": {peer.name: peer.variant for peer in self.contestants},
            "peers_left_out": dict(self.left_out),
        }


@contextlib.contextmanager
def open_baselines(
    names: tuple[str, ...], fetched: Path, onnx_file: Path, threads: int
) -> Iterator[Callable[[], Baselines]]:
    """Start those peers that can run this model, each on `threads` threads of this machine; they sleep between their
    turns.

    Yields a function that waits for all of them: they load beside each other, and beside what is done before it is
    called. The source framework is no peer of its own where another one is the same runtime.
    """
    same = frontend_named(read_description(fetched).framework).same_peer
    with contextlib.ExitStack() as stack:
        started = {
            name: stack.enter_context(start_baseline(name, fetched, onnx_file, threads, waits=False))
            for name in names
            if not (name == SOURCE and same in names)
        }
        yield lambda: _chosen(started)


def _chosen(started: Mapping[str, Sandbox]) -> Baselines:
    """Wait until all have loaded, then let one after the other choose its way, while the others are idle."""
    contestants, left_out = [], dict[str, str]()
    for name, peer in started.items():
        with _left_out_on_error(name, left_out):
            peer.wait()
    for name, peer in started.items():
        if name in left_out:
            continue
        with _left_out_on_error(name, left_out):
            reply = peer.call("choose")
            left_out |= {", ".join(filter(None, (name, way))): why for way, why in reply["left_out"].items()}
            if reply["variant"] is not None:
                time_runs = functools.partial(_timed_runs, peer)
                relocate = functools.partial(_relocate, peer)
                contestants.append(TimedBaseline(name, time_runs, peer.group, relocate, reply["variant"]))
    return Baselines(tuple(contestants), left_out)


@contextlib.contextmanager
def _left_out_on_error(name: str, left_out: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except TvmflowError as error:
        left_out[name] = error.found


def _timed_runs(peer: Sandbox, count: int) -> list[float]:
    times: list[float] = peer.call("time_runs", count=count)
    return times


def _relocate(peer: Sandbox) -> None:
    peer.call("relocate")


def start_baseline(name: str, fetched: Path, onnx_file: Path, threads: int, *, waits: bool = True) -> Sandbox:
    """Return a running sandbox that serves `choose`, `time_runs` and `relocate`, as Peer does. waits: until it has
    loaded the model.
    """
    arguments = {"name": name, "fetched": str(fetched), "onnx_file": str(onnx_file), "threads": threads}
    memory = memory_for(*fetched.iterdir(), *onnx_file.parent.iterdir())
    policy = Policy(REPLY_TIMEOUT_S, reads=(fetched, onnx_file.parent), memory_bytes=memory)
    return Sandbox("tvmflow.evaluation.baselines:Peer", arguments, policy, waits=waits)


class Peer:
    """A peer by name with its input set: what runs inside the sandbox. It must compute what import_model kept of the
    source.
    """

    def __init__(self, name: str, fetched: str, onnx_file: str, threads: int) -> None:
        self._time_runs: TimedRuns | None = None
        self._variant: str | None = None
        self._ways_of: Callable[[], Sequence[Way]]
        self._ways: FastestVariant | None = None
        self._left_out: dict[str, str] = {}
        folder, file = Path(fetched), Path(onnx_file)
        description = read_description(folder)
        inputs = batch_at(Samples.load(folder / "evaluation.npz").inputs, 0, description.batch)
        if name == SOURCE:
            source = load_source(folder, description)
            source.use_threads(threads)
            self._ways_of = functools.partial(source.ways, *inputs)
        elif file.exists():
            self._ways_of = functools.partial(_onnxruntime, file, inputs, description, threads)
        else:
            self._left_out[""] = _why_no_onnx(file.parent)
            return
        expected = batch_at(load_arrays(file.parent / "reference.npz", "evaluation"), 0, description.batch)
        self._ways = FastestVariant(self._ways_of(), expected, lambda outputs: _by_sample(outputs, description.batch))

    def choose(self) -> dict[str, Any]:
        """Choose the way in which `time_runs` runs. variant: its name, None where this peer cannot run this model.

        left_out: why, by the name of a way, "" for all of them.
        """
        chosen = self._ways.choose() if self._ways else None
        if self._ways:
            self._left_out |= self._ways.left_out
        self._variant, self._time_runs = chosen or (None, None)
        return {"variant": self._variant, "left_out": self._left_out}

    def relocate(self) -> None:
        """Prepare the way that was chosen again, in other memory."""
        way = next(way for way in self._ways_of() if way.name == self._variant)
        self._time_runs = timer_of(way.prepare())

    def time_runs(self, count: int) -> list[float]:
        """Run count times and return as many times in seconds."""
        assert self._time_runs is not None
        return self._time_runs(count)


def _by_sample(outputs: Arrays, batch: int) -> Arrays:
    return tuple(by_sample(output, batch) for output in outputs)


def _why_no_onnx(imported: Path) -> str:
    file = imported / "import.json"
    facts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return f"the model has no ONNX form: {facts.get('no_onnx', 'none was written')}"


def _onnxruntime(onnx_file: Path, inputs: Arrays, description: SourceDescription, threads: int) -> tuple[Way, ...]:
    from tvmflow.frontends.onnx.frontend import open_session, session_ways

    session = open_session(onnx_file, threads)
    names = [entry.name for entry in session.get_inputs()]
    order = in_order(onnx_file.name, names, description.inputs)
    return session_ways(session, {names[at]: x for at, x in zip(order, inputs, strict=True)})
