"""Write MediaPipe's operators that crop parts of a face by landmarks, in their second version, as builtin ones.

Landmarks2TransformMatrix makes a matrix (1, 4, 4) from pixels of a crop to those of the image: around the box of some
landmarks, turned as two of them lie. TransformTensorBilinear crops an image by it, TransformLandmarks moves landmarks
found in the crop back. Only the first two rows of the matrix, without their third column, are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvmflow.frontends.tensorflow.written_operators import Place
from tvmflow.support.errors import UnsupportedOperatorError


def _check_version(place: Place, name: str) -> None:
    if place.version != 2:
        raise UnsupportedOperatorError(
            f"TFLite operator {name} of version {place.version}", "version 2", "use a newer file of this model"
        )


def _matrix_of_landmarks(place: Place) -> None:
    _check_version(place, "Landmarks2TransformMatrix")
    given, landmarks = place.named_options(), place.inputs[0]
    height, width = int(given["output_height"]), int(given["output_width"])

    def coordinates(places: list[int]) -> list[int]:
        points = place.gather(landmarks, places, 1)
        return [place.gather(points, [axis], 2) for axis in (0, 1)]

    left, right = (coordinates([int(given[f"{side}_rotation_idx"])]) for side in ("left", "right"))
    cosine, sine = _rotation(place, left, right, float(given["target_rotation_radians"]))
    x, y = coordinates([int(number) for number in given["subset_idxs"]])
    turned = _turned(place, x, y, cosine, sine)
    lowest, highest = ([_limit(place, name, axis) for axis in turned] for name in ("REDUCE_MIN", "REDUCE_MAX"))
    half, back = place.number(0.5), place.multiply(sine, place.number(-1))
    center = [place.multiply(place.add(a, b), half) for a, b in zip(lowest, highest, strict=True)]
    center = _turned(place, center[0], center[1], cosine, back)
    scale_x, scale_y = (
        place.multiply(place.subtract(b, a), place.number(float(given[name]) / size))
        for a, b, name, size in zip(lowest, highest, ("scale_x", "scale_y"), (width, height), strict=True)
    )
    zero, one = (place.constant(np.full((1, 1, 1), value, np.float32), "FLOAT32") for value in (0, 1))
    rows = []
    for shift, along_x, along_y in ((center[0], cosine, sine), (center[1], back, cosine)):
        a, b = place.multiply(along_x, scale_x), place.multiply(along_y, scale_y)
        moved = (place.multiply(one, place.number(-size / 2)) for one, size in ((a, width), (b, height)))
        rows += [a, b, zero, place.add(shift, *moved)]
    rows += [zero, zero, one, zero, zero, zero, zero, one]
    joined = place.emit("CONCATENATION", rows, place.value([1, 1, 16], "FLOAT32"), "ConcatenationOptions", axis=2)
    place.reshape(joined, [1, 4, 4], place.output)


def _rotation(place: Place, left: list[int], right: list[int], target: float) -> tuple[int, int]:
    """Return cosine and sine of `target` minus the angle from one point to another, which is 0 if they are the same."""
    dx, dy = (place.subtract(b, a) for a, b in zip(left, right, strict=True))
    length = place.made("SQRT", [place.add(place.multiply(dx, dx), place.multiply(dy, dy))])
    is_zero = place.made("EQUAL", [length, place.number(0)], "EqualOptions", "BOOL")
    missing = place.cast(is_zero, "BOOL", "FLOAT32")
    cosine, sine = (
        place.made("DIV", [side, place.add(length, missing)], "DivOptions") for side in (place.add(dx, missing), dy)
    )
    along, across = place.number(math.cos(target)), place.number(math.sin(target))
    return (
        place.add(place.multiply(along, cosine), place.multiply(across, sine)),
        place.subtract(place.multiply(across, cosine), place.multiply(along, sine)),
    )


def _turned(place: Place, x: int, y: int, cosine: int, sine: int) -> list[int]:
    return [
        place.subtract(place.multiply(cosine, x), place.multiply(sine, y)),
        place.add(place.multiply(sine, x), place.multiply(cosine, y)),
    ]


def _limit(place: Place, name: str, value: int) -> int:
    made, axis = place.value([1, 1, 1], "FLOAT32"), place.constant(np.asarray([1], np.int32), "INT32")
    return place.emit(name, [value, axis], made, "ReducerOptions", keepDims=True)


def _moved(place: Place, x: int, y: int, matrix: int, offset: float) -> list[int]:
    """Return x and y by the first two rows of a matrix; both systems have their origin `offset` before the pixels."""
    numbers, found = place.reshape(matrix, [1, 1, 16]), []
    for row in (0, 4):
        a, b, c = (place.gather(numbers, [row + column], 2) for column in (0, 1, 3))
        if offset:
            half = place.multiply(place.add(a, b), place.number(offset))
            c = place.add(c, half, place.number(-offset))
        found.append(place.add(place.multiply(a, x), place.multiply(b, y), c))
    return found


def _transformed_landmarks(place: Place) -> None:
    _check_version(place, "TransformLandmarks")
    landmarks, matrix = place.inputs
    size = place.shape(landmarks)[2]
    if size not in (2, 3):
        raise ValueError(f"landmarks of {size} numbers")
    x, y, *depth = (place.gather(landmarks, [axis], 2) for axis in range(size))
    found = [*_moved(place, x, y, matrix, 0.0), *depth]
    place.emit("CONCATENATION", found, place.output, "ConcatenationOptions", axis=2)


def _cropped_image(place: Place) -> None:
    _check_version(place, "TransformTensorBilinear")
    (image, matrix), made = place.inputs, place.output
    _, rows, columns, channels = place.shape(made)
    batch, height, width, _ = place.shape(image)
    if batch != 1:
        raise ValueError("more than one image")
    pixels = rows * columns
    grid = np.meshgrid(np.arange(columns), np.arange(rows))
    x, y = (place.constant(axis.reshape(1, pixels, 1).astype(np.float32), "FLOAT32") for axis in grid)
    at = _moved(place, x, y, matrix, 0.5)
    inside, corners, shares = [], [], []
    for where, size in zip(at, (width, height), strict=True):
        last = place.number(size - 1)
        kept = place.made("MINIMUM", [place.made("MAXIMUM", [where, place.number(0)]), last])
        inside.append(place.made("EQUAL", [kept, where], "EqualOptions", "BOOL"))
        floor = place.made("FLOOR", [kept])
        corners.append([floor, place.made("MINIMUM", [place.add(floor, place.number(1)), last])])
        shares.append(place.subtract(kept, floor))
    table = place.reshape(image, [height * width, channels])

    def pixel(right: int, lower: int) -> int:
        line = place.add(place.multiply(corners[1][lower], place.number(width)), corners[0][right])
        number = place.emit(
            "RESHAPE",
            [place.cast(line, "FLOAT32", "INT32"), place.constant(np.asarray([pixels], np.int32), "INT32")],
            place.value([pixels], "INT32"),
        )
        values = place.emit(
            "GATHER", [table, number], place.value([pixels, channels], "FLOAT32"), "GatherOptions", axis=0
        )
        return place.reshape(values, [1, pixels, channels])

    def between(one: int, other: int, share: int) -> int:
        return place.add(place.multiply(place.subtract(place.number(1), share), one), place.multiply(share, other))

    upper, lower = (between(pixel(0, side), pixel(1, side), shares[0]) for side in (0, 1))
    found = between(upper, lower, shares[1])
    is_inside = place.made("LOGICAL_AND", inside, "LogicalAndOptions", "BOOL")
    kept = place.made("SELECT_V2", [is_inside, found, place.number(0)], "SelectV2Options")
    place.reshape(kept, [1, rows, columns, channels], made)


TRANSFORMS: dict[str, Callable[[Place], None]] = {
    "Landmarks2TransformMatrix": _matrix_of_landmarks,
    "TransformLandmarks": _transformed_landmarks,
    "TransformTensorBilinear": _cropped_image,
}
