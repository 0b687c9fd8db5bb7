"""Preprocess images for a model as described in its entry in params.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.config.model_params import Preprocess
from tvmflow.sources.data.datasets import preprocess
from tvmflow.sources.data.images import ImageRecipe, scale_to_white
from tvmflow.support.errors import SourceError

Array = NDArray[Any]


def recipe_for(shapes: Sequence[tuple[int, ...]], how: Preprocess) -> ImageRecipe:
    """Return the image recipe of a model with one image input. Raises SourceError for other inputs."""
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] not in (1, 3):
        shown = ", ".join(str(list(shape)) for shape in shapes)
        raise SourceError(
            f"inputs of shape {shown} for images", "one input (N, 3, H, W), or (N, 1, H, W) for grayscale"
        )
    channels, height, width = shapes[0][1:]
    resize = round(max(height, width) * 8 / 7) if how.resize is None else how.resize
    colors = "gray" if channels == 1 else how.channels
    return ImageRecipe(height, width, colors, how.fit, resize, how.interpolation, how.white)


def normalize_images(x: Array, how: Preprocess, dtype: str = "float32") -> Array:
    """Return images (N, C, H, W) with a model's scale, mean and std, in the dtype of its input.

    Raises SourceError if rounding to an integer dtype would change a value.
    """
    ready = preprocess(x, how.scale, how.mean, how.std)
    with np.errstate(invalid="ignore"):
        cast: Array = ready.astype(dtype)
    if dtype != "float32" and (cast != ready).any():
        raise SourceError(
            f"preprocess produces numbers from {ready.min():g} to {ready.max():g}",
            f"numbers that are {dtype}",
            "correct preprocess: scale 1 and mean 0 leave 0 to 255",
        )
    return cast


def value_table(channels: int, how: Preprocess, dtype: str) -> Array:
    """Return the preprocessed value of each of the 256 pixel values, (channels, 256) in the dtype of the input. Raises
    SourceError.
    """
    values = scale_to_white(np.arange(256, dtype=np.float32), how.white)
    return normalize_images(np.broadcast_to(values, (1, channels, 1, 256)), how, dtype)[0, :, 0]
