"""The parts of a model's entry beside its weights: files of the user's own, data, labels, the network's factory."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tvmflow.errors import SourceError
from tvmflow.params import ModelEntry
from tvmflow.sources import datasets
from tvmflow.sources.datasets import Samples, SplitSizes
from tvmflow.sources.labels import BUILT_IN, read_labels
from tvmflow.sources.weights import WeightFiles, factory_file, local_file


def own_files(model: ModelEntry, weights: WeightFiles, root: Path) -> dict[str, Path]:
    """Return what it is -> path of every file of the workspace that a model names. Raises SourceError where one is missing."""
    files = {}
    if model.weights.file is not None:
        files["weights"] = local_file(model.weights.file, root)
        files |= weights.companions(files["weights"])
    factory = factory_file(model.network)
    if factory is not None:
        files["network"] = _existing("file", factory, root, "the file of the network factory", "network")
    if model.dataset is not None and model.dataset != "digits":
        files["dataset"] = _existing("dataset file", model.dataset, root, "a file, or digits", "dataset")
    if model.labels is not None and model.labels not in BUILT_IN:
        files["labels"] = _existing(
            "labels file", model.labels, root, f"a file, or one of {sorted(BUILT_IN)}", "labels"
        )
    return files


def _existing(what: str, name: str, root: Path, expected: str, key: str) -> Path:
    path = root / name
    if not path.is_file():
        raise SourceError(f"no {what} {path}", expected, f"correct {key}: in params.yaml")
    return path


def samples_of(model: ModelEntry, sizes: SplitSizes, random_samples: int, root: Path) -> dict[str, Samples]:
    """Return calibration and evaluation samples, and those to train on where the model has a data set."""
    tensors = model.tensors
    if model.dataset is None:
        wanted = [datasets.RandomInput(t.shape[1:], t.dtype, t.low, t.high) for t in tensors.values()]
        inputs = datasets.random_inputs(random_samples, wanted, sizes.seed)
        return {"calibration": inputs, "evaluation": inputs}
    if model.inputs:
        ready = _as_described(datasets.load_named(root / model.dataset, list(tensors)), model)
    else:
        raw, prepare = datasets.load_dataset(model.dataset, root), model.preprocess
        ready = Samples((datasets.preprocess(raw.x, prepare.scale, prepare.mean, prepare.std),), raw.y)
    datasets.check_fits(ready, [t.shape for t in tensors.values()], f"data set {model.dataset}")
    split = datasets.split(ready, sizes)
    return {"train": split.train, "calibration": split.calibration, "evaluation": split.evaluation}


def _as_described(samples: Samples, model: ModelEntry) -> Samples:
    """Return samples in the dtypes of the entry. Raises SourceError where numbers would change, or lie out of bounds."""
    ready = []
    for (name, tensor), x in zip(model.tensors.items(), samples.inputs, strict=True):
        with np.errstate(all="ignore"):
            cast = x.astype(tensor.dtype)
        low, high = tensor.low or 0, tensor.high
        if x.dtype.kind not in "biuf" or not np.isfinite(x).all() or (tensor.dtype != "float32" and (cast != x).any()):
            raise SourceError(f"{name} of data set {model.dataset} is {x.dtype}", f"numbers that are {tensor.dtype}")
        if high is not None and x.size and not low <= float(x.min()) <= float(x.max()) < high:
            raise SourceError(
                f"{name} of data set {model.dataset} has numbers from {x.min():g} to {x.max():g}", f"{low:g} <= x < {high:g}",
                "correct low and high of the input in params.yaml, or the data set",
            )  # fmt: skip
        ready.append(cast)
    return Samples(tuple(ready), samples.y)


def labels_of(model: ModelEntry, root: Path) -> list[str] | None:
    if model.labels is None:
        return None
    return BUILT_IN[model.labels] if model.labels in BUILT_IN else read_labels(root / model.labels)


def copy_network(network: str | None, root: Path, out: Path) -> str | None:
    """Copy a factory of the user's own, so that later stages use the very file that this key is made of."""
    path = factory_file(network)
    if path is None or network is None:
        return network
    shutil.copyfile(root / path, out / "network.py")
    return f"network.py:{network.split(':')[1]}"
