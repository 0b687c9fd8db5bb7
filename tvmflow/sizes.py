"""Sizes of inputs that a run chooses, as a length or the batch, and the buckets of sizes that a network is compiled for.

A run takes the smallest bucket that holds its sizes: inputs are filled up to it, outputs are cut. Knows nothing of graphs; runtime/src/sizes.c does the
same on devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.errors import ModelFileError

MAX_SIZES, MAX_AXES = 2, 8  # TVMFLOW_MAX_SIZES of tvmflow.h, PLAN_MAX_AXES of plan.h
MAX_BUCKETS = 16  # each takes the time of a network in every stage
Array = NDArray[Any]
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor that has as many elements as size number `size`, times `times` / `over`, rounded up."""

    tensor: int
    axis: int
    size: int
    times: int = 1
    over: int = 1

    def extent(self, sizes: Numbers) -> int:
        """Return how many elements the axis has."""
        return -(-sizes[self.size] * self.times // self.over)


@dataclass(frozen=True)
class Sizes:
    """names: of the sizes; buckets: of each, ascending; axes: of the inputs, which have a size as it is; pads: what each input is filled up with."""

    names: tuple[str, ...]
    buckets: tuple[Numbers, ...]
    axes: tuple[Axis, ...]
    pads: tuple[float, ...]

    @property
    def largest(self) -> Numbers:
        return tuple(buckets[-1] for buckets in self.buckets)

    @property
    def all(self) -> tuple[Numbers, ...]:
        """Return the sizes of every bucket: the least work first, the largest last."""
        return tuple(sorted(itertools.product(*self.buckets), key=lambda sizes: (math.prod(sizes), sizes)))

    def between(self, bucket: Numbers) -> Numbers:
        """Return sizes in the middle of those that a bucket is taken for."""
        found = []
        for size, buckets in zip(bucket, self.buckets, strict=True):
            below = max((other for other in buckets if other < size), default=0)
            found.append((below + 1 + size) // 2)
        return tuple(found)

    def label(self, sizes: Numbers) -> str:
        """Return sizes as text: length=16, or batch=1,length=16."""
        return ",".join(f"{name}={size}" for name, size in zip(self.names, sizes, strict=True))

    def cut(self, inputs: Sequence[Array], sizes: Numbers) -> tuple[Array, ...]:
        """Return the first elements of inputs that are as large at least."""
        return tuple(cut(x, [a for a in self.axes if a.tensor == at], sizes) for at, x in enumerate(inputs))

    def padded(self, inputs: Sequence[Array], bucket: Numbers) -> tuple[Array, ...]:
        """Return inputs filled up to a bucket."""
        found = []
        for at, x in enumerate(inputs):
            missing = [(0, 0)] * x.ndim
            for axis in (axis for axis in self.axes if axis.tensor == at):
                missing[axis.axis] = (0, axis.extent(bucket) - x.shape[axis.axis])
            found.append(np.pad(x, missing, constant_values=np.asarray(self.pads[at]).astype(x.dtype)))
        return tuple(found)

    def shapes(self, shapes: Sequence[Numbers], sizes: Numbers) -> tuple[Numbers, ...]:
        """Return the shapes of the inputs, of which those for the largest bucket are given."""
        return tuple(
            shape_at(shape, [a for a in self.axes if a.tensor == at], sizes) for at, shape in enumerate(shapes)
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able value that `sizes_from` reads."""
        return {
            "names": self.names,
            "buckets": self.buckets,
            "axes": [vars(axis) for axis in self.axes],
            "pads": self.pads,
        }


def sizes_from(data: Mapping[str, Any] | None) -> Sizes | None:
    """Return what `to_json` wrote."""
    if data is None:
        return None
    return Sizes(
        tuple(data["names"]), tuple(map(tuple, data["buckets"])), tuple(Axis(**axis) for axis in data["axes"]), tuple(data["pads"])
    )  # fmt: skip


def axes_from(outputs: Sequence[Mapping[str, Any]]) -> tuple[Axis, ...]:
    """Return the open axes of outputs as outputs.json describes them."""
    return tuple(Axis(**axis) for output in outputs for axis in output.get("axes", ()))


def shape_at(shape: Sequence[int], axes: Sequence[Axis], sizes: Numbers) -> Numbers:
    """Return a shape with the open axes of these sizes."""
    found = list(shape)
    for axis in axes:
        found[axis.axis] = axis.extent(sizes)
    return tuple(found)


def cut(x: Array, axes: Sequence[Axis], sizes: Numbers) -> Array:
    """Return the first elements of an array along its open axes."""
    return np.ascontiguousarray(x[tuple(slice(extent) for extent in shape_at(x.shape, axes, sizes))])


def axes_of(name: str, at: int, shapes: Mapping[Numbers, Numbers], sizes: Sizes) -> tuple[Axis, ...]:
    """Return the open axes of output `at` from its shapes at several sizes. Raises ModelFileError where they follow no size."""
    largest, found = shapes[sizes.largest], []
    for axis, extent in enumerate(largest):
        if all(shape[axis] == extent for shape in shapes.values()):
            continue
        shares = [Fraction(extent, size) for size in sizes.largest]
        tried = [Axis(at, axis, size, share.numerator, share.denominator) for size, share in enumerate(shares)]
        fits = [one for one in tried if all(one.extent(given) == shape[axis] for given, shape in shapes.items())]
        if not fits:
            shown = ", ".join(f"{shape[axis]} at {sizes.label(given)}" for given, shape in shapes.items())
            raise ModelFileError(
                f"axis {axis} of output {name} is {shown}", "a share of one size, rounded up, so that outputs can be cut", "give the model one shape"
            )  # fmt: skip
        found.append(fits[0])
    return tuple(found)
