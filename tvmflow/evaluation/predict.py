"""Convert class scores to predictions: the most likely classes with their names and probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.evaluation.agreement import classes_of
from tvmflow.evaluation.guesses import Guess, Prediction
from tvmflow.support.errors import UsageError

Array = np.ndarray[Any, Any]
_SUM = 1e-3  # tolerance of a sum of probabilities, also for 16-bit outputs


def predictions(
    images: list[str], scores: Array, names: list[str] | None, count: int, task: str | None
) -> list[Prediction]:
    """Return the `count` most likely classes of each image. scores: first output, (N, classes). Raises UsageError."""
    if scores.ndim != 2 or classes_of(scores, task) is None:
        raise UsageError(
            f"an output of shape {list(scores.shape)}" + (f" of a model for {task}" if task else ""),
            "scores of classes (N, classes)",
            "call tvmflow.predict in Python, which returns the arrays",
        )
    results = []
    for image, row in zip(images, scores.astype(np.float64), strict=True):
        probability = _probabilities(row)
        best = np.argsort(-row, kind="stable")[:count]
        guesses = (
            Guess(int(number), _name(names, int(number)), float(row[number]), float(probability[number]))
            for number in best
        )
        results.append(Prediction(image, tuple(guesses)))
    return results


def _name(names: list[str] | None, number: int) -> str:
    return names[number] if names is not None and number < len(names) else f"class {number}"


def _probabilities(row: Array) -> Array:
    if row.min() >= 0 and abs(row.sum() - 1) <= _SUM:
        return row
    powers = np.exp(row - row.max())
    return np.asarray(powers / powers.sum())
