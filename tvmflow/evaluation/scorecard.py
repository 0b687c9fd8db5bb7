"""The scorecard of a cell: how its outputs compare with those of the steps before, and the files that say so."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.evaluation.agreement import check_outputs, compare
from tvmflow.sources.datasets import Samples

Array = np.ndarray[Any, Any]
# Who keeps the outputs of which version of the model, under which name in its reference.npz; in the order of the walk.
_REFERENCES = {
    "import_model": {"source": "evaluation", "imported": "imported"},
    "quantize": {"quantized": "evaluation"},
}


def quality(inputs: Mapping[str, Path], outputs: Array, samples: Samples, bound: float) -> dict[str, Any]:
    """Return the agreement of the built module's outputs with the source's, step by step, and accuracy where there are labels.

    Raises AgreementError when an output is further from the quantized module's than `bound`.
    """
    versions = {**_reference(inputs, "import_model"), **_reference(inputs, "quantize"), "built": outputs}
    check_outputs("evaluate", "evaluation", outputs, versions["quantized"], bound)
    steps = list(versions.items())
    found: dict[str, Any] = {
        "agreement": compare(outputs, versions["source"]).to_json(),
        "agreement_by_step": {
            f"{before}-{after}": compare(b, a).to_json() for (before, a), (after, b) in itertools.pairwise(steps)
        },
        "accuracy": None,
    }
    if samples.y is not None:
        found["accuracy"] = {name: float((version.argmax(axis=1) == samples.y).mean()) for name, version in steps}
        found["accuracy"]["samples"] = len(samples.y)
    return found


def _reference(inputs: Mapping[str, Path], stage: str) -> dict[str, Array]:
    with np.load(inputs[stage] / "reference.npz", allow_pickle=False) as data:
        return {version: np.asarray(data[name]) for version, name in _REFERENCES[stage].items()}


def write_scorecard(out: Path, card: dict[str, Any], outputs: Array, samples: Samples) -> None:
    """Write scorecard.json, metrics.json, confusion.csv and latency.csv."""
    (out / "scorecard.json").write_text(json.dumps(card, sort_keys=True, indent=1), encoding="utf-8")
    (out / "metrics.json").write_text(json.dumps(_metrics(card), sort_keys=True, indent=1), encoding="utf-8")
    confusion = [] if samples.y is None else list(zip(samples.y.tolist(), outputs.argmax(axis=1).tolist(), strict=True))
    _write_rows(out / "confusion.csv", [("actual", "predicted"), *confusion])
    peers = [(name, peer["median_ms"]) for name, peer in sorted(card["peers"].items())]
    latency = [("what", "median_ms"), ("tvmflow", card["latency"]["compute"]["median_ms"]), *peers]
    _write_rows(out / "latency.csv", latency)


def _metrics(card: dict[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "latency_ms": card["latency"]["compute"]["median_ms"],
        "library_bytes": card["library_bytes"],
        **{name: card["agreement"][name] for name in ("top1_agreement", "max_relative_error", "sqnr_db")},
    }
    if card["part"]:
        if card["part"]["simulated"]:
            del metrics["latency_ms"]  # the simulator's own time says nothing
        metrics |= card["part"]["metrics"]
    if card["accuracy"]:
        metrics["accuracy"] = card["accuracy"]["built"]
    return metrics


def _write_rows(path: Path, rows: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
