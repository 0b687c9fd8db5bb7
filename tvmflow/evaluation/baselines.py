"""Measure other runtimes beside the library: same input, same threads, interleaved with it.

A baseline runs the model's own file or its ONNX export in a sandbox of its own. It uses the fastest variant of its
framework that computes the same outputs. A baseline that cannot run the model is left out, with the reason.
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
    Variant,
    batch_at,
    by_sample,
    input_positions,
    read_description,
)
from tvmflow.sandbox.process import Policy, Sandbox, memory_for
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import TvmflowError
from tvmflow.support.files import load_arrays

REPLY_TIMEOUT_S = 600.0  # per reply, also for the start
SOURCE = "source"  # the baseline that is the model's own framework


@dataclass(frozen=True)
class TimedBaseline(TimedModel):
    """A baseline ready for timing. variant: the execution variant of its framework."""

    variant: str = ""


@dataclass(frozen=True)
class Baselines:
    """The baselines of a model. left_out: name of a baseline or variant ("source, torch.compile") -> reason."""

    models: tuple[TimedBaseline, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def variants(self) -> dict[str, str]:
        return {baseline.name: baseline.variant for baseline in self.models}


@contextlib.contextmanager
def open_baselines(
    names: tuple[str, ...], fetched: Path, onnx_file: Path, threads: int
) -> Iterator[Callable[[], Baselines]]:
    """Start the baselines that can run this model, each on `threads` threads; they are stopped between their turns.

    Yields a function that waits for all of them, so that they load concurrently with the caller's other work. The
    source framework is left out if another baseline is the same runtime.
    """
    same = frontend_named(read_description(fetched).framework).same_peer
    with contextlib.ExitStack() as stack:
        started = {
            name: stack.enter_context(start_baseline(name, fetched, onnx_file, threads, wait_for_load=False))
            for name in names
            if not (name == SOURCE and same in names)
        }
        yield lambda: _choose_variants(started)


def _choose_variants(started: Mapping[str, Sandbox]) -> Baselines:
    """Wait until all baselines have loaded, then let each choose its variant while the others are idle."""
    models, left_out = [], dict[str, str]()
    for name, baseline in started.items():
        with _left_out_on_error(name, left_out):
            baseline.wait()
    for name, baseline in started.items():
        if name in left_out:
            continue
        with _left_out_on_error(name, left_out):
            reply = baseline.call("choose")
            left_out |= {", ".join(filter(None, (name, variant))): why for variant, why in reply["left_out"].items()}
            if reply["variant"] is not None:
                time_runs = functools.partial(_time_runs, baseline)
                relocate = functools.partial(_relocate, baseline)
                models.append(TimedBaseline(name, time_runs, baseline.group, relocate, reply["variant"]))
    return Baselines(tuple(models), left_out)


@contextlib.contextmanager
def _left_out_on_error(name: str, left_out: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except TvmflowError as error:
        left_out[name] = error.found


def _time_runs(baseline: Sandbox, count: int) -> list[float]:
    times: list[float] = baseline.call("time_runs", count=count)
    return times


def _relocate(baseline: Sandbox) -> None:
    baseline.call("relocate")


def start_baseline(name: str, fetched: Path, onnx_file: Path, threads: int, *, wait_for_load: bool = True) -> Sandbox:
    """Start a sandbox that serves `choose`, `time_runs` and `relocate` of BaselineProcess. wait_for_load: until it has
    loaded the model.
    """
    arguments = {"name": name, "fetched": str(fetched), "onnx_file": str(onnx_file), "threads": threads}
    memory = memory_for(*fetched.iterdir(), *onnx_file.parent.iterdir())
    policy = Policy(REPLY_TIMEOUT_S, reads=(fetched, onnx_file.parent), memory_bytes=memory)
    return Sandbox("tvmflow.evaluation.baselines:BaselineProcess", arguments, policy, waits=wait_for_load)


class BaselineProcess:
    """A baseline with its inputs, inside the sandbox. Its outputs must equal those that import_model recorded of the
    source.
    """

    def __init__(self, name: str, fetched: str, onnx_file: str, threads: int) -> None:
        self._time_runs: TimedRuns | None = None
        self._variant: str | None = None
        self._variants_of: Callable[[], Sequence[Variant]]
        self._fastest: FastestVariant | None = None
        self._left_out: dict[str, str] = {}
        folder, file = Path(fetched), Path(onnx_file)
        description = read_description(folder)
        inputs = batch_at(Samples.load(folder / "evaluation.npz").inputs, 0, description.batch)
        if name == SOURCE:
            source = load_source(folder, description)
            source.use_threads(threads)
            self._variants_of = functools.partial(source.variants, *inputs)
        elif file.exists():
            self._variants_of = functools.partial(_onnxruntime, file, inputs, description, threads)
        else:
            self._left_out[""] = _missing_onnx_reason(file.parent)
            return
        expected = batch_at(load_arrays(file.parent / "reference.npz", "evaluation"), 0, description.batch or 1)
        self._fastest = FastestVariant(
            self._variants_of(), expected, lambda outputs: _by_sample(outputs, description.batch)
        )

    def choose(self) -> dict[str, Any]:
        """Choose the variant that `time_runs` runs. variant: its name, None if this baseline cannot run the model.

        left_out: variant -> reason, "" for the whole baseline.
        """
        fastest = self._fastest.choose() if self._fastest else None
        if self._fastest:
            self._left_out |= self._fastest.left_out
        self._variant, self._time_runs = fastest or (None, None)
        return {"variant": self._variant, "left_out": self._left_out}

    def relocate(self) -> None:
        """Prepare the chosen variant again, at other memory addresses."""
        variant = next(variant for variant in self._variants_of() if variant.name == self._variant)
        self._time_runs = timer_of(variant.prepare())

    def time_runs(self, count: int) -> list[float]:
        """Run `count` times; return the seconds of each run."""
        assert self._time_runs is not None
        return self._time_runs(count)


def _by_sample(outputs: Arrays, batch: int) -> Arrays:
    return tuple(by_sample(output, batch) for output in outputs)


def _missing_onnx_reason(imported: Path) -> str:
    file = imported / "import.json"
    facts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return f"the model has no ONNX form: {facts.get('no_onnx', 'none was written')}"


def _onnxruntime(onnx_file: Path, inputs: Arrays, description: SourceDescription, threads: int) -> tuple[Variant, ...]:
    from tvmflow.frontends.onnx.frontend import session_variants
    from tvmflow.frontends.onnx.session import open_session

    session = open_session(onnx_file, threads)
    names = [entry.name for entry in session.get_inputs()]
    order = input_positions(onnx_file.name, names, description.inputs)
    return session_variants(session, {names[at]: x for at, x in zip(order, inputs, strict=True)})
