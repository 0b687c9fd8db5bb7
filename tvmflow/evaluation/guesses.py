"""Hold what `predict` returns: the most likely classes of images and texts. Imports no numpy: the API exports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmflow.evaluation.agreement import Array


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
