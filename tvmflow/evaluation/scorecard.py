"""Make the scorecard of a cell: agreement and accuracy of each stage, and the files that record them."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.config.buckets import metric_of
from tvmflow.evaluation.agreement import as_outputs, check_outputs, classes_of, compare_all, worst_of
from tvmflow.evaluation.conditioning import read_noise
from tvmflow.evaluation.metrics import value_of
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.files import load_arrays

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
_TOP = 5
_SHARES = ("pixel_agreement", "cosine", "equal")
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
) -> dict[str, Any]:
    """Return the agreement of the built library with the source, step by step, and the accuracy if there are labels.

    With several outputs, the agreement is the worst of each number, and `outputs` lists all. accuracy: share of the
    samples (of maps: pixels) whose most likely class is the label, or the value of `metric`; top5: share with the label
    among five. Raises AgreementError if an output is further than `bound` from the quantized version's.
    """
    built = as_outputs(outputs)
    versions = {**_reference(inputs, "import_model"), **_reference(inputs, "quantize"), "built": built}
    noise = read_noise(inputs["import_model"])
    check_outputs("evaluate", "evaluation", built, versions["quantized"], bound, task, noise)
    steps, every = list(versions.items()), compare_all(built, versions["source"], task)
    card: dict[str, Any] = {
        "agreement": worst_of(every).to_json(),
        "agreement_by_step": {
            f"{before}-{after}": worst_of(compare_all(b, a, task)).to_json()
            for (before, a), (after, b) in itertools.pairwise(steps)
        },
        "accuracy": None,
        "top5": None,
        "metric": metric,
        "outputs": [one.to_json() for one in every] if len(every) > 1 else [],
    }
    if samples.y is not None:
        card |= {
            name: shares | {"samples": len(samples.y)}
            for name, shares in _accuracies(steps, samples.y, task, metric).items()
        }
    return card


def _accuracies(
    steps: list[tuple[str, Arrays]], y: Array, task: str | None, metric: str | None
) -> dict[str, dict[str, Any]]:
    """Return accuracy and, with more than five classes, top5 of every version; empty if the first output has no
    classes.
    """
    if metric is not None:
        return {"accuracy": {name: value_of(metric, outputs, y) for name, outputs in steps}}
    shares: dict[str, dict[str, Any]] = {}
    for name, outputs in steps:
        classes = classes_of(outputs[0], task)
        if classes is None:
            return {}
        shares.setdefault("accuracy", {})[name] = float((classes == y).mean())
        if outputs[0].ndim == 2 and outputs[0].shape[1] > _TOP:
            best = np.argpartition(-outputs[0], _TOP, axis=1)[:, :_TOP]
            shares.setdefault("top5", {})[name] = float((best == y[:, None]).any(axis=1).mean())
    return shares


def _reference(inputs: Mapping[str, Path], stage: str) -> dict[str, Arrays]:
    return {version: load_arrays(inputs[stage] / "reference.npz", name) for version, name in _REFERENCES[stage].items()}


def write_scorecard(out: Path, card: dict[str, Any], outputs: Arrays, samples: Samples, task: str | None) -> None:
    """Write scorecard.json, metrics.json, confusion.csv and latency.csv."""
    (out / "scorecard.json").write_text(json.dumps(card, sort_keys=True, indent=1), encoding="utf-8")
    (out / "metrics.json").write_text(json.dumps(_metrics(card), sort_keys=True, indent=1), encoding="utf-8")
    classes = classes_of(outputs[0], task)
    has_pairs = samples.y is not None and samples.y.ndim == 1 and classes is not None
    confusion = list(zip(samples.y.tolist(), classes.tolist(), strict=True)) if has_pairs else []  # type: ignore[union-attr]
    _write_rows(out / "confusion.csv", [("actual", "predicted"), *confusion])
    baselines = [(name, latency["median_ms"]) for name, latency in sorted(card["peers"].items())]
    ours = [] if card.get("executed") else [("tvmflow", card["latency"]["compute"]["median_ms"])]
    latency = [("what", "median_ms"), *ours, *baselines]
    _write_rows(out / "latency.csv", latency)


def has_no_time(card: Mapping[str, Any]) -> bool:
    """Return whether the device of a scorecard is simulated or emulated, so that its clock is not a time."""
    return bool(card.get("executed") or (card.get("part") or {}).get("simulated"))


def bound_metrics(bounds: Mapping[str, Any] | None) -> dict[str, float]:
    """Return a scorecard's bounds as metrics; empty without bounds; without a share if the latency is not a time."""
    if not bounds or bounds["reason"]:
        return {}
    numbers = {f"bound_ms.{name}": bounds[f"{name}_ms"] for name in ("arithmetic", "memory")}
    return numbers if bounds["share"] is None else numbers | {"bound_share": bounds["share"]}


def _metrics(card: dict[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "latency_ms": card["latency"]["compute"]["median_ms"],
        "library_bytes": card["library_bytes"],
        **{
            name: card["agreement"][name]
            for name in ("top1_agreement", "max_relative_error", "sqnr_db", *_SHARES)
            if name == "top1_agreement" or card["agreement"][name] is not None
        },
    }
    compute = card["latency"]["compute"]
    if compute["low_ms"] is not None:
        metrics |= {"latency_ms_low": compute["low_ms"], "latency_ms_high": compute["high_ms"]}
    metrics["latency_ms_badges"] = ", ".join(compute["badges"])
    for label, latency in card.get("sizes", {}).items():
        metrics[metric_of(label)] = latency["median_ms"]
    if has_no_time(card):
        metrics = {name: value for name, value in metrics.items() if not name.startswith("latency_ms")}
    metrics |= bound_metrics(card.get("bounds")) | (card.get("executed") or {})
    if card["part"]:
        metrics |= card["part"]["metrics"]
    if card["accuracy"]:
        metrics["accuracy"] = card["accuracy"]["built"]
    if card["top5"]:
        metrics["top5"] = card["top5"]["built"]
    return metrics


def _write_rows(path: Path, rows: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
