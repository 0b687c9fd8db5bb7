"""Decode image files in a sandbox, since they are untrusted and decoders are complex native code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.sandbox.process import Policy, memory_for, run_in_sandbox
from tvmflow.sources.data.images import ImageRecipe, decode_images, recipe_json
from tvmflow.support.errors import ModelFileError
from tvmflow.support.npz import read_header
from tvmflow.support.temporary import temporary_folder

_TIMEOUT_S = 600.0
_NAME, _HEADER_BYTES = "images.npy", 1024
_AT_ONCE = 1024


def read_in_sandbox(paths: list[Path], recipe: ImageRecipe) -> Any:
    """Return image files as (N, C, height, width) float32. Raises SourceError for an invalid image."""
    parts = [_read_batch(paths[start : start + _AT_ONCE], recipe) for start in range(0, len(paths), _AT_ONCE)]
    return np.concatenate(parts)


def _read_batch(paths: list[Path], recipe: ImageRecipe) -> Any:
    shape = (len(paths), 1 if recipe.channels == "gray" else 3, recipe.height, recipe.width)
    outputs = {_NAME: 4 * math.prod(shape) + _HEADER_BYTES}
    with temporary_folder("images") as folder:
        out = Path(folder) / _NAME
        policy = Policy(
            _TIMEOUT_S, tuple(paths), (Path(folder),), memory_for(*paths), outputs, what=f"{len(paths)} images"
        )
        arguments = {"paths": [str(path.absolute()) for path in paths], "recipe": recipe_json(recipe), "out": str(out)}
        run_in_sandbox(f"{decode_images.__module__}:{decode_images.__name__}", arguments, policy)
        with out.open("rb") as file:
            header = read_header(file, _NAME)
            if header.shape != shape or header.dtype != np.float32 or header.is_fortran:
                raise ModelFileError(f"decoded images of {header.dtype} {header.shape}", f"float32 {shape}")
            return np.fromfile(file, np.float32).reshape(shape)
