"""Resolve the files of a model's entry beside its weights: data, labels and the network's factory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.config.params import ImageFolder, ModelEntry
from tvmflow.sources.data import datasets
from tvmflow.sources.data.datasets import Samples, SplitSizes
from tvmflow.sources.data.images import ImageRecipe, classes_of_files, image_files
from tvmflow.sources.data.labels import BUILT_IN, read_labels
from tvmflow.sources.data.preprocessing import normalize_images, recipe_for
from tvmflow.sources.weights import WeightFiles, factory_file, local_file
from tvmflow.support.errors import SourceError, UsageError
from tvmflow.support.samples import sample_shape

MAX_IMAGES = 100_000
ReadImages = Callable[[list[Path], ImageRecipe], Any]  # files -> (N, C, height, width) float32


def own_files(model: ModelEntry, weights: WeightFiles, root: Path) -> dict[str, Path]:
    """Return description -> path of every workspace file in a model's entry. Raises SourceError for a missing one."""
    files = {}
    if model.weights.file is not None:
        files["weights"] = local_file(model.weights.file, root)
        files |= weights.companions(files["weights"])
    factory = factory_file(model.network)
    if factory is not None:
        files["network"] = _existing("file", factory, root, "the file of the network factory", "network")
    if isinstance(model.dataset, ImageFolder):
        files |= {
            f"dataset/{name}": path for name, path in image_files(root / model.dataset.folder, MAX_IMAGES).items()
        }
        if model.dataset.labels is not None:
            files["dataset labels"] = _existing(
                "labels file", model.dataset.labels, root, "a CSV file", "dataset.labels"
            )
    elif model.dataset is not None and model.dataset != "digits":
        files["dataset"] = _existing("dataset file", model.dataset, root, "a file, or digits", "dataset")
    if model.labels is not None and model.labels not in BUILT_IN:
        files["labels"] = _existing(
            "labels file", model.labels, root, f"a file, or one of {sorted(BUILT_IN)}", "labels"
        )
    return files


def tokenizer_file(model: ModelEntry, root: Path) -> Path:
    """Return the tokenizer.json of a model of texts. Raises UsageError, SourceError."""
    if model.tokenizer is None:
        raise UsageError(
            "a text for a model without a tokenizer",
            "models.NAME.tokenizer: the tokenizer.json that the model was trained with",
            "add it to params.yaml, or give the inputs as a file of arrays (.npy, .npz, .csv)",
        )
    return _existing("file", model.tokenizer, root, "the tokenizer.json of the model", "tokenizer")


def _existing(what: str, name: str, root: Path, expected: str, key: str) -> Path:
    path = root / name
    if not path.is_file():
        raise SourceError(f"no {what} {path}", expected, f"correct {key}: in params.yaml")
    return path


def image_recipe(model: ModelEntry) -> ImageRecipe:
    """Return the image recipe of the model's single input. Raises SourceError for an input that is no image."""
    return recipe_for([tensor.shape for tensor in model.tensors.values()], model.preprocess)


def prepare_images(x: Any, model: ModelEntry) -> Any:
    """Return images (N, C, H, W) preprocessed for the model: scale, mean, std and dtype of its entry."""
    return normalize_images(x, model.preprocess, next(iter(model.tensors.values())).dtype)


def _folder_samples(model: ModelEntry, dataset: ImageFolder, root: Path, read_images: ReadImages) -> Samples:
    files = image_files(root / dataset.folder, MAX_IMAGES)
    table = None if dataset.labels is None else root / dataset.labels
    has_classes = table is not None or any("/" in name for name in files)  # or the images lie in the folder itself
    y = np.asarray(classes_of_files(list(files), labels_of(model, root), table), np.int64) if has_classes else None
    recipe = image_recipe(model)
    size = len(files) * 3 * 4 * recipe.height * recipe.width
    if size > datasets.MAX_DATASET_BYTES:
        raise SourceError(
            f"{len(files)} images take {size} bytes", f"at most {datasets.MAX_DATASET_BYTES}", "use fewer"
        )
    return Samples((prepare_images(read_images(list(files.values()), recipe), model),), y)


def random_specs(model: ModelEntry) -> list[datasets.RandomInput]:
    """Return one sample of each input of a model: shape, dtype and bounds."""
    return [
        datasets.RandomInput(sample_shape(t.shape, model.batch), t.dtype, t.low, t.high) for t in model.tensors.values()
    ]


