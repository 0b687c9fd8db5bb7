"""Convert class scores to predictions: the most likely classes with their names and probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvmflow.evaluation.agreement import classes_of
from tvmflow.support.errors import UsageError

Array = np.ndarray[Any, Any]
_SUM = 1e-3  # tolerance of a sum of probabilities, also for 16-bit outputs


@dataclass(frozen=True)
class Guess:
    """A class: its number, name, raw output, and probability (by softmax, unless the model already outputs
    probabilities).
    """

    number: int
    name: str
    score: float
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The prediction of one image, the most likely classes first."""

    image: str
    top: tuple[Guess, ...]

    def to_json(self) -> dict[str, Any]:
        return {"image": self.image, "top": [asdict(guess) for guess in self.top]}


@dataclass(frozen=True)
class TextPrediction:
    """The outputs (1, ...) of one text by name, and its most likely classes, of a model of classes. name: the text, or
    its file; tokens: how many it has, of which `used` fit into the model.
    """

    name: str
    tokens: int
    used: int
    outputs: Mapping[str, Array]
    top: tuple[Guess, ...] = ()

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"text": self.name, "tokens": self.tokens, "used": self.used}
        if self.top:
            return found | {"top": [asdict(guess) for guess in self.top]}
        return found | {"outputs": {name: value.tolist() for name, value in self.outputs.items()}}


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
