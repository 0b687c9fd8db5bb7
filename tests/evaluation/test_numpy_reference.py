"""Test the check of a compiled network against the numpy interpreter, where roundings of floats decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tvmflow.evaluation.check_numpy_reference import check_numpy_reference
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import Array
from tvmflow.support.errors import AgreementError

_STEP = 2.0**-10  # of float32 at _LARGE, above the outputs' differences of the small inputs
_LARGE = 10_000.0


def _module() -> Any:
    """(x + large) - large: a rounding of the sum is a whole step of the outputs."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8), "float32"))
    large = constant(np.float32(_LARGE), "float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            total = builder.emit(relax.op.add(x, large))
            output = builder.emit_output(relax.op.subtract(total, large))
        builder.emit_func_output(output)
    return builder.get()


def _samples(size: float) -> Array:
    return size * np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def test_another_rounding_of_a_sum_is_accepted_where_the_reference_rounds_as_much() -> None:
    x = _samples(4 * _STEP)
    exact = (x.astype(np.float64) + _LARGE).astype(np.float32) - np.float32(_LARGE)
    other = exact + _STEP * np.random.default_rng(1).choice([-1, 1], x.shape).astype(np.float32)
    found = check_numpy_reference(_module(), (x,), 1, (other,))
    assert found.max_relative_error > 0.1, "beyond the bound, which the rounding explains"


def test_what_no_rounding_explains_is_refused() -> None:
    x = _samples(400 * _STEP)
    exact = x.astype(np.float32)
    check_numpy_reference(_module(), (x,), 1, (exact,))
    wrong = exact.copy()
    wrong[1, 3] += 80 * _STEP
    with pytest.raises(AgreementError, match="numpy reference"):
        check_numpy_reference(_module(), (x,), 1, (wrong,))


@pytest.mark.parametrize("outputs", [np.zeros((4, 8), np.float32), np.roll(_samples(_STEP), 1, 0)], ids=["0", "other"])
def test_outputs_without_the_input_are_refused_however_the_reference_rounds(outputs: Array) -> None:
    with pytest.raises(AgreementError, match="numpy reference"):
        check_numpy_reference(_module(), (_samples(_STEP),), 1, (outputs,))
