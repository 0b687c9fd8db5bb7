"""Sizes that a run chooses: which bucket, how outputs follow, and what padding and cutting do to arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmflow.errors import ModelFileError
from tvmflow.sizes import Axis, Sizes, axes_of, cut, sizes_from

SIZES = Sizes(("batch", "length"), ((1, 3), (4, 10)), (Axis(0, 0, 0), Axis(0, 2, 1), Axis(1, 0, 0)), (7, 0))


def test_sizes_are_read_as_they_were_written() -> None:
    assert sizes_from(SIZES.to_json()) == SIZES and sizes_from(None) is None
    assert SIZES.label(SIZES.largest) == "batch=3,length=10"


@given(st.integers(1, 3), st.integers(1, 10))
def test_what_is_filled_up_is_cut_again(batch: int, length: int) -> None:
    inputs = (np.arange(batch * 2 * length).reshape(batch, 2, length), np.ones((batch, 5), np.int8))
    padded = SIZES.padded(inputs, (3, 10))
    assert [x.shape for x in padded] == [(3, 2, 10), (3, 5)]
    assert padded[0].sum() == inputs[0].sum() + 7 * (60 - 2 * batch * length)
    for a, b in zip(SIZES.cut(padded, (batch, length)), inputs, strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


@given(st.integers(1, 4), st.integers(0, 1))
def test_axes_of_outputs_are_shares_of_a_size(stride: int, token: int) -> None:
    shapes = {
        at: (at[0], 6, math.ceil(at[1] / stride) if stride > 1 else at[1] + token)
        for at in ((1, 2), (1, 4), (3, 7), (3, 10), (2, 7))
    }
    axes = axes_of("y", 0, shapes, SIZES)
    for at, shape in shapes.items():
        assert cut(np.empty((3, 6, 99)), axes, at).shape == shape


def test_axes_that_follow_no_size_are_refused() -> None:
    with pytest.raises(ModelFileError, match="axis 1 of output y is 4 at batch=1,length=2, 100 at batch=3,length=10"):
        axes_of("y", 0, {(1, 2): (1, 4), (3, 10): (3, 100)}, SIZES)
