"""Test inputs of any size for a library of the largest bucket: padded, cut, and refused where they do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvmflow.config.buckets import Axis, Sizes
from tvmflow.evaluation.buckets import at_sizes, sizes_of_samples
from tvmflow.evaluation.loaded_library import order_inputs
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.support.errors import UsageError

SIZES = Sizes(("length",), ((4, 8),), (Axis(0, 1, 0), Axis(1, 1, 0)), (3, 0))
SPECS = (TensorSpec("ids", (1, 8), "int64"), TensorSpec("mask", (1, 8), "int64"))


class _Masked:
    """Sum the ids that the mask leaves, and return all of them; sees what reaches the largest bucket."""

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        ids, mask = inputs
        assert ids.shape == mask.shape == (1, 8) and (ids[mask == 0] == 3).all()
        return (ids * mask).sum(axis=1), ids


@pytest.mark.parametrize("length", [1, 4, 5, 8])
def test_inputs_of_any_size_are_padded_and_outputs_cut(length: int) -> None:
    ids = np.arange(2 * length).reshape(2, length)
    samples = order_inputs(SPECS, {"mask": np.ones_like(ids), "ids": ids}, "cell", SIZES)
    assert np.array_equal(samples[0], ids), "by name"
    at = sizes_of_samples(SIZES, ["ids", "mask"], samples)
    assert at == (length,)
    model = at_sizes(_Masked(), SIZES, at, (Axis(1, 1, 0),))
    for row in range(2):
        total, echoed = model.run(*(x[row : row + 1] for x in samples))
        assert total[0] == ids[row].sum() and np.array_equal(echoed[0], ids[row])


@pytest.mark.parametrize(
    ("ids", "mask", "says"),
    [
        (np.zeros((1, 9), int), np.zeros((1, 9), int), "length is 9\n  expected: 1 to 8"),
        (np.zeros((1, 0), int), np.zeros((1, 0), int), "length is 0"),
        (np.zeros((1, 5), int), np.zeros((1, 4), int), "5 of ids, 4 of mask"),
        (np.zeros((1, 5, 1), int), np.zeros((1, 5), int), r"\(N, up to 8\)"),
        (np.zeros(5, int), np.zeros(5, int), r"add the first axis"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(ids: Any, mask: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sizes_of_samples(SIZES, ["ids", "mask"], order_inputs(SPECS, (ids, mask), "cell", SIZES))


def test_a_model_of_one_size_takes_that_alone() -> None:
    with pytest.raises(UsageError, match=r"got an array of shape \(1, 5\)[\s\S]* stay open with buckets"):
        order_inputs(SPECS, (np.zeros((1, 5), int), np.zeros((1, 5), int)), "cell")
