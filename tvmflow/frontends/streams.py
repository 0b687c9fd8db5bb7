"""Run the samples of a fetched model as one stream in its own framework, and store the states before each run.

Each sample then has the states that a model from a reset has before it, and every later stage compares single runs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    Runner,
    SourceDescription,
    State,
    TensorSpec,
    batch_at,
    read_description,
)
from tvmflow.sources.data.datasets import Samples, load_edges
from tvmflow.support.errors import ModelFileError
from tvmflow.support.files import save_arrays
from tvmflow.support.json_values import to_json
from tvmflow.support.samples import WHOLE

_LEAST_RUNS = 32  # of a stream of random inputs
_BOUND = 1e-2  # of the largest output: the file itself may run with other kernels, which round in another way


STREAM_FILES = ("source.json", *(f"{name}.npz" for name in ("calibration", "evaluation", "golden", "edges")))


class StatefulModel(Runner, Protocol):
    """A model of a file that keeps values between runs, with these states as its last inputs and outputs."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Return all inputs, the states last."""

    @property
    def states(self) -> tuple[State, ...]:
        """Return the states, none for a file that keeps no values."""

    def first_values(self) -> list[Array]:
        """Return the states that a stream begins with."""

    def of_original(self) -> Runner:
        """Return the model as it is, which keeps its states itself, at the beginning of a stream."""


def _litert(fetched: Path, description: SourceDescription) -> StatefulModel | None:
    from tvmflow.frontends.tensorflow.litert import LitertModel
    from tvmflow.frontends.tensorflow.tflite_states import read_file

    path = fetched / description.weights_file
    if path.suffix != ".tflite":
        return None
    file = read_file(path)
    return LitertModel(path, file, description.inputs, description.fixed) if file.states else None


def _torch(fetched: Path, description: SourceDescription) -> StatefulModel | None:
    from tvmflow.frontends.pytorch.loading import load_as
    from tvmflow.frontends.pytorch.running import TorchModel

    return load_as(TorchModel, fetched, description)


_LOADERS = {"tensorflow": _litert, "torch": _torch}  # of the frameworks with `state_tools`


def declare_states(folder: str, out: str) -> list[str]:
    """Write `STREAM_FILES` with the states that a fetched model declares, if it has any; return their names."""
    fetched, made = Path(folder), Path(out)
    description = read_description(fetched)
    model = _LOADERS[description.framework](fetched, description)
    if model is None or not model.states:
        return []
    if description.sizes is not None:
        raise ModelFileError(
            f"buckets: for a model that keeps {', '.join(state.input for state in model.states)} between runs",
            "a model of one size",
            "remove buckets: from the model's entry in params.yaml",
        )
    declared = replace(description, inputs=model.specs, states=model.states)
    parts = {}
    for name in ("calibration", "evaluation"):
        samples = Samples.load(fetched / f"{name}.npz")
        if not description.has_data:  # random inputs, which may come again
            samples = samples.part(np.resize(np.arange(len(samples)), max(_LEAST_RUNS, len(samples))))
        parts[name] = _along_stream(model, description, declared, samples)
        parts[name].save(made / f"{name}.npz")
    golden = len(Samples.load(fetched / "golden.npz"))
    Samples(parts["evaluation"].part(slice(golden)).inputs).save(made / "golden.npz")
    last = parts["evaluation"].inputs[-len(model.states) :]
    edges = load_edges(fetched / "edges.npz")
    save_arrays(
        made / "edges.npz",
        **{name: (*_by_run(x, description, declared), *(one[-1:] for one in last)) for name, x in edges.items()},
    )
    (made / "source.json").write_text(json.dumps(to_json(declared), sort_keys=True), encoding="utf-8")
    return [one.input for one in model.states]


def _by_run(inputs: Arrays, description: SourceDescription, declared: SourceDescription) -> Arrays:
    """Return samples with a batch of 1 as wholes, if the states have no such axis."""
    if declared.batch == description.batch:
        return inputs
    if description.batch != 1:
        raise ModelFileError(
            f"states of shapes {[list(spec.shape) for spec in declared.inputs[len(description.inputs) :]]} for a "
            f"batch of {description.batch}",
            "the batch as the first axis of every state",
            "give the input a batch of 1",
        )
    return tuple(x[:, None] for x in inputs)


def _along_stream(
    model: StatefulModel, description: SourceDescription, declared: SourceDescription, samples: Samples
) -> Samples:
    """Return the samples with the states before each. Raises ModelFileError if the model itself, with states that it
    keeps, returns other outputs.

    A model may end a stream: a cache is full. The next one begins where it refuses a run.
    """
    inputs, batch = _by_run(samples.inputs, description, declared), declared.batch
    states, whole, step = model.first_values(), model.of_original(), 0
    kept: list[list[Array]] = [[] for _ in states]
    for start in range(0, len(inputs[0]), batch or 1):
        given = batch_at(inputs, start, batch)
        try:
            outputs = model.run(*given, *states)
        except ModelFileError:
            if step == 0:
                raise
            states, whole, step = model.first_values(), model.of_original(), 0
            outputs = model.run(*given, *states)
        for values, state in zip(kept, states, strict=True):
            values.append(state[None] if batch == WHOLE else state)
        states = list(outputs[len(outputs) - len(states) :])
        _check_step(step, outputs, whole.run(*given))
        step += 1
    count = len(inputs[0])
    return Samples((*inputs, *(np.concatenate(values)[:count] for values in kept)), samples.y)


def _check_step(step: int, outputs: Arrays, expected: Arrays) -> None:
    """Compare the outputs with explicit states to those of the file itself."""
    for made, wanted in zip(outputs, expected, strict=False):
        largest: Any = np.abs(wanted).max(initial=0)
        if not np.abs(made - wanted).max(initial=0) <= _BOUND * max(float(largest), 1e-6):
            raise ModelFileError(
                f"with its states as inputs the model computes other outputs in step {step} of a stream",
                "the outputs of the file itself",
                "export the model with explicit states, for example to ONNX",
            )
