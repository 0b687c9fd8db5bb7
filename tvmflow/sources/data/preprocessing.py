"""Preprocess images for a model as described in its entry in params.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.config.model_params import ModelEntry, Preprocess
from tvmflow.sources.data.datasets import preprocess
from tvmflow.sources.data.images import ImageRecipe, scale_to_white
from tvmflow.support.errors import SourceError

Array = NDArray[Any]
_OF_PIXELS = 100.0  # of a white pixel, from where on a mean below 1 changes nothing


def doubts(model: ModelEntry) -> tuple[str, ...]:
    """Return what makes it doubtful that a model of color images gets them as in training; empty without a doubt."""
    shapes = [tensor.shape for tensor in model.tensors.values()]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 3:
        return ()
    how = model.preprocess
    if "preprocess" not in model.model_fields_set:
        return (
            "no preprocess: is declared, so it gets pixels from 0 to 255 as they are; most models take others, such as "
            "preprocess: {preset: torchvision}; {preset: keras/none} says that these are meant",
        )
    small = [mean for mean in how.mean if 0 < abs(mean) < 1]
    if small and abs(how.scale) * how.white >= _OF_PIXELS:
        return (
            f"preprocess.mean {small[0]:g} is subtracted from pixels up to {abs(how.scale) * how.white:g}, and is "
            "probably of pixels up to 1: scale: 0.00392157 (1/255) brings them there",
        )
    return ()


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