def samples_of(
    model: ModelEntry, sizes: SplitSizes, random_samples: int, root: Path, read_images: ReadImages
) -> dict[str, Samples]:
    """Return calibration and evaluation samples, and training samples if the model has a data set."""
    tensors = model.tensors
    if model.dataset is None:
        inputs = datasets.random_inputs(random_samples, random_specs(model), sizes.seed)
        return {"calibration": inputs, "evaluation": inputs}
    if isinstance(model.dataset, ImageFolder):
        ready = _folder_samples(model, model.dataset, root, read_images)
    elif model.inputs:
        ready = _convert_samples(datasets.load_named(root / model.dataset, list(tensors)), model)
    else:
        ready = _prepared(datasets.load_dataset(model.dataset, root), model)
    _check_labeled(model, ready.y is not None)
    datasets.check_fits([x.shape for x in ready.inputs], _shapes(model), f"data set {model.dataset}")
    split = datasets.split(ready, sizes)
    return {"train": split.train, "calibration": split.calibration, "evaluation": split.evaluation}


def _shapes(model: ModelEntry) -> list[tuple[int, ...]]:
    return [sample_shape(tensor.shape, model.batch) for tensor in model.tensors.values()]


def _check_labeled(model: ModelEntry, has_labels: bool) -> None:
    if model.metric is not None and not has_labels:
        raise SourceError(
            f"data set {model.dataset} has no labels",
            f"labels, for metric: {model.metric}",
            "add them, or remove metric:",
        )


def check_dataset(model: ModelEntry, root: Path) -> None:
    """Raise SourceError for what `samples_of` would find wrong by the headers of an .npz data set alone."""
    if model.dataset is None or isinstance(model.dataset, ImageFolder) or model.dataset in datasets.BUILT_IN_DATASETS:
        return
    path = _existing("dataset file", model.dataset, root, "a file, or digits", "dataset")
    names = list(model.tensors) if model.inputs else None
    _check_labeled(model, datasets.check_headers(path, names, _shapes(model), f"data set {model.dataset}"))


def _prepared(raw: Samples, model: ModelEntry) -> Samples:
    """Return the images of a data set as the model takes them."""
    if model.preprocess.dataset == "preprocessed":
        return _convert_samples(raw, model)
    is_flipped = model.preprocess.channels == "BGR" and raw.x.ndim == 4 and raw.x.shape[1] == 3
    return Samples((prepare_images(raw.x[:, ::-1] if is_flipped else raw.x, model),), raw.y)


def _convert_samples(samples: Samples, model: ModelEntry) -> Samples:
    """Return samples in the dtypes of the entry. Raises SourceError for values that would change or are out of
    bounds.
    """
    ready = []
    for (name, tensor), x in zip(model.tensors.items(), samples.inputs, strict=True):
        with np.errstate(all="ignore"):
            cast = x.astype(tensor.dtype)
        low, high = tensor.low or 0, tensor.high
        if x.dtype.kind not in "biuf" or not np.isfinite(x).all() or (tensor.dtype != "float32" and (cast != x).any()):
            raise SourceError(f"{name} of data set {model.dataset} is {x.dtype}", f"values of {tensor.dtype}")
        if high is not None and x.size and not low <= float(x.min()) <= float(x.max()) < high:
            raise SourceError(
                f"{name} of data set {model.dataset} has numbers from {x.min():g} to {x.max():g}",
                f"{low:g} <= x < {high:g}",
                "correct low and high of the input in params.yaml, or the data set",
            )
        ready.append(cast)
    return Samples(tuple(ready), samples.y)


def labels_of(model: ModelEntry, root: Path) -> list[str] | None:
    if model.labels is None:
        return None
    return BUILT_IN[model.labels]() if model.labels in BUILT_IN else read_labels(root / model.labels)


def copy_network(network: str | None, root: Path, out: Path) -> str | None:
    """Copy a user's network factory, so that later stages use the file whose digest is in the recipe key."""
    path = factory_file(network)
    if path is None or network is None:
        return network
    shutil.copyfile(root / path, out / "network.py")
    return f"network.py:{network.split(':')[1]}"
