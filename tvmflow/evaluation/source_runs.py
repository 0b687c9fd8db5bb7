"""Run a source model on all inputs of its check, in a process of its own while its import goes on."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tvmflow.frontends.source_model import Arrays, Runner, SourceModel, run_in_batches
from tvmflow.support.errors import ModelFileError
from tvmflow.support.forks import ForkFailedError, can_fork, forked

_USUAL = ""  # the name of inputs that are at no edge


@dataclass(frozen=True)
class SourceRuns:
    """The outputs of a source: (N, ...) for usual inputs, and (1, ...) for samples at edges, by name and place of the
    sample. Where it rejects an edge, or gives values that are not finite, there are none: both are right.
    """

    expected: Arrays
    edges: Mapping[tuple[str, int], Arrays]

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        named = {f"{_USUAL}/0/{i}": output for i, output in enumerate(self.expected)}
        named |= {f"{name}/{at}/{i}": x for (name, at), outputs in self.edges.items() for i, x in enumerate(outputs)}
        np.savez(file, **named)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> SourceRuns:
        found: dict[tuple[str, int], Arrays] = {}
        with np.load(io.BytesIO(data)) as arrays:
            for key in arrays.files:  # in the order in which they were written
                name, at, _ = key.rsplit("/", 2)
                found[name, int(at)] = (*found.get((name, int(at)), ()), arrays[key])
        return cls(found.pop((_USUAL, 0)), found)


@contextmanager
def running_source(source: SourceModel, run: Callable[[], SourceRuns]) -> Iterator[Callable[[], SourceRuns]]:
    """Yield a function that waits for the result of `run`, which only runs the source, and raises its error.

    That error comes before any of the context: a source that does not run says best what is wrong with a model.
    """
    if not (source.runs_in_forks and can_fork()):
        found = run()
        yield lambda: found
        return
    with forked(lambda: run().to_bytes()) as wait:
        is_waited_for = False

        def finish() -> SourceRuns:
            nonlocal is_waited_for
            is_waited_for = True
            try:
                return SourceRuns.from_bytes(wait())
            except ForkFailedError:
                return run()  # here, where its error can be raised

        try:
            yield finish
        except Exception:
            if not is_waited_for:
                finish()
            raise


def run_at_edges(source: Runner, edges: Mapping[str, Arrays], batch: int) -> dict[tuple[str, int], Arrays]:
    """Return the outputs for the samples at edges, name -> (N, ...), as SourceRuns has them."""
    found = {}
    for name, inputs in edges.items():
        for at, sample in enumerate(samples_of(inputs)):
            with contextlib.suppress(ModelFileError):
                outputs = run_in_batches(source, sample, batch)
                if all(np.isfinite(output).all() for output in outputs):
                    found[name, at] = outputs
    return found


def samples_of(inputs: Arrays) -> Iterator[Arrays]:
    """Yield the samples (1, ...) of inputs (N, ...)."""
    for at in range(len(inputs[0])):
        yield tuple(x[at : at + 1] for x in inputs)
