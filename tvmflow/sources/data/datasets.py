"""Load data sets, split them deterministically, and apply a model's preprocessing.

`digits` comes with scikit-learn. Any other data set is an .npz file with `images` (N, C, H, W) or (N, H, W), real
numbers, and `labels` (N,), integers, if there are any. A model without a data set gets seeded random inputs: enough to
compare versions of the model with each other, but without an accuracy.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tvmflow.sources.data.npz_files import read_arrays, read_headers
from tvmflow.support.errors import SourceError
from tvmflow.support.files import load_arrays, save_arrays

_DIGITS = "datasets/data/digits.csv.gz"
_LEAST = 8  # samples of a data set whose shares are still sensible
_COARSE = 4  # sizes of the coarse patterns in an input, along each axis
MAX_DATASET_BYTES = 4 << 30
MAX_CLASSES = 1 << 24
EDGES = ("zero", "negative", "large", "small")
FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
Arrays = tuple[NDArray[Any], ...]


class Shaped(Protocol):
    """An array, or its header."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Samples:
    """inputs: each (N, *shape without batch), preprocessed; y: (N,) int64 class numbers, (N, H, W) for maps, or
    None.
    """

    inputs: Arrays
    y: IntArray | None = None

    @property
    def x(self) -> FloatArray:
        """Return the input of a model with one input."""
        (x,) = self.inputs
        return x

    def __len__(self) -> int:
        return len(self.inputs[0])

    def part(self, which: slice | IntArray) -> Samples:
        """Return a subset of the samples."""
        return Samples(tuple(x[which] for x in self.inputs), None if self.y is None else self.y[which])

    def save(self, path: Path) -> None:
        save_arrays(path, x=self.inputs, y=() if self.y is None else (self.y,))

    @staticmethod
    def load(path: Path) -> Samples:
        return Samples(load_arrays(path, "x"), next(iter(load_arrays(path, "y")), None))


@dataclass(frozen=True)
class Split:
    train: Samples
    calibration: Samples
    evaluation: Samples


@dataclass(frozen=True)
class SplitSizes:
    """scales: the sizes are defaults, of which a smaller data set has the same shares."""

    calibration: int
    evaluation: int
    seed: int
    scales: bool = False


BUILT_IN_DATASETS = ("digits",)


def load_dataset(name: str, root: Path) -> Samples:
    """Return the raw samples of `digits` or of an .npz file (path relative to the workspace). Raises SourceError."""
    if name in BUILT_IN_DATASETS:
        return _load_digits()
    return _load_npz(root / name)


def _load_digits() -> Samples:
    """Return the data of scikit-learn's load_digits, from its file: importing scikit-learn takes 2 s."""
    found = importlib.util.find_spec("sklearn")
    file = Path(*(found.submodule_search_locations or ())[:1], _DIGITS) if found else None
    if file is None or not file.is_file():
        raise SourceError(
            "the data set 'digits' requires scikit-learn, which is not installed",
            "scikit-learn",
            "pip install 'tvmflow[demo]'",
        )
    table = np.loadtxt(file, delimiter=",")  # 64 pixels and the digit
    return Samples((table[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32),), table[:, -1].astype(np.int64))


def _load_npz(path: Path) -> Samples:
    if not path.is_file():
        raise SourceError(
            f"no data set {path}",
            "'digits', or an .npz file with images (and labels)",
            "correct dataset: in params.yaml",
        )
    arrays = read_arrays(path, ("images",), MAX_DATASET_BYTES, optional=("labels",))
    _check_images(path, arrays)
    images, labels = arrays["images"], arrays.get("labels")
    classes = None if labels is None else _class_numbers(labels, path)
    images = images[:, None] if images.ndim == 3 else images
    with np.errstate(over="ignore"):
        x = images.astype(np.float32)
    if not np.isfinite(x).all():
        raise SourceError(f"data set {path} has images with values that are not finite", "finite float32 values")
    return Samples((x,), classes)


def _check_images(path: Path, arrays: Mapping[str, Shaped]) -> None:
    images, labels = arrays["images"].shape, arrays["labels"].shape if "labels" in arrays else None
    if len(images) not in (3, 4) or labels not in (None, images[:1]):
        beside = "" if labels is None else f" and labels {labels}"
        raise SourceError(f"data set {path} has images {images}{beside}", "(N, C, H, W) or (N, H, W), and (N,)")


