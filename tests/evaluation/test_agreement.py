"""Test the agreement measure: accepted rounding, rejected errors, and broken matrix products that every check must
find.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tasks.golden import check_module
from tvmflow.evaluation.agreement import (
    NO_NOISE_DB,
    RESOLUTION,
    check_golden,
    check_outputs,
    check_varies,
    compare,
    spread_of,
    why_still,
)
from tvmflow.evaluation.conditioning import write_conditioning
from tvmflow.evaluation.quality import measure_quality
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import AgreementError

Array = np.ndarray[Any, Any]
LOOSEST = 1.5  # no bound of params.yaml is looser


@st.composite
def _outputs(draw: st.DrawFn, least_inputs: int = 2, least_classes: int = 2) -> Array:
    shape = draw(st.integers(least_inputs, 6)), draw(st.integers(least_classes, 12))
    return np.random.default_rng(draw(st.integers(0, 2**32))).standard_normal(shape)


def _noise(like: Array, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(like.shape)


def test_equal_outputs_have_no_error() -> None:
    agreement = compare(np.eye(3), np.eye(3))
    assert (agreement.top1_agreement, agreement.max_relative_error, agreement.sqnr_db, agreement.samples) == (
        1.0,
        0.0,
        NO_NOISE_DB,
        3,
    )


def test_the_measure_by_hand() -> None:
    reference = np.array([[0.0, 4.0], [2.0, 10.0]])
    spread = spread_of(reference)
    assert spread.inputs == pytest.approx(np.sqrt((1 + 1 + 9 + 9) / 2))
    assert spread.classes == pytest.approx(np.sqrt((4 + 4 + 16 + 16) / 2))
    agreement = compare(reference + np.array([[0.0, 0.0], [0.0, 1.0]]), reference)
    assert agreement.max_relative_error == pytest.approx(1 / np.sqrt(10))
    assert agreement.sqnr_db == pytest.approx(20 * np.log10(np.sqrt(10) / 0.5))


@given(_outputs(), st.floats(-1e3, 1e3), st.integers(0, 99))
def test_a_common_offset_changes_nothing(b: Array, offset: float, seed: int) -> None:
    a = b + 0.1 * _noise(b, seed)
    plain, moved = compare(a, b), compare(a + offset, b + offset)
    assert moved.max_relative_error == pytest.approx(plain.max_relative_error, rel=1e-9)
    assert moved.sqnr_db == pytest.approx(plain.sqnr_db, abs=1e-6)


@given(_outputs(), st.floats(1e-30, 1e30), st.sampled_from([-1, 1]), st.integers(0, 99))
def test_a_common_scale_changes_nothing(b: Array, scale: float, sign: int, seed: int) -> None:
    a = b + 0.1 * _noise(b, seed)
    plain, scaled = compare(a, b), compare(a * scale * sign, b * scale * sign)
    assert scaled.max_relative_error == pytest.approx(plain.max_relative_error, rel=1e-9)
    assert scaled.sqnr_db == pytest.approx(plain.sqnr_db, abs=1e-6)


@given(_outputs(), st.data())
def test_the_order_of_inputs_and_of_classes_changes_nothing(b: Array, data: st.DataObject) -> None:
    a = b + 0.1 * _noise(b, 1)
    rows, columns = (data.draw(st.permutations(range(n))) for n in b.shape)
    assert compare(a[rows][:, columns], b[rows][:, columns]).max_relative_error == pytest.approx(
        compare(a, b).max_relative_error
    )


@given(_outputs(), st.data())
def test_the_error_is_zero_only_for_equal_outputs(b: Array, data: st.DataObject) -> None:
    a = b.copy()
    at = tuple(data.draw(st.integers(0, n - 1)) for n in b.shape)
    a[at] += data.draw(st.sampled_from([1e-6, -1e-3, 1.0, -1e6]))
    agreement = compare(a, b)
    assert agreement.max_relative_error > 0 and agreement.sqnr_db < NO_NOISE_DB


@given(_outputs(), st.integers(0, 99), st.floats(1e-6, 1e3), st.floats(1.001, 1e3))
def test_more_noise_is_more_error(b: Array, seed: int, amount: float, factor: float) -> None:
    noise = _noise(b, seed)
    little, much = compare(b + amount * noise, b), compare(b + amount * factor * noise, b)
    assert much.max_relative_error > little.max_relative_error and much.sqnr_db < little.sqnr_db


@given(st.integers(1, 6), st.integers(1, 9), st.floats(-1e6, 1e6, width=32))
def test_constant_outputs_are_refused(count: int, classes: int, value: float) -> None:
    constant = np.full((count, classes), value, np.float32)
    with pytest.raises(AgreementError):
        compare(constant, constant)


@given(_outputs(), st.sampled_from([0, 1]), st.floats(0.0, 0.9))
def test_outputs_that_ignore_the_input_or_the_class_are_refused(b: Array, axis: int, share: float) -> None:
    """Also when rounding makes them differ in the last digits, as networks that ignore their input do."""
    still = np.repeat(b.mean(axis=axis, keepdims=True), b.shape[axis], axis=axis)
    assume(np.abs(still).max() > 1e-3)
    wobble = np.clip(_noise(b, 0), -1, 1) * np.abs(still).max() * RESOLUTION * share / 2
    with pytest.raises(AgreementError, match="inputs" if axis == 0 else "classes"):
        check_varies(still + wobble)


def test_a_spread_above_the_resolution_is_accepted_whatever_the_offset() -> None:
    b = np.random.default_rng(0).standard_normal((4, 5))
    assert check_varies(b + 1e4).smaller == pytest.approx(spread_of(b).smaller, rel=1e-6)


@pytest.mark.parametrize(
    ("outputs", "reference"),
    [
        (np.zeros((2, 3)), np.eye(2)),
        (np.full((2, 2), np.nan), np.eye(2)),
        (np.eye(2), np.array([[1.0, np.inf], [0.0, 1.0]])),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.zeros((3, 0)), np.zeros((3, 0))),
        (np.ones((1, 1)), np.ones((1, 1))),
    ],
)
def test_what_cannot_be_compared_is_refused(outputs: Array, reference: Array) -> None:
    with pytest.raises(AgreementError):
        compare(outputs, reference)


def test_one_class_and_one_input() -> None:
    column = np.array([[1.0], [2.0], [3.0]])
    assert compare(column + 0.1, column).max_relative_error == pytest.approx(0.1)
    assert compare(column, column).top1_agreement is None  # there is nothing to choose from
    row = np.array([[1.0, 2.0, 3.0]])
    assert compare(row + 0.1, row).max_relative_error == pytest.approx(0.1)
    with pytest.raises(AgreementError, match="golden_samples"):
        check_golden("build", row, row, 1.0)


def test_nearly_uniform_and_saturated_softmax() -> None:
    """The first: all that tells classes apart is far below the largest output. The second: few classes hold
    everything.
    """
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((4, 1000)) * 1e-3
    flat = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert compare(np.full_like(flat, 1e-3), flat).max_relative_error > 1
    sharp = np.full((4, 1000), 1e-9)
    sharp[np.arange(4), [3, 900, 77, 5]] = 1.0
    assert compare(sharp + 1e-9, sharp).max_relative_error < 1e-6
    assert compare(np.roll(sharp, 1, axis=0), sharp).max_relative_error > 1


def test_numbers_of_every_dtype_and_far_axes() -> None:
    b = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    for dtype in (np.float16, np.float32, np.float64):
        assert compare(b.astype(dtype), b.astype(dtype)).max_relative_error == 0.0
    assert compare((b * 100).astype(np.int32), (b * 100).astype(np.int32)).sqnr_db == NO_NOISE_DB
    largest = (b * 1e38).astype(np.float32)
    assert compare(largest * np.float32(0.5), largest).max_relative_error == pytest.approx(
        0.5 * np.abs(largest).max() / spread_of(b).smaller / 1e38, rel=1e-3
    )


def _last_class_missing(b: Array) -> Array:
    return b[:, :-1]


BROKEN: dict[str, Callable[[Array], Array]] = {
    "zeros": np.zeros_like,
    "one number": lambda b: np.full_like(b, b.mean()),
    "the mean output for all inputs": lambda b: np.broadcast_to(b.mean(axis=0), b.shape).copy(),
    "the first output for all inputs": lambda b: np.broadcast_to(b[0], b.shape).copy(),
    "classes permuted": lambda b: np.roll(b, 1, axis=1),
    "inputs permuted": lambda b: np.roll(b, 1, axis=0),
    "negated": np.negative,
    "an offset": lambda b: b + np.ptp(b),
    "last class missing": _last_class_missing,
    "last class not a number": lambda b: np.concatenate([b[:, :-1], np.full((len(b), 1), np.nan)], axis=1),
}
SUBTLE: dict[str, Callable[[Array], Array]] = {
    "scaled by 1.1": lambda b: b * 1.1,
    "last class zero": lambda b: np.concatenate([b[:, :-1], np.zeros((len(b), 1))], axis=1),
    "offset by a fifth of the range": lambda b: b + np.ptp(b) / 5,
    "two classes swapped": lambda b: b[:, [1, 0, *range(2, b.shape[1])]],
}


@pytest.mark.parametrize("offset", [0.0, 50.0, -1e4])
@pytest.mark.parametrize("name", [*BROKEN, *SUBTLE])
def test_broken_products_are_refused(name: str, offset: float) -> None:
    """Golden inputs and evaluation set alike; an offset that all outputs share must hide nothing."""
    b = np.random.default_rng(3).standard_normal((8, 10)) + offset
    broken, bound = ({**BROKEN, **SUBTLE}[name])(b), LOOSEST if name in BROKEN else 0.05
    with pytest.raises(AgreementError):
        check_golden("build", broken[:2], b[:2], bound)
    with pytest.raises(AgreementError):
        check_outputs("evaluate", "evaluation", broken, b, bound)


@given(_outputs(least_classes=3), st.sampled_from(sorted(BROKEN)), st.floats(-1e4, 1e4), st.floats(1e-6, 1e6))
def test_no_broken_product_passes(b: Array, name: str, offset: float, scale: float) -> None:
    b = (b + offset) * scale
    broken = BROKEN[name](b)
    # What hardly differs, by chance, is hardly broken.
    assume(broken.shape != b.shape or not np.abs(broken - b).max() < spread_of(b).smaller)
    with pytest.raises(AgreementError):
        check_golden("build", broken, b, LOOSEST)


def test_a_golden_check_names_stage_and_parameter() -> None:
    b = np.array([[1.0, 2.0], [3.0, 1.0]])
    for stage, parameter in (("graph_pack", "build"), ("deploy", "build"), ("quantize", "quantize")):
        with pytest.raises(AgreementError, match=f"{stage} changes the outputs") as raised:
            check_golden(stage, b + 0.1, b, 1e-3)
        assert f"({parameter}.max_relative_error in params.yaml)" in raised.value.expected


def _walked(folder: Path, outputs: Array) -> dict[str, Path]:
    """Write what fetch, import_model and quantize leave, for a model with these outputs; its inputs are their own
    numbers.
    """
    inputs = {name: folder / name for name in ("fetch", "import_model", "quantize")}
    for path in inputs.values():
        path.mkdir()
    numbers = np.arange(len(outputs), dtype=np.float32)[:, None]
    np.savez(inputs["fetch"] / "golden.npz", x=numbers[:4])
    one = {"name": "x", "shape": [1, 1], "dtype": "float32"}
    description = {"framework": "torch", "network": None, "weights_file": "", "inputs": [one]}
    (inputs["fetch"] / "source.json").write_text(json.dumps(description))
    write_conditioning(inputs["import_model"], (), ())
    np.savez(inputs["import_model"] / "reference.npz", golden=outputs[:4], evaluation=outputs, imported=outputs)
    np.savez(inputs["quantize"] / "reference.npz", golden=outputs[:4], evaluation=outputs)
    return inputs


class _Module:
    """A module that gives row n of a table for input n."""

    def __init__(self, table: Array) -> None:
        self.table = table

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        return (self.table[inputs[0][:, 0].astype(int)],)


@pytest.mark.parametrize("name", [*BROKEN, *SUBTLE, "as it is"])
def test_golden_check_and_evaluate_refuse_the_same_products(name: str, tmp_path: Path) -> None:
    b = (np.random.default_rng(5).standard_normal((12, 10)) + 20).astype(np.float32)
    product = ({**BROKEN, **SUBTLE, "as it is": np.copy}[name])(b)
    inputs = _walked(tmp_path, b)
    context: Any = SimpleNamespace(inputs=inputs)
    samples = Samples((np.zeros((12, 1), np.float32),), b.argmax(axis=1))
    if name == "as it is":
        assert check_module(context, "build", _Module(product), 0.05).max_relative_error == 0.0
        accuracy = measure_quality(inputs, product, samples, 0.05).accuracy
        assert accuracy is not None and accuracy.built == 1.0
        return
    with pytest.raises(AgreementError):
        check_module(context, "build", _Module(product), 0.05)
    with pytest.raises(AgreementError, match=r"evaluate|shape|finite"):
        measure_quality(inputs, product, samples, 0.05)


def test_a_source_that_does_not_react_is_judged_by_its_largest_number(tmp_path: Path) -> None:
    """A network whose head is zero, or whose output is the same for every input: import_model warns of it."""
    for index, b in enumerate((np.zeros((12, 10)), np.tile(np.arange(10.0), (12, 1)))):
        (tmp_path / str(index)).mkdir()
        context: Any = SimpleNamespace(inputs=_walked(tmp_path / str(index), b))
        assert why_still(b) is not None
        assert check_module(context, "build", _Module(b), 1e-3).max_relative_error == 0.0
        with pytest.raises(AgreementError, match="build changes the outputs"):
            check_module(context, "build", _Module(b + 0.1), 1e-3)
