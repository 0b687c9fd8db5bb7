"""Run a source model on all inputs of its check, in a process of its own while its import goes on.

The process then measures the noise of its outputs, in case that the check asks for it.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tvmflow.evaluation.agreement import Noise
from tvmflow.frontends.source_model import Arrays, Runner, SourceModel, run_in_batches
from tvmflow.support.errors import ModelFileError
from tvmflow.support.forks import ForkFailedError, can_fork, forked
from tvmflow.support.json_values import from_json, to_json

Noises = tuple[Noise, ...]  # of each output

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


class RunningSource:
    """A source that runs beside its import. wait: returns the results of the fork, None without one."""

    def __init__(
        self, run: Callable[[], SourceRuns], measure: Callable[[Arrays], Noises], wait: Callable[[], bytes] | None
    ) -> None:
        self._run, self._measure, self._wait = run, measure, wait
        self._found: SourceRuns | None = None

    @property
    def is_waited_for(self) -> bool:
        return self._found is not None

    def runs(self) -> SourceRuns:
        """Wait for the outputs; raises the error of `run`."""
        if self._found is None:
            received = self._receive()
            self._found = self._run() if received is None else SourceRuns.from_bytes(received)
        return self._found

    def noise(self) -> Noises:
        """Wait for the noise of the outputs."""
        expected = self.runs().expected
        received = self._receive()
        return self._measure(expected) if received is None else _noises_from(received)

    def _receive(self) -> bytes | None:
        """Return the next result; None if it must be computed here, where its error can be raised."""
        if self._wait is None:
            return None
        try:
            return self._wait()
        except ForkFailedError:
            self._wait = None
            return None


@contextmanager
def running_source(
    source: SourceModel, run: Callable[[], SourceRuns], measure: Callable[[Arrays], Noises]
) -> Iterator[RunningSource]:
    """Yield what `run` finds, which only runs the source, and what `measure` says of the noise of these outputs, which
    few imports need.

    The error of `run` comes before any of the context: a source that does not run says best what is wrong with a model.
    """
    if not (source.runs_in_forks and can_fork()):
        here = RunningSource(run, measure, None)
        here.runs()
        yield here
        return
    found: list[SourceRuns] = []

    def first() -> bytes:
        source.use_threads(1)  # the others belong to the import
        found.append(run())
        return found[0].to_bytes()

    def second() -> bytes:
        return json.dumps(to_json(measure(found[0].expected))).encode()

    with forked(first, second) as wait:
        beside = RunningSource(run, measure, wait)
        try:
            yield beside
        except Exception:
            if not beside.is_waited_for:
                beside.runs()
            raise


def _noises_from(data: bytes) -> Noises:
    return from_json(tuple[Noise, ...], json.loads(data))


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