def check_headers(path: Path, names: Sequence[str] | None, shapes: Sequence[tuple[int, ...]], what: str) -> bool:
    """Raise SourceError for what the headers of an .npz file show of `load_dataset`, or of `load_named` with names:
    absent arrays, shapes that do not fit to `shapes`, types. Reads no values. Returns whether it has labels.
    """
    headers = read_headers(path, tuple(names or ("images",)), MAX_DATASET_BYTES, optional=("labels",))
    if names is None:
        _check_images(path, headers)
        images = headers["images"].shape
        found = [(images[0], 1, *images[1:]) if len(images) == 3 else images]
    else:
        _check_counts(path, headers)
        found = [headers[name].shape for name in names]
    if "labels" in headers and headers["labels"].dtype.kind not in "iu":
        raise _not_class_numbers(path, headers["labels"].dtype)
    check_fits(found, shapes, what)
    return "labels" in headers


def _not_class_numbers(path: Path, dtype: np.dtype[Any]) -> SourceError:
    return SourceError(f"data set {path} has labels of {dtype} that are not class numbers", "integers from 0")


def _class_numbers(labels: NDArray[Any], path: Path) -> IntArray:
    if labels.dtype.kind not in "iu" or (labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < MAX_CLASSES):
        raise _not_class_numbers(path, labels.dtype)
    return labels.astype(np.int64)


def split(samples: Samples, sizes: SplitSizes) -> Split:
    """Split samples into disjoint train, calibration and evaluation parts, determined by the seed."""
    count, held = len(samples), sizes.calibration + sizes.evaluation
    held_evaluation = sizes.evaluation
    if sizes.scales and _LEAST <= count <= held:
        held_evaluation, held = (count - 1) * sizes.evaluation // held, count - 1
    if count <= held:
        raise SourceError(
            f"the data set has {count} samples",
            f"more than calibration + evaluation = {held}",
            "lower fetch.calibration_samples or fetch.evaluation_samples",
        )
    order = np.random.default_rng(sizes.seed).permutation(count)
    parts = np.split(order, [held_evaluation, held])
    evaluation, calibration, train = (samples.part(part) for part in parts)
    return Split(train, calibration, evaluation)


def preprocess(x: FloatArray, scale: float, mean: tuple[float, ...], std: tuple[float, ...]) -> FloatArray:
    """Return (x * scale - mean) / std for x (N, C, H, W); mean and std have one number or one per channel."""
    for word, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, x.shape[1]):
            raise SourceError(f"preprocess.{word} has {len(values)} numbers", f"1 or {x.shape[1]}, one per channel")
    column = (1, -1) + (1,) * (x.ndim - 2)
    with np.errstate(over="ignore"):
        scaled = (x * scale - np.reshape(mean, column)) / np.reshape(std, column)
        ready = np.ascontiguousarray(scaled, dtype=np.float32)
    if not np.isfinite(ready).all():
        raise SourceError(
            "preprocess produces values that are not finite", "finite float32 values", "correct preprocess:"
        )
    return ready


@dataclass(frozen=True)
class RandomInput:
    """A seeded random input: shape without batch, numpy dtype, low <= x < high if bounded."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None


def random_inputs(count: int, inputs: Sequence[RandomInput], seed: int) -> Samples:
    """Return `count` seeded samples of inputs: unbounded floats by `varied_inputs`, all else uniform.

    Integers of two values are a run of the higher, at least one, then the lower, like padding masks. Raises SourceError
    if they are too large.
    """
    size = sum(np.dtype(one.dtype).itemsize * count * math.prod(one.shape) for one in inputs)
    if size > MAX_DATASET_BYTES:
        raise SourceError(
            f"{count} random inputs of shapes {[one.shape for one in inputs]} take {size} bytes",
            f"at most {MAX_DATASET_BYTES}",
            "lower fetch.random_samples",
        )
    generator = np.random.default_rng(seed)
    return Samples(tuple(_random(one, count, generator) for one in inputs))


def _random(one: RandomInput, count: int, generator: np.random.Generator) -> NDArray[Any]:
    dtype, shape = np.dtype(one.dtype), (count, *one.shape)
    if dtype.kind == "f":
        if one.high is None:
            return varied_inputs(count, one.shape, generator)
        return generator.uniform(one.low or 0.0, one.high, shape).astype(dtype)
    low, high = (int(bound) for bound in _bounds(one))
    if high - low == 2 and one.shape:
        lengths = generator.integers(1, one.shape[-1] + 1, (*shape[:-1], 1))
        return (low + (np.arange(one.shape[-1]) < lengths)).astype(dtype)
    return generator.integers(low, high, shape, dtype=np.int64).astype(dtype)


def _bounds(one: RandomInput) -> tuple[float, float]:
    """Return the bounds of an input's values, low <= x < high."""
    dtype = np.dtype(one.dtype)
    if one.high is not None:
        return one.low or 0, one.high
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (0, 2) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max + 1)


