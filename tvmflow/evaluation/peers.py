"""What people would use instead, measured beside the library: same input, same threads, in turns with it.

A peer runs the model as it came, or what was made of it, so each lives in a sandbox of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from tvmflow.evaluation.latency import timed
from tvmflow.evaluation.turns import Contestant
from tvmflow.frontends.source_model import Arrays, SourceDescription, batch_at, in_order, read_description
from tvmflow.frontends.table import frontend_named, load_source
from tvmflow.sandbox.process import Policy, Sandbox, memory_for
from tvmflow.sources.datasets import Samples

REPLY_TIMEOUT_S = 600.0
SOURCE = "source"  # the peer that is the model's own framework


@contextlib.contextmanager
def open_peers(
    names: tuple[str, ...], fetched: Path, onnx_file: Path, threads: int
) -> Iterator[Callable[[], list[Contestant]]]:
    """Start those peers that can run this model, each on `threads` threads of this machine; they sleep between their turns.

    Yields a function that waits for all of them: they load beside each other, and beside what is done before it is called.
    The source framework is no peer of its own where another one is the same runtime.
    """
    same = frontend_named(read_description(fetched).framework).same_peer
    with contextlib.ExitStack() as stack:
        started = {
            name: stack.enter_context(sandboxed_peer(name, fetched, onnx_file, threads, waits=False))
            for name in names
            if not (name == SOURCE and same in names)
        }

        def loaded() -> list[Contestant]:
            return [
                Contestant(name, functools.partial(_timed_runs, peer), peer.group)
                for name, peer in started.items()
                if peer.wait().call("is_there")
            ]

        yield loaded


def _timed_runs(peer: Sandbox, count: int) -> list[float]:
    times: list[float] = peer.call("time_runs", count=count)
    return times


def sandboxed_peer(name: str, fetched: Path, onnx_file: Path, threads: int, *, waits: bool = True) -> Sandbox:
    """Return a running sandbox that serves `is_there` and `time_runs`, as Peer does. waits: until it has loaded the model."""
    arguments = {"name": name, "fetched": str(fetched), "onnx_file": str(onnx_file), "threads": threads}
    memory = memory_for(*fetched.iterdir(), *onnx_file.parent.iterdir())
    policy = Policy(REPLY_TIMEOUT_S, reads=(fetched, onnx_file.parent), memory_bytes=memory)
    return Sandbox("tvmflow.evaluation.peers:Peer", arguments, policy, waits=waits)


class Peer:
    """A peer by name with its input set: what runs inside the sandbox."""

    def __init__(self, name: str, fetched: str, onnx_file: str, threads: int) -> None:
        description = read_description(Path(fetched))
        inputs = batch_at(Samples.load(Path(fetched) / "evaluation.npz").inputs, 0, description.batch)
        self._run: Callable[[], object] | None = None
        if name == SOURCE:
            source = load_source(Path(fetched), description)
            if source.in_process:
                source.use_threads(threads)
                self._run = lambda: source.run(*inputs)
        elif Path(onnx_file).exists():
            self._run = _onnxruntime(Path(onnx_file), inputs, description, threads)

    def is_there(self) -> bool:
        """Whether this peer can run this model in its own process."""
        return self._run is not None

    def time_runs(self, count: int) -> list[float]:
        """Run count times and return as many times in seconds."""
        assert self._run is not None
        return list(timed(self._run)(count))


def _onnxruntime(onnx_file: Path, inputs: Arrays, description: SourceDescription, threads: int) -> Callable[[], object]:
    from tvmflow.frontends.onnx import open_session

    session = open_session(onnx_file, threads)
    names = [entry.name for entry in session.get_inputs()]
    order = in_order(onnx_file.name, names, description.inputs)
    feed = {names[at]: x for at, x in zip(order, inputs, strict=True)}
    return lambda: session.run(None, feed)
