"""Test the tuning log: append-only, whole lines only, by device kind and toolchain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tvmflow.tuning.records.record import (
    COMPILE_ERROR,
    OK,
    WRONG_OUTPUT,
    Clock,
    TuningRecord,
    append_record,
    best_of,
    failures,
    merge_records,
    read_records,
)

ONE = TuningRecord(
    "k1",
    "conv",
    "packed_conv",
    {"a": 1},
    [[["GetSBlock", [], ["root", "main"], ["b0"]]], []],
    (0.002, 0.001, 0.003),
    OK,
    "cpu-a",
    {"tvm": "1"},
    "now",
)


def test_records_come_back_and_the_fastest_correct_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    records = [
        ONE,
        replace(ONE, seconds=(0.001,)),
        replace(ONE, seconds=(), status=COMPILE_ERROR),
        replace(ONE, workload="k2"),
    ]
    for record in records:
        append_record(path, record)
    assert read_records(path) == records
    best = best_of(records)
    assert best["k1"].seconds == (0.001,) and set(best) == {"k1", "k2"}
    assert best_of([replace(ONE, seconds=(), status=COMPILE_ERROR)]) == {}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_kill_at_any_byte_loses_at_most_the_last_record(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "log.jsonl"
    path.unlink(missing_ok=True)
    for _ in range(3):
        append_record(path, ONE)
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n") + (
        1 if cut and content[:cut].rsplit(b"\n", 1)[-1] == content.split(b"\n")[0] else 0
    )
    assert len(read_records(path)) == whole
    append_record(path, replace(ONE, name="after"))
    assert [r.name for r in read_records(path)] == ["conv"] * whole + ["after"]


def test_a_clock_that_moved_does_not_choose_the_best() -> None:
    slow_clock = replace(ONE, seconds=(0.002,), canary_s=0.002)  # one canary long
    fast_clock = replace(ONE, seconds=(0.0015,), canary_s=0.001)  # one and a half
    assert best_of([slow_clock, fast_clock])["k1"] == slow_clock
    without = replace(fast_clock, canary_s=0.0)
    assert best_of([slow_clock, without])["k1"] == without


def test_units_of_one_kind_are_compared_by_their_canaries() -> None:
    """The quick phone's own best must not win because its clock is faster."""
    quick = [
        replace(ONE, unit="quick", knobs={"a": at}, seconds=(s,), canary_s=0.001) for at, s in ((0, 0.010), (1, 0.020))
    ]
    slow = [
        replace(ONE, unit="slow", knobs={"a": at}, seconds=(s,), canary_s=0.003) for at, s in ((2, 0.021), (3, 0.060))
    ]
    assert best_of(quick + slow)["k1"] == slow[0]
    unknown = replace(slow[0], canary_s=0.0, seconds=(0.001,), unit="third")
    assert best_of([*quick, *slow, unknown])["k1"] == slow[0], "it cannot be compared"
    assert best_of([quick[0], replace(unknown, unit="")])["k1"].seconds == (0.001,), "a log of before says no unit"
    clock = Clock()
    assert [round(clock.seconds(one), 6) for one in (*quick, *slow)] == [0.010, 0.020, 0.007, 0.020]
    assert clock.seconds(replace(quick[0], canary_s=0.002)) == 0.010, "of one unit it is what was measured"
    assert clock.seconds(replace(quick[0], build="another")) == 0.010 and clock.seconds(unknown) == 0.001


def test_of_schedules_alike_the_one_by_rows_is_taken() -> None:
    fast = replace(ONE, seconds=(1.00,), knobs={"rows_first": 0})
    alike, slower = (replace(ONE, seconds=(seconds,), knobs={"rows_first": 1}) for seconds in (1.03, 1.06))
    assert best_of([fast, slower, alike])["k1"] == alike
    assert best_of([fast, slower])["k1"] == fast


def test_logs_of_two_machines_are_merged_once(tmp_path: Path) -> None:
    for name, record in (("a", ONE), ("b", replace(ONE, name="other"))):
        append_record(tmp_path / name, record)
    append_record(tmp_path / "b", ONE)
    assert merge_records([tmp_path / "b"], tmp_path / "a") == (1, 1)
    assert merge_records([tmp_path / "b"], tmp_path / "a") == (0, 2)
    assert [r.name for r in read_records(tmp_path / "a")] == ["conv", "other"]


def test_a_log_of_the_first_version_is_still_read(tmp_path: Path) -> None:
    old = {
        "workload": "k",
        "name": "n",
        "template": "t",
        "knobs": {},
        "trace": None,
        "seconds": [1.0],
        "status": "ok",
        "device_kind": "d",
        "toolchain": {},
        "created": "then",
    }
    (tmp_path / "log").write_text(json.dumps(old) + "\n")
    (record,) = read_records(tmp_path / "log")
    assert record.canary_s == 0.0 and record.extents == ()


def test_failed_candidates_are_listed_with_their_errors_each_once() -> None:
    refused = replace(ONE, seconds=(), status=COMPILE_ERROR, error="LLVM ERROR: no such register", created="1")
    wrong = replace(refused, status=WRONG_OUTPUT, error="relative error 0.3", knobs={"a": 2}, created="2")
    old = replace(refused, error="", workload="k2", created="0")
    another = replace(refused, knobs={"a": 3}, created="3")
    rows = failures([ONE, refused, wrong, another, replace(refused, created="4"), old])
    assert [(row["workload"], row["status"], row["count"]) for row in rows] == [
        ("k2", COMPILE_ERROR, 1),
        ("k1", WRONG_OUTPUT, 1),
        ("k1", COMPILE_ERROR, 1),
        ("k1", COMPILE_ERROR, 2),
    ]
    assert rows[2]["knobs"] == {"a": 3} and rows[3]["knobs"] == ONE.knobs
    assert rows[3]["error"] == "LLVM ERROR: no such register"
    assert "not kept" in rows[0]["error"]
