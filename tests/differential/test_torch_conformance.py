"""Compare samples of PyTorch's own operator database, imported and compiled, with PyTorch."""

from __future__ import annotations

import pytest

from bench.conformance import torch as conformance_torch
from bench.conformance.torch_coverage import DOCUMENT, core_operators, import_of, rows_of

FAST = ("floor_divide", "scatter_add")
PARTS = 40


def _check(names: list[str]) -> None:
    bad = [
        record
        for name in names
        for record in conformance_torch.judge_operator(name)
        if record["verdict"] in ("wrong", "raw")
    ]
    assert not bad


@pytest.mark.parametrize("name", FAST)
def test_operators_of_the_database_are_right(name: str) -> None:
    records = list(conformance_torch.judge_operator(name))
    assert records
    assert all(record["verdict"] == "passed" for record in records), records


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_operator_of_the_database_is_wrong_or_fails_without_its_name(part: int) -> None:
    from bench.conformance.torch_samples import operator_names

    _check(operator_names()[part::PARTS])


def test_the_table_of_core_operators_is_current() -> None:
    rows = rows_of(DOCUMENT.read_text(encoding="utf-8"))
    assert list(rows) == core_operators(), "python -m bench.conformance.torch_coverage"
    assert {name: how for name, (how, _) in rows.items()} == {name: import_of(name) for name in rows}


def test_a_wrong_value_a_wrong_type_and_a_missing_output_are_found() -> None:
    import numpy as np

    from bench.conformance.torch_outputs import difference_of

    right = (np.array([1.0, np.nan, np.inf], np.float32),)
    assert difference_of(right, right) is None
    assert difference_of((right[0].astype(np.float64),), right)
    assert difference_of((np.array([1.0, np.nan, 1.0], np.float32),), right)
    assert difference_of((np.array([1.0, 0.0, np.inf], np.float32),), right)
    assert difference_of((), right)
