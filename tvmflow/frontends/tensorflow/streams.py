"""Run the samples of a fetched model as one stream with LiteRT, and store the states before each run.

Each sample then has the states that a model from a reset has before it, and every later stage compares single runs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.frontends.source_model import Array, Arrays, SourceDescription, batch_at, read_description
from tvmflow.frontends.tensorflow.litert import LitertModel
from tvmflow.frontends.tensorflow.tflite_states import read_file
from tvmflow.sources.data.datasets import Samples, load_edges
from tvmflow.support.errors import ModelFileError
from tvmflow.support.files import save_arrays
from tvmflow.support.json_values import to_json
from tvmflow.support.samples import WHOLE

_LEAST_RUNS = 32  # of a stream of random inputs
_BOUND = 1e-2  # of the largest output: the file itself may run with other kernels, which round in another way


STREAM_FILES = ("source.json", *(f"{name}.npz" for name in ("calibration", "evaluation", "golden", "edges")))


def declare_states(folder: str, out: str) -> list[str]:
    """Write `STREAM_FILES` with the states of a fetched .tflite file, if it has any; return their names."""
    fetched, made = Path(folder), Path(out)
    description = read_description(fetched)
    path = fetched / description.weights_file
    if path.suffix != ".tflite":
        return []
    file = read_file(path)
    if not file.states:
        return []
    model = LitertModel(path, file, description.inputs, description.fixed)
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
            f"variables of shapes {[list(spec.shape) for spec in declared.inputs[len(description.inputs) :]]} for a "
            f"batch of {description.batch}",
            "the batch as the first axis of every variable",
            "give the input a batch of 1",
        )
    return tuple(x[:, None] for x in inputs)


def _along_stream(
    model: LitertModel, description: SourceDescription, declared: SourceDescription, samples: Samples
) -> Samples:
    """Return the samples with the states before each. Raises ModelFileError if LiteRT runs the file itself to other
    outputs.
    """
    inputs, batch = _by_run(samples.inputs, description, declared), declared.batch
    states = model.file.first_values()
    kept: list[list[Array]] = [[] for _ in states]
    whole = model.of_original()
    for start in range(0, len(inputs[0]), batch or 1):
        given = batch_at(inputs, start, batch)
        for values, state in zip(kept, states, strict=True):
            values.append(state[None] if batch == WHOLE else state)
        outputs = model.run(*given, *states)
        states = list(outputs[len(outputs) - len(states) :])
        _check_step(start, outputs, whole.run(*given))
    count = len(inputs[0])
    return Samples((*inputs, *(np.concatenate(values)[:count] for values in kept)), samples.y)


def _check_step(step: int, outputs: Arrays, expected: Arrays) -> None:
    """Compare the outputs with explicit states to those of the file itself."""
    for made, wanted in zip(outputs, expected, strict=False):
        largest: Any = np.abs(wanted).max(initial=0)
        if not np.abs(made - wanted).max(initial=0) <= _BOUND * max(float(largest), 1e-6):
            raise ModelFileError(
                f"with its variables as inputs the model computes other outputs in step {step} of a stream",
                "the outputs of the file itself",
                "export the model with explicit states, for example to ONNX",
            )
