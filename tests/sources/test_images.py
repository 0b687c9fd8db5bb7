"""Test image preprocessing against the model zoos, folders as data sets, and class names of outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tvmflow.config.params import ModelEntry
from tvmflow.evaluation.predict import predictions
from tvmflow.sources.data import images
from tvmflow.sources.data.datasets import SplitSizes
from tvmflow.sources.data.labels import BUILT_IN
from tvmflow.sources.model_files import image_recipe, own_files, prepare_images, samples_of
from tvmflow.sources.weights import WeightFiles
from tvmflow.support.errors import SourceError, UsageError


def _photo(path: Path, size: tuple[int, int] = (301, 207), mode: str = "RGB") -> Path:
    rows, columns = np.mgrid[: size[1], : size[0]]
    channels = [np.sin(rows / 7 + at) * np.cos(columns / (9 + at)) * 127 + 128 for at in range(3)]
    Image.fromarray(np.stack(channels, -1).astype(np.uint8)).convert(mode).save(path)
    return path


def _entry(shape: tuple[int, ...] = (1, 3, 64, 64), **fields: Any) -> ModelEntry:
    return ModelEntry.model_validate(
        {"framework": "onnx", "weights": {"file": "m.onnx"}, "input": {"shape": shape}, **fields}
    )


def _ready(path: Path, entry: ModelEntry) -> Any:
    return prepare_images(images.read_image(path, image_recipe(entry))[None], entry)[0]


@pytest.mark.parametrize("size", [(301, 207), (200, 333), (74, 74), (40, 50)])
def test_the_torchvision_preset_is_what_torchvision_does(tmp_path: Path, size: tuple[int, int]) -> None:
    from tvmflow.sources.networks.torch_zoo import torchvision_models

    torchvision_models()
    from torchvision import transforms

    path = _photo(tmp_path / "photo.png", size)
    theirs = transforms.Compose(
        [
            transforms.Resize(73),
            transforms.CenterCrop(64),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )(Image.open(path)).numpy()
    ours = _ready(path, _entry(preprocess={"preset": "torchvision"}))
    assert ours.shape == theirs.shape and np.abs(ours - theirs).max() < 1e-5
    small = _ready(path, _entry(preprocess={"preset": "torchvision", "resize": 64}))
    assert np.abs(small - theirs).max() > 0.1, "an explicit key goes before the preset's"


def test_a_crop_beyond_the_image_is_black(tmp_path: Path) -> None:
    from tvmflow.sources.networks.torch_zoo import torchvision_models

    torchvision_models()
    from torchvision import transforms

    path = _photo(tmp_path / "photo.png", (90, 60))
    theirs = transforms.Compose([transforms.Resize(50), transforms.CenterCrop(64), transforms.PILToTensor()])
    assert np.array_equal(
        _ready(path, _entry(preprocess={"resize": 50})), theirs(Image.open(path)).numpy().astype(np.float32)
    )


@pytest.mark.parametrize("mode", ["tf", "torch", "caffe"])
def test_the_keras_presets_are_what_keras_does(tmp_path: Path, mode: str) -> None:
    from tvmflow.sources.networks.keras_zoo import keras_on_torch

    keras = keras_on_torch()
    from keras.src.applications.imagenet_utils import preprocess_input

    path = _photo(tmp_path / "photo.png")
    image = keras.utils.img_to_array(keras.utils.load_img(path, target_size=(64, 48)), data_format="channels_last")
    theirs = preprocess_input(image[None], data_format="channels_last", mode=mode)[0].transpose(2, 0, 1)
    ours = _ready(path, _entry((1, 3, 64, 48), preprocess={"preset": f"keras/{mode}"}))
    assert ours.shape == (3, 64, 48) and np.abs(ours - theirs).max() < 1e-4


def test_gray_white_and_odd_kinds_of_images(tmp_path: Path) -> None:
    entry = _entry((1, 1, 8, 8), preprocess={"white": 16.0, "scale": 0.0625})
    Image.new("L", (8, 8), 255).save(tmp_path / "white.bmp")
    assert np.allclose(_ready(tmp_path / "white.bmp", entry), 1.0), "white is 16, as in the data set"
    colors = _ready(_photo(tmp_path / "p.png"), _entry())
    for mode, name in (("P", "palette.png"), ("RGBA", "alpha.png")):
        pixels = _ready(_photo(tmp_path / name, mode=mode), _entry())
        assert np.abs(pixels - colors).mean() < (40 if mode == "P" else 1e-6)
    flipped = _ready(tmp_path / "p.png", _entry(preprocess={"channels": "BGR"}))
    assert np.array_equal(flipped, colors[::-1])


def test_what_is_no_image_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = image_recipe(_entry())
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    Image.new("RGB", (9, 9)).save(tmp_path / "b.png", format="GIF")
    whole = _photo(tmp_path / "c.jpg").read_bytes()
    (tmp_path / "c.jpg").write_bytes(whole[: len(whole) // 2])
    for name in ("a.png", "b.png", "c.jpg", "gone.png"):
        with pytest.raises(SourceError, match=name.split(".")[0]):
            images.read_image(tmp_path / name, recipe)
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    with pytest.raises(SourceError, match="301 x 207 pixels"):
        images.read_image(_photo(tmp_path / "large.png"), recipe)
    with pytest.raises(SourceError, match="for images"):
        image_recipe(_entry((1, 7)))


def _here(paths: list[Path], recipe: images.ImageRecipe) -> Any:
    return np.stack([images.read_image(path, recipe) for path in paths])


def _folder(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        _photo(root / name, (20, 24))


def test_a_folder_of_images_is_a_data_set(tmp_path: Path) -> None:
    _folder(tmp_path / "data", [f"{kind}/{at}.jpg" for kind in ("dog", "cat") for at in range(6)])
    entry = _entry((1, 3, 16, 16), dataset={"folder": "data"}, preprocess={"preset": "torchvision"})
    parts = samples_of(entry, SplitSizes(3, 4, 0), 8, tmp_path, _here)
    assert parts["evaluation"].x.shape == (4, 3, 16, 16) and len(parts["train"]) == 5
    labels = np.concatenate([part.y for part in parts.values() if part.y is not None])
    assert sorted(labels.tolist()) == [0] * 6 + [1] * 6
    files = own_files(
        _entry(dataset={"folder": "data"}).model_copy(update={"weights": _weights()}), WeightFiles(()), tmp_path
    )
    assert len([name for name in files if name.startswith("dataset/")]) == 12, "each is in the recipe key"


def _weights() -> Any:
    return ModelEntry.model_validate(
        {"framework": "torch", "network": "digits_cnn", "weights": {"seeded": 1}, "input": {"shape": [1, 1, 8, 8]}}
    ).weights


def test_classes_of_a_folder_come_from_labels_or_a_table(tmp_path: Path) -> None:
    names = ["cat/a.jpg", "dog/b.jpg"]
    assert images.classes_of_files(names, ["bird", "dog", "cat"], None) == [2, 1]
    assert images.classes_of_files(names, None, None) == [0, 1]
    assert images.classes_of_files(["7/a.jpg", "3/b.jpg"], None, None) == [7, 3]
    (tmp_path / "labels.csv").write_text("file,class\ncat/a.jpg,dog\ndog/b.jpg,bird\n")
    assert images.classes_of_files(names, ["bird", "dog"], tmp_path / "labels.csv") == [1, 0]
    for wrong, labels, says in (
        (["a.jpg"], None, "not in a folder"),
        (["cat/a.jpg", "cow/b.jpg"], ["cat"], "'cow'"),
    ):
        with pytest.raises(SourceError, match=says):
            images.classes_of_files(wrong, labels, None)
    with pytest.raises(SourceError, match="no line for cow"):
        images.classes_of_files(["cow/a.jpg"], None, tmp_path / "labels.csv")


def test_outputs_become_names_and_probabilities() -> None:
    names = BUILT_IN["imagenet"]()
    assert len(names) == 1000 and names[0] == "tench"
    row = np.zeros((1, 1000), np.float32)
    row[0, 281], row[0, 282] = 9.0, 8.0
    [prediction] = predictions(["a.jpg"], row, names, 2, None)
    assert [guess.name for guess in prediction.top] == ["tabby", "tiger cat"]
    assert prediction.top[0].probability == pytest.approx(np.exp(9) / (np.exp(9) + np.exp(8) + 998))
    assert predictions(["a"], np.array([[0.25, 0.75]]), None, 5, None)[0].top[0].probability == 0.75
    assert predictions(["a"], np.array([[0.25, 0.75]]), None, 5, None)[0].to_json()["top"][0]["name"] == "class 1"
    with pytest.raises(UsageError, match="scores of classes"):
        predictions(["a"], np.zeros((1, 3, 4, 4)), None, 5, None)
