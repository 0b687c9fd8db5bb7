"""Test untrusted MetaSchedule databases: read by TVM in a sandbox, and checked before they are stored."""

from __future__ import annotations

import base64
import json
import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te

from tests.conftest import examples
from tvmflow.backends.cpu import host_backend
from tvmflow.ir.tir.blocks import new_schedule
from tvmflow.ir.tir.workloads import Workload, workload_key
from tvmflow.support.errors import StoreError
from tvmflow.tuning.records.metaschedule import (
    _MAX_DATABASE_BYTES,
    FILES,
    _record,
    export_metaschedule,
    import_metaschedule,
)
from tvmflow.tuning.records.record import OK, TuningRecord
from tvmflow.tuning.records.traces import trace_json

pytestmark = pytest.mark.heavy

WORKLOADS, RECORDS = FILES
GOOD = {
    "workload": "k",
    "name": "n",
    "trace": [[["GetSBlock", [], ["B", "main"], ["b0"]]], []],
    "seconds": [1e-3],
    "flops": 1.0,
    "extents": [16, 16],
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of one record."""
    read = te.placeholder((16, 16), name="A")
    function = te.create_prim_func([read, te.compute((16, 16), lambda i, j: read[i, j] + 1.0, name="B")])
    schedule = new_schedule(function)
    schedule.unroll(schedule.get_loops(schedule.get_sblock("B", "main"))[1])
    key, folder = workload_key(function), tmp_path_factory.mktemp("database")
    record = TuningRecord(key, "add", "t", {}, trace_json(schedule), (1e-3,), OK, "here", {}, "now")
    assert export_metaschedule([Workload(key, "add", 1, function)], {key: record}, host_backend(), folder) == 1
    (imported,) = import_metaschedule(folder, "here")
    assert (imported.workload, imported.trace, imported.seconds) == (key, record.trace, record.seconds)
    assert (imported.template, imported.status, imported.device_kind, imported.flops) == (
        "metaschedule",
        OK,
        "here",
        256.0,
    )
    return folder


def _endless_object(folder: Path) -> None:
    """Let an array of the workload's module hold itself."""
    digest, body = json.loads((folder / WORKLOADS).read_text())
    graph = json.loads(base64.b64decode(body)[8:])
    at = next(at for at, node in enumerate(graph["nodes"]) if node["type"] == "ffi.Array")
    graph["nodes"][at]["data"] = [at]
    text = json.dumps(graph).encode()
    (folder / WORKLOADS).write_text(
        json.dumps([digest, base64.b64encode(struct.pack("<Q", len(text)) + text).decode()]) + "\n"
    )


def _altered(change: Callable[[list[Any]], None]) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        entry = json.loads((folder / RECORDS).read_text())
        change(entry)
        (folder / RECORDS).write_text(json.dumps(entry) + "\n")

    return alter


def _set(*path: int, to: Any) -> Callable[[list[Any]], None]:
    def change(entry: Any) -> None:
        for key in path[:-1]:
            entry = entry[key]
        entry[path[-1]] = to

    return change


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "deep": (lambda folder: (folder / WORKLOADS).write_text("[" * 1_000_000), "died of SIGSEGV"),
    "deep record": (lambda folder: (folder / RECORDS).write_text("[" * 1_000_000), "died of SIGSEGV"),
    "an object that holds itself": (_endless_object, "died of SIGSEGV"),
    "torn": (lambda folder: (folder / RECORDS).write_text("[0, [[], [1.0]"), "this TVM cannot read"),
    "no text": (lambda folder: (folder / RECORDS).write_bytes(b"\xff\xfe"), "this TVM cannot read"),
    "text for times": (_altered(_set(1, 1, to="soon")), "this TVM cannot read"),
    "another workload": (_altered(_set(0, to=5)), "this TVM cannot read|died of"),
    "negative time": (_altered(_set(1, 1, 0, to=-1.0)), r"seconds\[0\] is -1.0"),
    "machine code": (
        _altered(lambda entry: entry[1][0][0].append(["Annotate", ["b0", '"int x;"'], ["pragma_import_c"], []])),
        "machine code",
    ),
    "a step of code": (_altered(_set(1, 0, 0, 0, 0, to="RunCode")), "this TVM cannot read"),
    "huge": (lambda folder: (folder / RECORDS).open("ab").truncate(_MAX_DATABASE_BYTES + 1), "at most"),
    "a folder": (lambda folder: ((folder / RECORDS).unlink(), (folder / RECORDS).mkdir()), "no database_tuning"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_database_is_one_error(database: Path, tmp_path: Path, name: str) -> None:
    damage, says = HOSTILE[name]
    folder = tmp_path / "database"
    shutil.copytree(database, folder)
    damage(folder)
    before = {path.name: path.stat() for path in folder.iterdir()}
    with pytest.raises(StoreError, match=says) as error:
        import_metaschedule(folder, "here")
    assert error.value.hint
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == {
        name: stat.st_mtime_ns for name, stat in before.items()
    }


def test_failures_are_left_out(database: Path, tmp_path: Path) -> None:
    for name in FILES:
        shutil.copyfile(database / name, tmp_path / name)
    _altered(_set(1, 1, to=[1e10]))(tmp_path)
    assert import_metaschedule(tmp_path, "here") == []


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        "k",
        {},
        {**GOOD, "trace": None},
        {**GOOD, "seconds": [math.nan]},
        {**GOOD, "seconds": [True]},
        {**GOOD, "workload": 3},
        {**GOOD, "more": 1},
        {**GOOD, "name": "\x1b[2J"},
        {**GOOD, "extents": [1.5]},
        {**GOOD, "flops": math.inf},
        {**GOOD, "trace": [[["Evil", [], [], []]], []]},
    ],
)
def test_an_answer_of_the_sandbox_that_no_record_can_hold(entry: object) -> None:
    assert _record(GOOD, "here", "now").workload == "k"
    with pytest.raises(ValueError, match=r"."):
        _record(entry, "here", "now")


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(sorted(GOOD)),
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5),
)
def test_no_answer_says_where_it_was_measured_or_by_what(key: str, value: Any) -> None:
    try:
        record = _record({**GOOD, key: value, "device_kind": "phone", "toolchain": {"tvm": "1"}}, "here", "now")
    except ValueError:
        return
    assert (record.device_kind, record.toolchain) == ("here", {"imported": "metaschedule"})
