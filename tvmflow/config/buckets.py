"""Describe the dynamic sizes of inputs (a length or the batch) and the buckets a network is compiled for.

A run uses the smallest bucket that holds its sizes: inputs are padded to it, outputs are cropped. Independent of
graphs; runtime/src/sizes.c does the same on devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmflow.support.errors import ModelFileError

if TYPE_CHECKING:  # params.yaml is read without it
    from numpy.typing import NDArray

    Array = NDArray[Any]

MAX_SIZES, MAX_AXES = 2, 8  # TVMFLOW_MAX_SIZES of tvmflow.h, PLAN_MAX_AXES of plan.h
MAX_BUCKETS = 16  # each takes the time of a network in every stage
_MOST_OVER, _MOST_TIMES = (
    512,
    64,
)  # strides of all layers together (speech encoders: 320), and how much longer an output may be
_MOST_ASKED = 4096
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor with ceil((n * times + plus) / over) elements, where n is size number `size`."""

    tensor: int
    axis: int
    size: int
    times: int = 1
    plus: int = 0
    over: int = 1

    def extent(self, sizes: Numbers) -> int:
        """Return the number of elements of the axis."""
        return max(0, -(-(sizes[self.size] * self.times + self.plus) // self.over))


@dataclass(frozen=True)
class Sizes:
    """names: of the sizes; buckets: of each size, ascending; axes: input axes that equal a size; pads: padding value of
    each input.
    """

    names: tuple[str, ...]
    buckets: tuple[Numbers, ...]
    axes: tuple[Axis, ...]
    pads: tuple[float, ...]

    @property
    def largest(self) -> Numbers:
        return tuple(buckets[-1] for buckets in self.buckets)

    @property
    def all(self) -> tuple[Numbers, ...]:
        """Return the sizes of every bucket, from the least work to the largest bucket."""
        return tuple(sorted(itertools.product(*self.buckets), key=lambda sizes: (math.prod(sizes), sizes)))

    def between(self, bucket: Numbers) -> Numbers:
        """Return sizes in the middle of the range of a bucket."""
        found = []
        for size, buckets in zip(bucket, self.buckets, strict=True):
            below = max((other for other in buckets if other < size), default=0)
            found.append((below + 1 + size) // 2)
        return tuple(found)

    def label(self, sizes: Numbers) -> str:
        """Return sizes as text: length=16, or batch=1,length=16."""
        return ",".join(f"{name}={size}" for name, size in zip(self.names, sizes, strict=True))

    def cut(self, inputs: Sequence[Array], sizes: Numbers) -> tuple[Array, ...]:
        """Crop inputs to the given sizes."""
        return tuple(cut(x, [a for a in self.axes if a.tensor == at], sizes) for at, x in enumerate(inputs))

    def pad(self, inputs: Sequence[Array], bucket: Numbers) -> tuple[Array, ...]:
        """Pad inputs to a bucket."""
        import numpy as np

        found = []
        for at, x in enumerate(inputs):
            missing = [(0, 0)] * x.ndim
            for axis in (axis for axis in self.axes if axis.tensor == at):
                missing[axis.axis] = (0, axis.extent(bucket) - x.shape[axis.axis])
            found.append(np.pad(x, missing, constant_values=np.asarray(self.pads[at]).astype(x.dtype)))
        return tuple(found)

    def shapes(self, shapes: Sequence[Numbers], sizes: Numbers) -> tuple[Numbers, ...]:
        """Return the shapes of the inputs at the given sizes. shapes: of the largest bucket."""
        return tuple(
            shape_at(shape, [a for a in self.axes if a.tensor == at], sizes) for at, shape in enumerate(shapes)
        )


def metric_of(label: str) -> str:
    """Return the metric name of the latency in a bucket, such as latency_ms.length_16."""
    return f"latency_ms.{label.replace('=', '_').replace(',', '_')}"


def shape_at(shape: Sequence[int], axes: Sequence[Axis], sizes: Numbers) -> Numbers:
    """Return a shape with its dynamic axes at these sizes."""
    found = list(shape)
    for axis in axes:
        found[axis.axis] = axis.extent(sizes)
    return tuple(found)


def cut(x: Array, axes: Sequence[Axis], sizes: Numbers) -> Array:
    """Crop an array along its dynamic axes."""
    import numpy as np

    return np.ascontiguousarray(x[tuple(slice(extent) for extent in shape_at(x.shape, axes, sizes))])


def axes_of(name: str, at: int, sizes: Sizes, shape_of: Callable[[Numbers], Numbers | None]) -> tuple[Axis, ...]:
    """Return the dynamic axes of output `at`. shape_of: its shape at given sizes, None for invalid sizes (a length
    below a kernel's).

    Strides, windows, prefix tokens and chains of them are `Axis.extent` with some coefficients. Each size is varied
    alone; as long as two fitting sets of coefficients differ at some size, the shape there is computed. Raises
    ModelFileError if no coefficients fit.
    """
    largest, found = shape_of(sizes.largest) or (), []
    for axis in range(len(largest)):
        for size, most in enumerate(sizes.largest):
            others = sizes.largest

            def seen(n: int, size: int = size, axis: int = axis, others: Numbers = others) -> int | None:
                shape = shape_of((*others[:size], n, *others[size + 1 :]))
                return None if shape is None else shape[axis]

            known = {
                n: extent
                for n in {*sizes.buckets[size], *sizes.between(sizes.largest)[size : size + 1], 1}
                if (extent := seen(n)) is not None
            }
            if most == 1 or (len(set(known.values())) == 1 and len(known) > 1):
                continue
            fits = _fits(known, most, seen)
            if fits is None:
                shown = ", ".join(f"{extent} at {sizes.names[size]}={n}" for n, extent in sorted(known.items()))
                raise ModelFileError(
                    f"axis {axis} of output {name} is {shown}",
                    "(n * a + b) / c, rounded up, so that outputs can be cropped",
                    "give the model one shape",
                )
            found.append(Axis(at, axis, size, *fits))
    if len({one.axis for one in found}) < len(found):
        raise ModelFileError(
            f"an axis of output {name} depends on two sizes",
            "at most one size per axis",
            "make only one of them variable",
        )
    return tuple(found)


def _fits(known: dict[int, int], most: int, seen: Callable[[int], int | None]) -> Numbers | None:
    """Return times, plus and over that agree with all extents, including those of further sizes; None if there are
    none.
    """
    import numpy as np

    top = max(known)
    rows = [(1, over * known[top] - top - back, over) for over in range(1, _MOST_OVER + 1) for back in range(over)]
    rows += [(times, known[top] - times * top, 1) for times in range(2, _MOST_TIMES + 1)]
    candidates = np.array(rows, np.int64)
    asked = np.unique(np.linspace(1, most, min(most, _MOST_ASKED)).astype(np.int64))
    for n, extent in known.items():
        candidates = candidates[_extents(candidates, n) == extent]
    for _ in range(_MOST_ASKED):
        if not len(candidates):
            return None
        first = candidates[0]
        odd = next((n for n in asked if (_extents(candidates, n) != _extents(first[None], n)).any()), None)
        if odd is None:
            return tuple(int(number) for number in first)
        asked = asked[asked != odd]
        if (there := seen(int(odd))) is not None:
            candidates = candidates[_extents(candidates, int(odd)) == there]
    return None


def _extents(candidates: Array, n: int) -> Array:
    times, plus, over = candidates.T
    extents: Array = (-(-(times * n + plus) // over)).clip(min=0)
    return extents
