"""The tuning log: append-only, whole lines only, by device kind and toolchain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmflow.tuning.records import COMPILE_ERROR, OK, TuningRecord, append_record, best_of, read_records

ONE = TuningRecord(
    "k1", "conv", "packed_conv", {"a": 1}, [["x"], []], (0.002, 0.001, 0.003), OK, "cpu-a", {"tvm": "1"}, "now"
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