def edge_inputs(samples: Samples, inputs: Sequence[RandomInput]) -> dict[str, Arrays]:
    """Return name -> inputs (1, ...) at the edges of what a model may get, all within the bounds of its inputs.

    Floats: zero, the other sign, a hundred times as large, a thousandth. Integers and booleans: the lowest, the
    highest, both in turn.
    """
    first, second = (Samples(samples.part(slice(at, at + 1)).inputs) for at in (0, min(1, len(samples) - 1)))
    bases = zip(EDGES, (first, first, second, first), (0.0, -1.0, 1e2, 1e-3), strict=True)
    return {
        name: tuple(_edge(one, x, factor) for one, x in zip(inputs, base.inputs, strict=True))
        for name, base, factor in bases
    }


def _edge(one: RandomInput, x: NDArray[Any], factor: float) -> NDArray[Any]:
    low, high = _bounds(one)
    if x.dtype.kind == "f":
        below = np.nextafter(np.asarray(high, x.dtype), np.asarray(low, x.dtype)) if one.high is not None else high
        return np.asarray(np.clip(x * factor, low, below), x.dtype)
    lowest, highest = x.dtype.type(low), x.dtype.type(int(high) - 1)
    if factor == 0.0:
        return np.full_like(x, lowest)
    if factor < 0.0:
        return np.full_like(x, highest)
    in_turn = np.arange(x.size).reshape(x.shape) % 2
    return np.where(in_turn == 0, lowest, highest).astype(x.dtype) if factor < 1.0 else x


def load_edges(path: Path) -> dict[str, Arrays]:
    """Return what `edge_inputs` made; empty without such a file."""
    return {name: load_arrays(path, name) for name in EDGES} if path.is_file() else {}


def load_named(path: Path, names: Sequence[str]) -> Samples:
    """Return the inputs of an .npz file by name, and its `labels` if present. Raises SourceError."""
    arrays = read_arrays(path, tuple(names), MAX_DATASET_BYTES, optional=("labels",))
    _check_counts(path, arrays)
    labels = arrays.get("labels")
    return Samples(tuple(arrays[name] for name in names), None if labels is None else _class_numbers(labels, path))


def _check_counts(path: Path, arrays: Mapping[str, Shaped]) -> None:
    if len({array.shape[:1] or (-1,) for array in arrays.values()}) != 1:
        shown = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise SourceError(f"data set {path} has {shown}", "the same number of samples in each")


def varied_inputs(count: int, shape: tuple[int, ...], generator: np.random.Generator) -> FloatArray:
    """Return inputs (count, *shape), mean about 0 and variance 1 overall, that differ from each other as images do.

    Noise alone is not enough: a network that averages over space gives nearly the same output for any two noise images,
    and errors are measured relative to how outputs differ. So each input has a level, coarse patterns, and noise of its
    own strength.
    """
    coarse = generator.standard_normal((count, *(min(_COARSE, size) for size in shape)))
    for axis, size in enumerate(shape, start=1):
        coarse = np.moveaxis(np.moveaxis(coarse, axis, -1) @ _interpolation_matrix(coarse.shape[axis], size), -1, axis)
    each = (count, *(1 for _ in shape))
    noise = generator.standard_normal((count, *shape)) * generator.uniform(0.1, 0.5, each)
    x = noise + coarse * generator.uniform(0.5, 1.5, each) + generator.standard_normal(each)
    return np.asarray(x / max(float(x.std()), 1e-6), dtype=np.float32)


def _interpolation_matrix(points: int, size: int) -> FloatArray:
    """Return the matrix (points, size) of linear interpolation between points."""
    positions = np.linspace(0, points - 1, size)
    return np.stack([np.interp(positions, np.arange(points), unit) for unit in np.eye(points)]).astype(np.float32)


def check_fits(found: Sequence[tuple[int, ...]], shapes: Sequence[tuple[int, ...]], what: str) -> None:
    """Raise SourceError unless arrays (N, ...) of samples have these shapes, which are without batch."""
    for (_, *sizes), shape in zip(found, shapes, strict=True):
        if tuple(sizes) != shape:
            raise SourceError(
                f"{what} has samples of shape {tuple(sizes)}",
                f"{shape}, from input.shape without its batch",
                "correct input.shape or the data set",
            )
