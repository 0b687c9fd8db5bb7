"""Test dynamic sizes: choice of the bucket, shapes of outputs, padding and cropping of arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tvmflow.config.buckets import Axis, Sizes, axes_of, shape_at
from tvmflow.support.errors import ModelFileError
from tvmflow.support.json_values import from_json, to_json

SIZES = Sizes(("batch", "length"), ((1, 3), (4, 10)), (Axis(0, 0, 0), Axis(0, 2, 1), Axis(1, 0, 0)), (7, 0))


def test_sizes_are_read_as_they_were_written() -> None:
    assert from_json(Sizes, to_json(SIZES)) == SIZES
    assert SIZES.label(SIZES.largest) == "batch=3,length=10"


@given(st.integers(1, 3), st.integers(1, 10))
def test_what_is_filled_up_is_cut_again(batch: int, length: int) -> None:
    inputs = (np.arange(batch * 2 * length).reshape(batch, 2, length), np.ones((batch, 5), np.int8))
    padded = SIZES.pad(inputs, (3, 10))
    assert [x.shape for x in padded] == [(3, 2, 10), (3, 5)]
    assert padded[0].sum() == inputs[0].sum() + 7 * (60 - 2 * batch * length)
    for a, b in zip(SIZES.cut(padded, (batch, length)), inputs, strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), max_size=3), st.integers(0, 2), st.integers(1, 3))
def test_axes_of_outputs_follow_strides_windows_and_tokens(
    layers: list[tuple[int, int]], token: int, grows: int
) -> None:
    sizes = Sizes(("batch", "length"), ((1, 3), (60, 200)), (Axis(0, 0, 0), Axis(0, 2, 1)), (0,))

    def length(n: int) -> int:
        for stride, window in layers:
            n = (n - window) // stride + 1 if n >= window else 0
        return (n if layers else n * grows) + token

    def shape_of(at: tuple[int, ...]) -> tuple[int, ...] | None:
        return (at[0], 6, length(at[1])) if length(at[1]) > token else None

    axes = axes_of("y", 0, sizes, shape_of)
    for n in range(1, 201):
        for batch in (1, 2, 3):
            if (shape := shape_of((batch, n))) is not None:
                assert shape_at((3, 6, 999), axes, (batch, n)) == shape


def test_axes_that_follow_no_size_are_refused() -> None:
    with pytest.raises(
        ModelFileError, match="axis 1 of output y is 1 at length=1, 16 at length=4, 49 at length=7, 100 at length=10"
    ):
        axes_of("y", 0, SIZES, lambda at: (at[0], at[1] ** 2))
    with pytest.raises(ModelFileError, match="an axis of output y depends on two sizes"):
        axes_of("y", 0, SIZES, lambda at: (at[0] * at[1],))
