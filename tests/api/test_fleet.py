"""Test the commands that compare measurements over devices and versions, on a real store of MLflow."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.tracking.conftest import empty_store, ledger  # noqa: F401 (fixtures)
from tests.tracking.ledger_bench import LedgerBench
from tvmflow import api
from tvmflow.cli.app import app
from tvmflow.support.errors import GateRefusedError, StoreError, TvmflowError, UsageError


def _run(bench: LedgerBench, *arguments: str) -> tuple[str, int]:
    done = CliRunner().invoke(app, ["--root", str(bench.root), *arguments])
    if isinstance(done.exception, TvmflowError):
        return done.stdout, done.exception.exit_code
    assert done.exception is None, done.exception
    return done.stdout, done.exit_code


def test_an_upgrade_on_two_units_one_of_which_is_sick(ledger: LedgerBench) -> None:  # noqa: F811
    cell, where = ledger.cell("digits_torch"), ledger.workspace
    with pytest.raises(StoreError, match="nothing of digits_torch was measured yet"):
        api.compare("digits_torch", where)
    for day, tvm, times in ((0, "0.26.0", (1.0, 2.0)), (3, "0.27.0", (1.0, 2.3))):
        ledger.day, ledger.toolchain = day, {"tvm": tvm, "llvm": "20"}
        for unit, ms in zip(("phone-a", "phone-b"), times, strict=True):
            ledger.unit = unit
            ledger.latency |= {"median_ms": ms, "low_ms": 0.99 * ms, "high_ms": 1.01 * ms}
            ledger.measure(cell, "library")
    text, code = _run(ledger, "regressions", "--from", "0.26", "--to", "0.27", "--json")
    found = json.loads(text)
    assert code == GateRefusedError.exit_code == 3 and found["worse"] == 1 and found["unmeasured"] == []
    assert [(one["unit"], one["verdict"], one["cause"]) for one in found["changes"]] == [
        ("phone-a", "same", ""),
        ("phone-b", "slower", "unit"),
    ]
    assert "look at this device" in found["suspects"][0]
    counts = [(one["unit"], one["cells"], one["compared"], one["worse"]) for one in found["units"]]
    assert counts == [("phone-a", 1, 1, 0), ("phone-b", 1, 1, 1)]
    head, suspect, line = api.regressions("0.26", "0.27", workspace=where).text.splitlines()
    assert head == "1 of 2 got worse from 0.26 to 0.27; units: 2, kinds of devices: 1"
    assert suspect == found["suspects"][0] and line.startswith(f"{cell} on ") and "latency" in line
    first_day = "2025-06-15"
    by_date = api.regressions(first_day, "now", workspace=where)
    assert by_date.to_json() | {"from": "0.26", "to": "0.27"} == found
    assert _run(ledger, "regressions", "--from", "0.27", "--to", "now")[1] == 0
    for text, expected in (("0.25", "no measurement belongs to '0.25'"), ("yesterday", "no moment 'yesterday'")):
        with pytest.raises(UsageError, match=expected):
            api.regressions(text, workspace=where)

    assert [(row["unit"], row["tvm"], row["latency_ms"]) for row in api.compare("digits_torch", where)] == [
        ("phone-a", "0.27.0", 1.0),
        ("phone-b", "0.27.0", 2.3),
    ]
    assert "2.3 ms (2.28 to 2.32)" in _run(ledger, "compare", "digits_torch")[0]
    by_tvm = [(row["unit"], row["tvm"], row["beside"]) for row in api.overview("digits_torch", "tvm", where)]
    assert by_tvm == [
        ("phone-a", "0.26.0", None),
        ("phone-a", "0.27.0", 1.0),
        ("phone-b", "0.26.0", None),
        ("phone-b", "0.27.0", pytest.approx(1.15)),
    ]
    by_unit = [(row["unit"], round(row["beside"], 3)) for row in api.overview(None, "unit", where)]
    assert by_unit == [("phone-a", 0.606), ("phone-b", 1.394)]
    assert [row["unit"] for row in api.overview(None, "device", where)] == ["phone-b"]
    [cost] = json.loads(_run(ledger, "costs", "--json")[0])
    assert (cost["model"], cost["month"], cost["measurements"]) == ("digits_torch", "2025-06", 4)
    assert cost["saved_by_cache_hours"] == pytest.approx(2 * 6 / 3600, abs=1e-4), "the second unit made six stages less"
    assert "beside the TVM before" in _run(ledger, "history", "--model", "digits_torch")[0]
    assert _run(ledger, "history", str(cell), "--model", "digits_torch")[1] == 2
