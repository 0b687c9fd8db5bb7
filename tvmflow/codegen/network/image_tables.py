"""Generate the tables by which a library converts images to its input; runtime/src/image.c reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.sources.data.images import ImageRecipe
from tvmflow.support.errors import StageError


@dataclass(frozen=True)
class ImageInput:
    """The conversion of images to an input. values: result for each value of a channel, (C, 256) in the
    input's dtype.
    """

    recipe: ImageRecipe
    values: NDArray[Any]


def image_tables(image: ImageInput, shape: tuple[int, ...]) -> list[str]:
    """Return the tables as C: `image_values` and `image`. shape: of the input, (N, C, H, W) or (N, H, W, C)."""
    recipe, size = image.recipe, image.values.dtype.itemsize
    channels, height, width = len(image.values), recipe.height, recipe.width
    if shape[1:] == (channels, height, width):
        steps = (height * width, width, 1)
    elif shape[1:] == (height, width, channels):
        steps = (1, width * channels, channels)
    else:
        raise StageError(f"an input of shape {list(shape)}", f"(N, {channels}, {height}, {width})")
    bits = np.ascontiguousarray(image.values).view(f"u{size}").ravel()
    resize = recipe.resize if recipe.fit == "crop" else 0
    lines = [", ".join(f"{value:#x}u" for value in bits[at : at + 16].tolist()) for at in range(0, bits.size, 16)]
    return [
        f"static const uint{8 * size}_t image_values[] = {{\n  " + ",\n  ".join(lines) + "\n};",
        f"static const plan_image image = {{{width}, {height}, {channels}, {resize}, "
        f"PLAN_{recipe.interpolation.upper()}, "
        f"{int(recipe.channels == 'BGR')}, {size}, {', '.join(map(str, steps))}, "
        f"{channels * height * width * size}, image_values}};",
    ]
