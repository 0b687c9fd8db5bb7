"""Test the tables of results in git: what is written, what is a change, what a quarantine holds back."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tracking.ledger_bench import LedgerBench
from tvmflow import api
from tvmflow.cli.app import app
from tvmflow.shipping.gates.candidate import Candidate
from tvmflow.support.errors import StoreError, TvmflowError, UsageError
from tvmflow.tracking.result_check import check_table, updated
from tvmflow.tracking.result_tables import Held, ResultRow, ResultTable, held_reasons, read_table, rows_of, table_path

CELL = "digits_torch@local-cpu:float32"
HELD = {"cell": CELL, "reason": "wrong on this driver", "issue": "https://example.org/7"}


def _measured(unit: str, latency_ms: float, at: int, **given: Any) -> dict[str, Any]:
    return {
        **{"cell": CELL, "model": "digits_torch", "device": "phone", "unit": unit, "time_ms": at, "run_id": f"{at}"},
        **{"latency_ms": latency_ms, "low_ms": 0.99 * latency_ms, "high_ms": 1.01 * latency_ms, "badges": ""},
        **{"round_trip_ns": None, "memory_bytes": 1e6, "library_bytes": 123456789.0, "accuracy_share": 0.9},
        **{"max_relative_error": 1e-6, "tools": {"tvm": "0.27.0", "llvm": "20"}, "sha256": "a" * 64},
        **{"network_sha256": "", "when": f"2026-11-{at:02} 10:00", **given},
    }


def _only(*measured: dict[str, Any]) -> ResultRow:
    [[row]] = rows_of(measured).values()
    return row


def _texts(table: ResultTable, row: ResultRow) -> list[str]:
    return [f"{'! ' if one.fails else ''}{one.text}" for one in check_table(table, [row], 0.01)]


def test_a_row_is_the_middle_unit_of_its_kind_whichever_was_measured_last() -> None:
    three = [_measured("a", 1.0, 1), _measured("b", 1.2, 2), _measured("c", 1.1, 3)]
    row = _only(*three)
    assert (row.units, row.latency_ms, row.low_ms, row.high_ms) == (3, 1.1, 0.99, 1.212)
    again = _only(three[1], three[2], {**three[0], "time_ms": 9})
    assert again == row and row.library_bytes == 123457000.0
    noisy = _measured("a", 5.0, 4, badges="others used 40%")
    assert _only(*three, noisy) == row
    new = _measured("b", 0.5, 5, sha256="b" * 64)
    assert (_only(*three, new).units, _only(*three, new).latency_ms) == (1, 0.5)


def test_each_change_beyond_its_interval_is_named_and_noise_is_not() -> None:
    before = _only(_measured("a", 1.0, 1))
    table = ResultTable(model="digits_torch", rows=(before,))
    assert _texts(table, _only(_measured("a", 1.005, 2))) == []
    worse = {"memory_bytes": 2e6, "accuracy_share": 0.8, "max_relative_error": 1e-3, "library_bytes": 2e8}
    assert _texts(table, _only(_measured("a", 1.2, 2, **worse))) == [
        "! latency 1 -> 1.2 ms, ratio 1.200 [1.176, 1.224], slower",
        "! accuracy 0.9 -> 0.8",
        "! memory 1e+06 -> 2e+06",
        "! library 1.23457e+08 -> 2e+08",
        "! error 1e-06 -> 0.001",
    ]
    new_tool = {"tools": {"tvm": "0.28.0", "llvm": "20"}, "sha256": "b" * 64}
    assert _texts(table, _only(_measured("a", 1.0, 2, **new_tool))) == [
        "library aaaaaaaaaaaa -> bbbbbbbbbbbb",
        "tvm 0.27.0 -> 0.28.0",
    ]
    assert _texts(ResultTable(model="digits_torch"), before) == ["! measured, and not in the table"]


def test_a_creep_adds_up_because_noise_does_not_move_the_row() -> None:
    table = updated(ResultTable(model="digits_torch"), [_only(_measured("a", 1.0, 1))], 0.01)
    for step in range(1, 4):
        assert updated(table, [_only(_measured("a", 1 + step / 100, step + 1))], 0.01) == table
    assert _texts(table, _only(_measured("a", 1.05, 9)))[0].startswith("! latency 1 -> 1.05 ms")


def test_a_quarantine_holds_changes_back_until_it_is_over() -> None:
    today = datetime.now(UTC).date()
    rows = (_only(_measured("a", 1.0, 1)),)
    slower = _only(_measured("a", 2.0, 2))
    held = ResultTable(model="digits_torch", rows=rows, quarantine=(Held(**HELD, until=today),))
    assert [text[:9] for text in _texts(held, slower)] == ["latency 1"] and "(in quarantine)" in _texts(held, slower)[0]
    over = ResultTable(model="digits_torch", quarantine=(Held(**HELD, until=today - timedelta(days=1)),), rows=rows)
    assert _texts(over, slower)[0].startswith("! its quarantine was over on ")
    assert not held.quarantine[0].is_over(today) and held.quarantine[0].is_over(today + timedelta(days=1))


def test_tables_from_measuring_to_the_gate(ledger: LedgerBench) -> None:
    def run(*arguments: str) -> tuple[str, int]:
        done = CliRunner().invoke(app, ["--root", str(ledger.root), "results", *arguments])
        assert done.exception is None or isinstance(done.exception, TvmflowError | SystemExit), done.exception
        return done.stdout, getattr(done.exception, "exit_code", done.exit_code)

    cell, where = ledger.cell("digits_torch"), ledger.workspace
    with pytest.raises(StoreError, match="nothing of this workspace was measured"):
        api.check_results(workspace=where)
    ledger.measure(cell, "library")
    assert run("check")[1] == 3
    assert run("update") == ("results/digits_torch.yaml\n", 0) and run("check") == ("", 0)
    written = table_path(where, "digits_torch").read_bytes()
    assert run("update") == ("", 0) and table_path(where, "digits_torch").read_bytes() == written
    [row] = read_table(where, "digits_torch").rows
    assert (row.cell, row.device, row.latency_ms, row.tools) == (
        CELL,
        "cpu-test-t2",
        1.0,
        {"llvm": "20", "tvm": "0.27"},
    )

    ledger.latency |= {"median_ms": 1.15, "low_ms": 1.14, "high_ms": 1.16}
    ledger.measure(cell, "another")
    text, code = run("check", "digits_torch", "--json")
    assert code == 3 and [one["fails"] for one in json.loads(text)] == [True, False]
    until = (datetime.now(UTC).date() + timedelta(days=1)).isoformat()
    assert run("quarantine", CELL, "--reason", HELD["reason"], "--issue", HELD["issue"], "--until", until)[1] == 0
    assert run("check")[1] == 0
    reason = f"{CELL} is in quarantine until {until}: wrong on this driver (https://example.org/7)"
    assert Candidate(where, cell).judge() == ((reason,), None)
    assert held_reasons(where, "digits_torch@local-cpu:int8") == []
    assert run("lift", CELL)[1] == 0 and run("check")[1] == 3
    assert held_reasons(where, CELL) == [] and Candidate(where, cell).judge()[0] == ()
    assert run("lift", CELL)[1] == 1
    for day in ("2026-13-01", date(2020, 1, 1)):
        with pytest.raises(UsageError):
            api.quarantine_cell(cell, "a", "b", day, where)


def test_a_damaged_table_is_one_error(ledger: LedgerBench) -> None:
    path = table_path(ledger.workspace, "digits_torch")
    path.parent.mkdir()
    for text in ("rows: 1", "model: other", "a: [", "model: digits_torch\nrows: [{cell: a}]"):
        path.write_text(text)
        with pytest.raises(StoreError, match="is damaged") as caught:
            held_reasons(ledger.workspace, CELL)
        assert "git checkout results/digits_torch.yaml" in str(caught.value.hint)
