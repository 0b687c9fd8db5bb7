"""Data sets, their fixed split, and the preprocessing that a model wants.

`digits` comes with scikit-learn. Any other data set is an .npz file with `images` (N, C, H, W) or (N, H, W), real
numbers, and `labels` (N,), integers. A model without a data set gets inputs made from a seed: enough to compare forms of
the model with each other, and no accuracy.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tvmflow.errors import SourceError

MAX_DATASET_BYTES = 4 << 30
FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """x: (N, *input shape without batch) float32, preprocessed; y: (N,) int64 class numbers, or None."""

    x: FloatArray
    y: IntArray | None

    def save(self, path: Path) -> None:
        arrays = {"x": self.x} if self.y is None else {"x": self.x, "y": self.y}
        np.savez(path, **arrays)  # type: ignore[arg-type]

    @staticmethod
    def load(path: Path) -> Samples:
        with np.load(path, allow_pickle=False) as data:
            return Samples(data["x"], data["y"] if "y" in data.files else None)


@dataclass(frozen=True)
class Split:
    train: Samples
    calibration: Samples
    evaluation: Samples


@dataclass(frozen=True)
class SplitSizes:
    calibration: int
    evaluation: int
    seed: int


def load_dataset(name: str, root: Path) -> Samples:
    """Return the raw samples of `digits` or of an .npz file (relative to the workspace). Raises SourceError."""
    if name == "digits":
        from sklearn.datasets import load_digits

        data = load_digits()
        return Samples(data.images.astype(np.float32)[:, None], data.target.astype(np.int64))
    return _load_npz(root / name)


def _load_npz(path: Path) -> Samples:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_DATASET_BYTES:
            raise SourceError(f"data set {path} unpacks to {size} bytes", f"at most {MAX_DATASET_BYTES}")
        with np.load(path, allow_pickle=False) as data:
            images, labels = np.asarray(data["images"]), np.asarray(data["labels"])
    except FileNotFoundError:
        raise SourceError(
            f"no data set {path}", "'digits', or an .npz file with images and labels", "correct dataset: in params.yaml"
        ) from None
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise SourceError(f"data set {path} cannot be read: {error}", "an .npz file with images and labels") from None
    if images.ndim not in (3, 4) or labels.ndim != 1 or len(images) != len(labels):
        raise SourceError(
            f"data set {path} has images {images.shape} and labels {labels.shape}",
            "(N, C, H, W) or (N, H, W), and (N,)",
        )
    if not np.issubdtype(labels.dtype, np.integer) or not np.issubdtype(images.dtype, np.number):
        raise SourceError(f"data set {path} has dtypes {images.dtype} and {labels.dtype}", "numbers, and integers")
    images = images[:, None] if images.ndim == 3 else images
    return Samples(images.astype(np.float32), labels.astype(np.int64))


def split(samples: Samples, sizes: SplitSizes) -> Split:
    """Cut samples into train, calibration and evaluation parts that share no sample; fixed by the seed."""
    count, held = len(samples.x), sizes.calibration + sizes.evaluation
    if count <= held or samples.y is None:
        raise SourceError(
            f"the data set has {count} samples",
            f"more than calibration + evaluation = {held}",
            "lower fetch.calibration_samples or fetch.evaluation_samples",
        )
    order = np.random.default_rng(sizes.seed).permutation(count)
    parts = np.split(order, [sizes.evaluation, held])
    evaluation, calibration, train = (Samples(samples.x[part], samples.y[part]) for part in parts)
    return Split(train, calibration, evaluation)


def preprocess(x: FloatArray, scale: float, mean: tuple[float, ...], std: tuple[float, ...]) -> FloatArray:
    """Return (x * scale - mean) / std for x (N, C, H, W); mean and std have one number or one per channel."""
    for word, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, x.shape[1]):
            raise SourceError(f"preprocess.{word} has {len(values)} numbers", f"1 or {x.shape[1]}, one per channel")
    column = (1, -1) + (1,) * (x.ndim - 2)
    scaled = (x * scale - np.reshape(mean, column)) / np.reshape(std, column)
    return np.ascontiguousarray(scaled, dtype=np.float32)


def random_inputs(count: int, shape: tuple[int, ...], seed: int) -> Samples:
    """Return standard-normal inputs (count, *shape) made from a seed."""
    return Samples(np.random.default_rng(seed).standard_normal((count, *shape), dtype=np.float32), None)


def check_fits(samples: Samples, shape: tuple[int, ...], what: str) -> None:
    """Raise SourceError unless a sample has the shape of the model's input without its batch."""
    if samples.x.shape[1:] != shape[1:]:
        raise SourceError(
            f"{what} has samples of shape {samples.x.shape[1:]}",
            f"{shape[1:]}, from input.shape {list(shape)} without its batch",
            "correct input.shape or the data set",
        )
