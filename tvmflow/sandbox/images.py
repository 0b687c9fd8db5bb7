"""Decode image files in a sandbox, since they are untrusted and decoders are complex native code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.sandbox.process import Policy, memory_for, run_in_sandbox
from tvmflow.sources.data.images import ImageRecipe, decode_images, recipe_json
from tvmflow.support.temporary import temporary_folder

_TIMEOUT_S = 600.0
_AT_ONCE = 1024


def read_in_sandbox(paths: list[Path], recipe: ImageRecipe) -> Any:
    """Return image files as (N, C, height, width) float32. Raises SourceError for an invalid image."""
    parts = [_read_batch(paths[start : start + _AT_ONCE], recipe) for start in range(0, len(paths), _AT_ONCE)]
    return np.concatenate(parts)


def _read_batch(paths: list[Path], recipe: ImageRecipe) -> Any:
    reads = tuple({folder for path in paths for folder in (path.absolute().parent, path.resolve())})
    with temporary_folder("images") as folder:
        out = Path(folder) / "images.npy"
        policy = Policy(_TIMEOUT_S, reads, (Path(folder),), memory_for(*paths), what=f"{len(paths)} images")
        arguments = {"paths": [str(path.absolute()) for path in paths], "recipe": recipe_json(recipe), "out": str(out)}
        run_in_sandbox(f"{decode_images.__module__}:{decode_images.__name__}", arguments, policy)
        return np.load(out, allow_pickle=False)
