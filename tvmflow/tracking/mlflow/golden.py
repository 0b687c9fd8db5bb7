"""Collect the golden samples of a cell, for the signature, input example and comparison of its models in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.support.files import load_arrays

Arrays = dict[str, NDArray[Any]]
MOST_NUMBERS = 1 << 21  # of inputs and outputs together; larger ones are reduced to their first sample


def golden(inputs: Path, outputs: Path, names: list[str]) -> tuple[Arrays, Arrays]:
    """Return the golden inputs by name, and the expected outputs of the library."""
    given = dict(zip(names, load_arrays(inputs, "x"), strict=True))
    computed = {f"output_{index}" if index else "output": x for index, x in enumerate(load_arrays(outputs, "golden"))}
    if sum(x.size for x in (*given.values(), *computed.values())) > MOST_NUMBERS:
        given, computed = ({name: x[:1] for name, x in group.items()} for group in (given, computed))
    return given, computed


def save(path: Path, inputs: Arrays, outputs: Arrays) -> None:
    """Write inputs and outputs into one .npz file under their names."""
    np.savez(path, **{f"input.{k}": x for k, x in inputs.items()}, **{f"output.{k}": x for k, x in outputs.items()})  # type: ignore[arg-type]
