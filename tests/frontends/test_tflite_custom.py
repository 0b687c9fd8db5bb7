"""Test MediaPipe's custom operators against numpy: as LiteRT runs the file written for them, and as it is imported."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from bench.conformance.tflite_models import FileWriter
from tests.frontends.test_tflite_operators import interpret
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.frontends.tensorflow.frontend import load as load_source
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError

Array = np.ndarray[Any, Any]
_OPTIONS = {
    "left_rotation_idx": 1,
    "right_rotation_idx": 4,
    "target_rotation_radians": 0.3,
    "subset_idxs": [0, 2, 3, 5, 6],
    "output_height": 5,
    "output_width": 4,
    "scale_x": 1.5,
    "scale_y": 1.25,
}


def _source(folder: Path, content: bytes, inputs: dict[str, tuple[int, ...]]) -> Any:
    (folder / "model.tflite").write_bytes(content)
    specs = tuple(TensorSpec(name, shape) for name, shape in inputs.items())
    return load_source(folder, SourceDescription("tensorflow", None, "model.tflite", specs))


def _check(source: Any, inputs: list[Array], wanted: tuple[Array, ...]) -> None:
    for outputs in (source.run(*inputs), interpret(canonicalize(source.to_relax()), inputs)):
        assert [one.shape for one in outputs] == [one.shape for one in wanted]
        assert all(np.abs(one - other).max() < 2e-4 for one, other in zip(outputs, wanted, strict=True))


# -- pools with places ------------------------------------------------------------------------------------------------


def _pools(size: int, stride: int) -> bytes:
    writer = FileWriter()
    x = writer.tensor("x", (2, 4, 6, 3), "FLOAT32")
    best, places = (writer.tensor(name, (2, 2, 3, 3), "FLOAT32") for name in ("best", "places"))
    image = writer.tensor("image", (2, 4, 6, 3), "FLOAT32")
    options = struct.pack("<6i", 1, stride, stride, size, size, 0) + bytes(16)
    writer.operator("CUSTOM:MaxPoolingWithArgmax2D", [x], [best, places], custom=options)
    writer.operator("CUSTOM:MaxUnpooling2D", [best, places], [image], custom=options)
    return writer.content([x], [best, places, image])


def test_pools_with_places(tmp_path: Path) -> None:
    source = _source(tmp_path, _pools(2, 2), {"x": (2, 4, 6, 3)})
    x = np.random.default_rng(0).integers(-9, 1, (2, 4, 6, 3)).astype(np.float32)  # with ties: the first counts
    windows = x.reshape(2, 2, 2, 3, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 2, 3, 4, 3)
    at = windows.argmax(3)
    image = np.where(np.arange(4).reshape(1, 1, 1, 4, 1) == at[:, :, :, None], windows, 0)
    image = image.reshape(2, 2, 3, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
    _check(source, [x], (windows.max(3), at + np.float32(0.1), image))


def test_pools_with_places_that_overlap_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperatorError, match="MaxPoolingWithArgmax2D with windows of 3x3, strides 2x2"):
        _source(tmp_path, _pools(3, 2), {"x": (2, 4, 6, 3)})


# -- crops by landmarks -----------------------------------------------------------------------------------------------


def _crop(options: dict[str, Any], version: int = 2) -> bytes:
    """Return a file: landmarks and an image -> matrix, crop, landmarks of the crop in the image."""
    writer = FileWriter()
    landmarks, image = (
        writer.tensor("landmarks", (1, 7, 3), "FLOAT32"),
        writer.tensor("image", (1, 12, 10, 3), "FLOAT32"),
    )
    matrix, crop = writer.tensor("matrix", (1, 4, 4), "FLOAT32"), writer.tensor("crop", (1, 5, 4, 3), "FLOAT32")
    moved = writer.tensor("moved", (1, 7, 3), "FLOAT32")
    writer.operator("CUSTOM:Landmarks2TransformMatrix", [landmarks], [matrix], custom=bytes(flexbuffers.Dumps(options)))
    size = {"output_height": 5, "output_width": 4}
    writer.operator("CUSTOM:TransformTensorBilinear", [image, matrix], [crop], custom=bytes(flexbuffers.Dumps(size)))
    writer.operator("CUSTOM:TransformLandmarks", [landmarks, matrix], [moved])
    for code in writer.model.operatorCodes:
        code.version = version
    return writer.content([landmarks, image], [matrix, crop, moved])


def _rotation(angle: float) -> Array:
    found = np.eye(4)
    found[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return found


def _shift(x: float, y: float) -> Array:
    found = np.eye(4)
    found[:2, 3] = x, y
    return found


def _matrix(landmarks: Array) -> Array:
    points = landmarks[0, :, :2].astype(np.float64)
    (x, y), (right_x, right_y) = points[1], points[4]
    angle = 0.3 - np.arctan2(right_y - y, right_x - x)
    turned = points[_OPTIONS["subset_idxs"]] @ _rotation(angle)[:2, :2].T
    low, high = turned.min(0), turned.max(0)
    center = _rotation(-angle)[:2, :2] @ ((low + high) / 2)
    scale = np.diag([1.5 * (high - low)[0] / 4, 1.25 * (high - low)[1] / 5, 1, 1])
    return _shift(*center) @ _rotation(-angle) @ scale @ _shift(-2, -2.5)


def _cropped(image: Array, matrix: Array) -> Array:
    found = np.zeros((5, 4, 3))
    for row, column in np.ndindex(5, 4):
        x, y = (matrix @ [column + 0.5, row + 0.5, 0, 1])[:2] - 0.5
        if not (0 <= x <= 9 and 0 <= y <= 11):
            continue
        left, top = int(x), int(y)
        right, below = min(left + 1, 9), min(top + 1, 11)
        a, b = x - left, y - top
        upper = (1 - a) * image[0, top, left] + a * image[0, top, right]
        found[row, column] = (1 - b) * upper + b * ((1 - a) * image[0, below, left] + a * image[0, below, right])
    return found[None]


@pytest.mark.parametrize("kind", ["turned", "left to the right", "in one point"])
def test_crops_by_landmarks(kind: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    landmarks = generator.uniform(1, 8, (1, 7, 3)).astype(np.float32)
    if kind != "turned":
        landmarks[0, 4, :2] = landmarks[0, 1, :2] + ([3, 0] if kind == "left to the right" else [0, 0])
    image = generator.standard_normal((1, 12, 10, 3)).astype(np.float32)
    matrix = _matrix(landmarks)
    moved = landmarks.astype(np.float64)
    flat = np.concatenate([landmarks[0, :, :2], np.zeros((7, 1)), np.ones((7, 1))], 1)
    moved[0, :, :2] = (flat @ matrix.T)[:, :2]
    crop = _cropped(image, matrix)
    assert 0 < (crop == 0).sum() < crop.size or kind != "turned"  # some pixels lie outside
    source = _source(tmp_path, _crop(_OPTIONS), {"landmarks": (1, 7, 3), "image": (1, 12, 10, 3)})
    _check(source, [landmarks, image], (matrix[None], crop, moved))


@pytest.mark.parametrize(
    ("options", "version", "error", "message"),
    [
        (_OPTIONS, 1, UnsupportedOperatorError, "Landmarks2TransformMatrix of version 1"),
        (_OPTIONS | {"subset_idxs": [0, 7]}, 2, ModelFileError, "a place outside of its tensor"),
        ({"left_rotation_idx": 1}, 2, ModelFileError, "damaged: 'output_height'"),
        (_OPTIONS | {"output_width": 0}, 2, ModelFileError, "damaged: float division by zero"),
    ],
)
def test_other_versions_and_damaged_options_are_refused(
    options: dict[str, Any], version: int, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        _source(tmp_path, _crop(options, version), {"landmarks": (1, 7, 3), "image": (1, 12, 10, 3)})
