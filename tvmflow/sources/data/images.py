"""Decode image files to model inputs: resize and crop like the model's zoo, in the model's channel order.

Image files are untrusted: a few formats by allowlist, sizes checked before decoding; `decode_images` is to be called in
a sandbox. Values are 0 to 255 here; scale, mean and std are applied by `datasets.preprocess`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.support.errors import SourceError, first_line

FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
MAX_FILE_BYTES = 256 << 20
MAX_PIXELS = 100_000_000
MAX_TABLE_BYTES = 64 << 20
FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class ImageRecipe:
    """The conversion of a file to (C, height, width).

    fit: `crop` resizes the shorter side to `resize` pixels and crops the center, `stretch` resizes to height x width.
    interpolation: nearest, bilinear, bicubic. channels: RGB, BGR, or gray (one channel). white: the value of pixel 255.
    """

    height: int
    width: int
    channels: str = "RGB"
    fit: str = "crop"
    resize: int = 256
    interpolation: str = "bilinear"
    white: float = 255.0


def decode_images(paths: list[str], recipe: dict[str, Any], out: str) -> list[int]:
    """Write the images of files to `out` as one .npy array (N, C, height, width) of float32; return its shape."""
    image_recipe = ImageRecipe(**recipe)
    images = np.stack([read_image(Path(path), image_recipe) for path in paths])
    np.save(out, images)
    return list(images.shape)


def recipe_json(recipe: ImageRecipe) -> dict[str, Any]:
    """Return a recipe as plain data, for `decode_images`."""
    return asdict(recipe)


def read_image(path: Path, recipe: ImageRecipe) -> FloatArray:
    """Return an image file as (C, height, width), 0 to `white`. Raises SourceError for an invalid or too large
    image.
    """
    from PIL import Image, ImageOps

    expected = f"an image of at most {MAX_PIXELS} pixels: {', '.join(FORMATS)}"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SourceError(f"{path.name} holds {path.stat().st_size} bytes", f"at most {MAX_FILE_BYTES}")
        with Image.open(path, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise SourceError(f"{path.name} has {opened.width} x {opened.height} pixels", expected)
            image = _true_colors(ImageOps.exif_transpose(opened)).convert("L" if recipe.channels == "gray" else "RGB")
    except SourceError:
        raise
    except FileNotFoundError:
        raise SourceError(f"no image {path}", "a file", "correct the name") from None
    except Exception as error:  # each decoder has its own, and Pillow's warning of bombs
        raise SourceError(f"{path.name} cannot be read as an image: {first_line(error)}", expected) from None
    pixels = np.asarray(_fit_to_size(image, recipe), np.float32)
    pixels = pixels[None] if recipe.channels == "gray" else pixels.transpose(2, 0, 1)
    if recipe.channels == "BGR":
        pixels = pixels[::-1]
    return np.ascontiguousarray(scale_to_white(pixels, recipe.white))


def scale_to_white(pixels: FloatArray, white: float) -> FloatArray:
    """Scale pixels of 0 to 255 to 0 to `white`."""
    return pixels if white == 255.0 else pixels * np.float32(white / 255.0)


def _true_colors(image: Any) -> Any:
    """Return an image with colors instead of palette indices; transparency is dropped later, like in the zoos."""
    return image.convert("RGBA" if "transparency" in image.info else "RGB") if image.mode == "P" else image


def _fit_to_size(image: Any, recipe: ImageRecipe) -> Any:
    from PIL import Image

    how = Image.Resampling[recipe.interpolation.upper()]
    if recipe.fit == "stretch":
        return image.resize((recipe.width, recipe.height), how)
    short = min(image.size)
    if short != recipe.resize:
        size = [recipe.resize if side == short else int(recipe.resize * side / short) for side in image.size]
        image = image.resize((size[0], size[1]), how)
    left, top = (
        round((have - want) / 2.0) for have, want in zip(image.size, (recipe.width, recipe.height), strict=True)
    )
    return image.crop((left, top, left + recipe.width, top + recipe.height))  # beyond the image it is black


def image_files(folder: Path, most: int) -> dict[str, Path]:
    """Return name in the folder -> image file, in order. Raises SourceError for none, or too many."""
    if not folder.is_dir():
        raise SourceError(f"no folder {folder}", "a folder of images", "correct dataset.folder in params.yaml")
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            files[path.relative_to(folder).as_posix()] = path
            if len(files) > most:
                raise SourceError(f"more than {most} images in {folder}", f"at most {most}")
    if not files:
        raise SourceError(f"no images in {folder}", f"files that end in {', '.join(SUFFIXES)}")
    return files


def classes_of_files(names: Sequence[str], labels: Sequence[str] | None, table: Path | None) -> list[int]:
    """Return the class number of each file of a folder. Raises SourceError.

    table: a CSV file with the columns file and class (a number, or a name in `labels`). Without it, the first folder in
    a file's name is its class: an entry of `labels` if all are, else numbered in order.
    """
    words = _of_table(table, names) if table is not None else [_folder_of(name) for name in names]
    known = {label: number for number, label in enumerate(labels or ())}
    if all(word in known for word in words):
        return [known[word] for word in words]
    if all(word.isascii() and word.isdigit() and len(word) < 9 for word in words):
        return [int(word) for word in words]
    if table is not None or (labels and any(word in known for word in words)):
        strange = next(word for word in words if word not in known)
        raise SourceError(
            f"class {strange[:60]!r} of a data set is not a label of the model", "numbers, or names listed in labels:"
        )
    numbers = {word: number for number, word in enumerate(sorted(set(words)))}
    return [numbers[word] for word in words]


def _folder_of(name: str) -> str:
    if "/" not in name:
        raise SourceError(
            f"{name} is not in a folder of its class",
            "one folder for each class, or dataset.labels: a CSV file",
            "move the images into folders",
        )
    return name.split("/")[0]


def _of_table(path: Path, names: Sequence[str]) -> list[str]:
    import csv

    try:
        if (size := path.stat().st_size) > MAX_TABLE_BYTES:
            raise SourceError(f"labels {path} hold {size} bytes", f"at most {MAX_TABLE_BYTES}")
        with path.open(newline="", encoding="utf-8") as file:
            rows = {row[0].strip(): row[1].strip() for row in csv.reader(file) if len(row) >= 2}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(
            f"labels {path} cannot be read: {first_line(error)}", "a CSV file with file and class"
        ) from None
    missing = [name for name in names if name not in rows]
    if missing:
        raise SourceError(
            f"labels {path} have no line for {missing[0]}", "a line for each image: its name and its class"
        )
    return [rows[name] for name in names]
