"""What every frontend gives: the model as its own framework runs it, and the same model as Relax."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tvmflow.errors import ModelFileError, first_line

Array = NDArray[Any]


@dataclass(frozen=True)
class SourceDescription:
    """What fetch hands on about a model: framework, network factory or None, weights file name, input."""

    framework: str
    network: str | None
    weights_file: str
    input_name: str
    input_shape: tuple[int, ...]


def read_description(fetched: Path) -> SourceDescription:
    """Read what fetch wrote beside the model."""
    data = json.loads((fetched / "source.json").read_text(encoding="utf-8"))
    return SourceDescription(**{**data, "input_shape": tuple(data["input_shape"])})


class Runner(Protocol):
    """A model that runs. x: (N, ...) float32 with the batch of input.shape; outputs: (N, outputs)."""

    def run(self, x: Array) -> Array: ...


class SourceModel(Runner, Protocol):
    """A model in its own framework. in_process: whether `run` costs what the framework costs, so that it may be timed."""

    in_process: bool

    def use_threads(self, threads: int) -> None:
        """Let `run` use as many threads from now on."""

    def layers(self, x: Array) -> Iterator[tuple[str, Array]]:
        """Yield name and float value of every layer for one batch, in order: to find the first that differs."""

    def to_relax(self) -> Any:
        """Return an IRModule with `main(input) -> output`. Raises UnsupportedOperatorError."""

    def to_onnx(self, path: Path) -> None:
        """Write the model as ONNX, for peers that read nothing else."""


def batch_at(x: Array, start: int, batch: int) -> Array:
    """Return x[start : start + batch], filled up with its last sample to `batch` samples."""
    part = x[start : start + batch]
    return np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)]) if len(part) < batch else part


def run_in_batches(
    model: Runner, x: Array, batch: int, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> Array:
    """Run x (N, ...) through a model of fixed batch size; the last batch is filled up with its last sample."""
    outputs = []
    for start in range(0, len(x), batch):
        outputs.append(model.run(batch_at(x, start, batch))[: len(x) - start])
        progress(min(start + batch, len(x)), len(x))
    return np.concatenate(outputs)


def wrong_weights(error: Exception, network: str | None) -> ModelFileError:
    return ModelFileError(
        f"the weights do not fit network {network!r}: {first_line(error)}",
        "weights of exactly that network",
        "correct network: or weights: in params.yaml",
    )


class NoOnnxError(Exception):
    """This model cannot be written as ONNX: peers that read nothing else are left out."""
