"""Test what makes preprocessing doubtful, whether stored images are preprocessed already, and splits of small sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmflow.config.params import ModelEntry
from tvmflow.sources.data import datasets
from tvmflow.sources.data.datasets import Samples, SplitSizes
from tvmflow.sources.data.preprocessing import doubts
from tvmflow.sources.model_files import samples_of
from tvmflow.support.errors import SourceError


def _entry(shape: tuple[int, ...] = (1, 3, 8, 8), **more: Any) -> ModelEntry:
    block = {"framework": "onnx", "weights": {"file": "m.onnx"}, "input": {"shape": list(shape)}, **more}
    return ModelEntry.model_validate(block)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (_entry(), "no preprocess: is declared"),
        (_entry(preprocess={"preset": "torchvision"}), ""),
        (_entry(preprocess={"preset": "keras/caffe"}), ""),
        (_entry(preprocess={"preset": "keras/none"}), ""),
        (_entry(preprocess={"scale": 1.0}), ""),
        (_entry(preprocess={"mean": [0.485, 0.456, 0.406], "std": [0.2, 0.2, 0.2]}), "preprocess.mean 0.485 is"),
        (_entry(preprocess={"mean": [0.485, 0.456, 0.406], "white": 1.0}), ""),
        (_entry(preprocess={"mean": [0.5], "scale": 0.00784}), ""),
        (_entry((1, 10)), ""),
        (_entry((1, 16, 8, 8)), ""),
    ],
)
def test_pixels_that_no_training_saw_are_doubtful(entry: ModelEntry, says: str) -> None:
    found = doubts(entry)
    assert (len(found) == 1 and says in found[0]) if says else found == ()


@pytest.mark.parametrize("stored", ["raw", "preprocessed"])
def test_stored_images_are_preprocessed_once(stored: str, tmp_path: Path) -> None:
    images = np.arange(12 * 3 * 64, dtype=np.float32).reshape(12, 3, 8, 8)
    np.savez(tmp_path / "d.npz", images=images)
    how = {"scale": 0.5, "mean": [1.0], "channels": "BGR", "dataset": stored}
    entry = _entry(dataset="d.npz", preprocess=how)
    parts = samples_of(entry, SplitSizes(3, 8, 0), 4, tmp_path, lambda _files, _recipe: None)
    found = np.sort(np.concatenate([one.x for one in parts.values()]).ravel())
    expected = images if stored == "preprocessed" else images[:, ::-1] * 0.5 - 1.0
    assert np.array_equal(found, np.sort(expected.ravel()))


@pytest.mark.parametrize("count", [8, 60, 599, 600])
def test_a_small_set_keeps_the_shares_of_the_default(count: int) -> None:
    samples = Samples((np.arange(count, dtype=np.float32).reshape(count, 1),))
    parts = datasets.split(samples, SplitSizes(200, 400, 0, scales=True))
    sizes = [len(part) for part in (parts.train, parts.calibration, parts.evaluation)]
    assert sum(sizes) == count and min(sizes) >= 1 and sizes[2] == pytest.approx(2 * sizes[1], abs=2)
    with pytest.raises(SourceError, match=f"the data set has {count} samples"):
        datasets.split(samples, SplitSizes(200, 400, 0))


def test_a_set_of_a_few_and_a_large_one_are_split_as_asked() -> None:
    few, many = (Samples((np.zeros((count, 1), np.float32),)) for count in (7, 1000))
    with pytest.raises(SourceError, match="the data set has 7 samples"):
        datasets.split(few, SplitSizes(200, 400, 0, scales=True))
    parts = datasets.split(many, SplitSizes(200, 400, 0, scales=True))
    assert (len(parts.train), len(parts.calibration), len(parts.evaluation)) == (400, 200, 400)
