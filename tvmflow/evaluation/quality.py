"""Measure agreement and accuracy after each stage, and write the files of a scorecard."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.evaluation.agreement import as_outputs, check_outputs, classes_of, compare_all, worst_of
from tvmflow.evaluation.conditioning import read_noise
from tvmflow.evaluation.metrics import value_of
from tvmflow.evaluation.scorecard import Accuracy, Quality, Scorecard
from tvmflow.frontends.source_model import read_description
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.files import load_arrays
from tvmflow.support.json_values import write_json

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
_TOP = 5
# Stage -> version of the model -> name of its outputs in the stage's reference.npz, in stage order.
_REFERENCES = {
    "import_model": {"source": "evaluation", "imported": "imported"},
    "quantize": {"quantized": "evaluation"},
}


def measure_quality(
    inputs: Mapping[str, Path],
    outputs: Array | Arrays,
    samples: Samples,
    bound: float,
    task: str | None = None,
    metric: str | None = None,
) -> Quality:
    """Return the agreement of the built library with the source, step by step, and the accuracy if there are labels.

    Raises AgreementError if an output is further than `bound` from the quantized version's.
    """
    built = as_outputs(outputs)
    versions = {**_reference(inputs, "import_model"), **_reference(inputs, "quantize"), "built": built}
    noise = read_noise(inputs["import_model"])
    check_outputs("evaluate", "evaluation", built, versions["quantized"], bound, task, noise)
    steps, every = list(versions.items()), compare_all(built, versions["source"], task)
    return Quality(
        agreement=worst_of(every),
        agreement_by_step={
            f"{before}-{after}": worst_of(compare_all(b, a, task))
            for (before, a), (after, b) in itertools.pairwise(steps)
        },
        metric=metric,
        outputs=tuple(every) if len(every) > 1 else (),
        **({"accuracy": None} if samples.y is None else _accuracies(steps, samples.y, task, metric)),
    )


def _accuracies(
    steps: list[tuple[str, Arrays]], y: Array, task: str | None, metric: str | None
) -> dict[str, Accuracy | None]:
    """Return accuracy and top5 of every version; None if the first output has no classes, or at most five."""
    if metric is not None:
        return {"accuracy": Accuracy(**{name: value_of(metric, outputs, y) for name, outputs in steps}, samples=len(y))}
    shares: dict[str, dict[str, float]] = {}
    for name, outputs in steps:
        classes = classes_of(outputs[0], task)
        if classes is None:
            return {"accuracy": None}
        shares.setdefault("accuracy", {})[name] = float((classes == y).mean())
        if outputs[0].ndim == 2 and outputs[0].shape[1] > _TOP:
            best = np.argpartition(-outputs[0], _TOP, axis=1)[:, :_TOP]
            shares.setdefault("top5", {})[name] = float((best == y[:, None]).any(axis=1).mean())
    return {name: Accuracy(**each, samples=len(y)) for name, each in shares.items()}


def drop_after_quantize(inputs: Mapping[str, Path], metric: str | None) -> float | None:
    """Return the accuracy that a model lost up to quantize; without labels, the share of samples with another class.

    None without classes. inputs: the folders of fetch, import_model and quantize.
    """
    task, samples = read_description(inputs["fetch"]).task, Samples.load(inputs["fetch"] / "evaluation.npz")
    source, quantized = _reference(inputs, "import_model")["source"], _reference(inputs, "quantize")["quantized"]
    if samples.y is not None:
        steps = [("source", source), ("imported", source), ("quantized", quantized), ("built", quantized)]
        accuracy = _accuracies(steps, samples.y, task, metric)["accuracy"]
        if accuracy is not None:
            return accuracy.source - accuracy.quantized
    agreement = worst_of(compare_all(quantized, source, task)).top1_agreement
    return None if agreement is None else 1 - agreement


def _reference(inputs: Mapping[str, Path], stage: str) -> dict[str, Arrays]:
    return {version: load_arrays(inputs[stage] / "reference.npz", name) for version, name in _REFERENCES[stage].items()}


def write_scorecard(out: Path, card: Scorecard, outputs: Arrays, samples: Samples, task: str | None) -> None:
    """Write scorecard.json, metrics.json, confusion.csv and latency.csv."""
    write_json(out / "scorecard.json", card)
    write_json(out / "metrics.json", card.metrics)
    classes = classes_of(outputs[0], task)
    has_pairs = samples.y is not None and samples.y.ndim == 1 and classes is not None
    confusion = list(zip(samples.y.tolist(), classes.tolist(), strict=True)) if has_pairs else []  # type: ignore[union-attr]
    _write_rows(out / "confusion.csv", [("actual", "predicted"), *confusion])
    baselines = [(name, latency.median_ms) for name, latency in sorted(card.peers.items())]
    ours = [] if card.executed else [("tvmflow", card.latency.compute.median_ms)]
    _write_rows(out / "latency.csv", [("what", "median_ms"), *ours, *baselines])


def _write_rows(path: Path, rows: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
