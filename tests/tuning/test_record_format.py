"""Test parsing of tuning logs by allowlist: a line is a record, cut off by a kill, or one error that names it."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tvmflow.schedules.intrinsics.amx import Tile
from tvmflow.schedules.intrinsics.arm_depthwise import DepthwiseRow
from tvmflow.schedules.intrinsics.arm_depthwise_dot import DepthwiseTile
from tvmflow.schedules.intrinsics.arm_first_layer import ColumnRow
from tvmflow.schedules.intrinsics.arm_mmla import PairTile
from tvmflow.schedules.intrinsics.arm_tile import LaneTile
from tvmflow.schedules.intrinsics.dot_product import AVX512_BF16
from tvmflow.support.errors import StoreError
from tvmflow.tuning.records.format import MAX_LINE_BYTES, is_cut_off, parse_line
from tvmflow.tuning.records.record import OK, TuningRecord, append_record, merge_records, read_records, record_of

STEPS: list[Any] = [
    ["GetSBlock", [], ["root", "main"], ["b0"]],
    ["Split", ["l37", "None", 4], [True, False], ["l41", "l42"]],
]
ONE = TuningRecord(
    "k1",
    "conv 1x2",
    "packed_conv",
    {"a": 1},
    [STEPS, [[0, [1, 2]]]],
    (0.002, 0.001),
    OK,
    "cpu-a",
    {"tvm": "1"},
    "now",
    0.1,
    5.0,
    (1, 2),
    "ld: \x1b[1mno\nroom",
)
LINE = json.dumps(asdict(ONE), sort_keys=True)
FILES = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _with(**changed: Any) -> str:
    return json.dumps({**asdict(ONE), **changed})


def _import(text: str, key: str = "pragma_import_llvm", name: str = "tvmflow.dot_vnni") -> list[Any]:
    return [[["Tensorize", ["l1", name], [True], []], ["Annotate", ["l1", f'"{text}"'], [key], []]], []]


HOSTILE = {
    "a list": "[1]",
    "a number": "3",
    "nothing known": "null",
    "text": "records",
    "deep": "[" * 100_000 + "]" * 100_000,
    "deep in a field": LINE.replace("0.002", "[" * 5000 + "]" * 5000),
    "deep trace": _with(trace=[[], json.loads("[" * 40 + "]" * 40)]),
    "nan": _with(seconds=[math.nan]),
    "infinity": _with(seconds=[1.0, math.inf]),
    "too large": LINE.replace("0.002", "1e999"),
    "negative time": _with(seconds=[-1.0]),
    "boolean time": _with(seconds=[True]),
    "text for times": _with(seconds="12"),
    "text in times": _with(seconds=["1"]),
    "no times": _with(seconds=None),
    "boolean knob": _with(knobs={"a": True}),
    "float knob": _with(knobs={"a": 1.5}),
    "large knob": _with(knobs={"a": 1 << 63}),
    "list of knobs": _with(knobs=[1]),
    "number for a name": _with(workload=3),
    "list for a kind": _with(device_kind=["a"]),
    "number for a unit": _with(unit=1),
    "lines for a build": _with(build="a\nb"),
    "long name": _with(name="x" * 1001),
    "control characters": _with(name="\x1b[2J"),
    "half a character": _with(name="\ud800"),
    "status": _with(status="fine"),
    "list for a status": _with(status=["ok"]),
    "toolchain": _with(toolchain={"tvm": 1}),
    "extents": _with(extents=[1, 2.0]),
    "nan flops": _with(flops=math.nan),
    "boolean canary": _with(canary_s=True),
    "error": _with(error=1),
    "unknown field": _with(more=1),
    "missing field": "{}",
    "twice": LINE[:-1] + ', "status": "ok"}',
    "utf-8": "\xff",
    "trace is text": _with(trace="x"),
    "trace is a map": _with(trace={}),
    "no steps": _with(trace=[[1], []]),
    "unknown step": _with(trace=[[["RunCode", [], [], []]], []]),
    "step of lists": _with(trace=[[[[], [], [], []]], []]),
    "map in a trace": _with(trace=[[["GetSBlock", [{}], [], []]], []]),
    "nan in a trace": _with(trace=[[], [math.nan]]),
    "large number in a trace": _with(trace=[[], [1 << 70]]),
    "endless trace": _with(trace=[[], [0] * 200_001]),
    "foreign LLVM": _with(trace=_import("define void @x() { ret void }")),
    "foreign C": _with(trace=_import("int x;", "pragma_import_c")),
    "LLVM of another instruction": _with(trace=_import(AVX512_BF16.intrinsic.imports)),
    "key in a list": _with(trace=[[["Annotate", ["l1", "x"], [["pragma_import_llvm"]], []]], []]),
    "long number": LINE.replace("0.002", "1" * 5000),
    "closed too early": LINE + "}",
    "two in a line": LINE + LINE,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_line_that_is_no_record_is_one_error_and_nothing_is_stored(tmp_path: Path, name: str) -> None:
    ours, other = tmp_path / "ours.jsonl", tmp_path / "other.jsonl"
    append_record(ours, ONE)
    before = ours.read_bytes()
    other.write_bytes(f"{_with(name='new')}\n{HOSTILE[name]}\n".encode("latin-1"))
    with pytest.raises(StoreError, match=r"line 2 of .*other\.jsonl is not a tuning record: .+"):
        merge_records([other], ours)
    assert ours.read_bytes() == before
    with pytest.raises(StoreError, match="line 2 of"):
        read_records(other)
    assert len(parse_line(LINE.encode())) == 16


def test_machine_code_of_our_own_is_let_through() -> None:
    own = _import(AVX512_BF16.intrinsic.imports, name=AVX512_BF16.intrinsic.name)
    tile = "tvmflow.tiles_uint8_2_2_8_3_3_4_16_0_1_1_1_1_1_0_0"
    tiles = Tile.named_in(
        tile
        + (
            " tvmflow.tiles_int8_999999_999999_9_1_1_1_16_0_0_1_1_1_1_0_0 "
            "tvmflow.tiles_int8_0_1_1_1_1_1_16_0_0_1_1_1_1_0_0 tvmflow.tiles_int8_1_1_1_1_1_1_5_0_0_1_1_1_1_0_0"
        )
    )
    assert [one.name for one in tiles] == [tile]
    pair = "tvmflow.pairs_15_2_1_4_8_3_3_1_1_1_1"
    pairs = PairTile.named_in(pair + " tvmflow.pairs_15_4_4_7_8_3_3_1_1_1_1 tvmflow.pairs_13_1_1_4_8_3_3_1_1_1_1")
    assert [one.name for one in pairs] == [pair]
    column, half = "tvmflow.columns_27_8_2", "tvmflow.columns_103_8_2"
    columns = ColumnRow.named_in(
        f"{column} {half} tvmflow.columns_22_1_1 tvmflow.columns_9_8_2 tvmflow.columns_27_99_2 tvmflow.columns_27_0_2"
        " tvmflow.columns_103_2_2"
    )
    assert [one.name for one in columns] == [column, half]
    row = "tvmflow.depthwise_123_8_2"
    rows = DepthwiseRow.named_in(
        f"{row} tvmflow.depthwise_119_8_2 tvmflow.depthwise_123_33_1 tvmflow.depthwise_123_8_0"
    )
    assert [one.name for one in rows] == [row]
    dot = "tvmflow.depthwisedot_3_3_8_1"
    dots = DepthwiseTile.named_in(
        f"{dot} tvmflow.depthwisedot_3_4_8_1 tvmflow.depthwisedot_8_3_8_1 tvmflow.depthwisedot_3_3_11_1"
        " tvmflow.depthwisedot_3_3_8_3 tvmflow.depthwisedot_3_3_0_1"
    )
    assert [one.name for one in dots] == [dot]
    whole = "tvmflow.tile_181_1_1_7_8_1_1_9"
    wholes = LaneTile.named_in(
        f"{whole} tvmflow.tile_180_1_1_7_8_1_1_9 tvmflow.tile_181_1_1_8_8_1_1_9 tvmflow.tile_181_0_1_7_8_1_1_9"
        " tvmflow.tile_181_1_1_7_999999_1_1_9 tvmflow.tile_181_1_1_7_8_1_6_9 tvmflow.tile_182_1_1_17_8_1_1_9"
    )
    assert [one.name for one in wholes] == [whole]
    for trace in (
        *(_import(one.intrinsic.imports, name=one.name) for one in (*columns, *rows, *dots, *wholes)),
        own,
        _import(tiles[0].intrinsic.imports, name=tile),
        _import(pairs[0].intrinsic.imports, name=pair),
    ):
        assert record_of({**asdict(ONE), "trace": trace}).trace == trace


def test_an_endless_line_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "log.jsonl").open("wb") as file:
        file.write(b"{")
        file.truncate(MAX_LINE_BYTES * 1000)
    for ours in (True, False):
        with pytest.raises(StoreError, match=r"line 1 of .* longer than"):
            read_records(tmp_path / "log.jsonl", ours=ours)


def test_every_beginning_of_a_record_is_torn_and_no_whole_one() -> None:
    line = LINE.encode()
    assert all(is_cut_off(line[:cut]) for cut in range(1, len(line)))
    assert not is_cut_off(line) and not any(is_cut_off(text.encode()) for text in ("", "[", "]", '"{', "x{", "}{"))


def test_a_torn_line_of_another_log_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text(f"{LINE}\n{LINE[:100]}")
    assert read_records(path) == [ONE]
    with pytest.raises(StoreError, match="line 2 of"):
        merge_records([path], tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


def _typed(record: TuningRecord) -> None:
    """Assert what readers of a record rely on."""
    assert all(
        type(s) is float and math.isfinite(s) and s >= 0 for s in (*record.seconds, record.flops, record.canary_s)
    )
    assert all(type(v) is int for v in (*record.knobs.values(), *record.extents))
    texts = (record.workload, record.name, record.template, record.status, record.device_kind, record.created)
    assert all(type(text) is str and text.isprintable() for text in (*texts, *record.toolchain.values()))


@FILES
@given(st.data())
def test_any_value_in_any_place_is_a_typed_record_or_one_error(tmp_path: Path, data: st.DataObject) -> None:
    value = copy.deepcopy(json.loads(LINE))
    holder, key = data.draw(st.sampled_from(_places(value)))
    holder[key] = data.draw(_JSON)
    _read_or_refuse(tmp_path / "log", json.dumps(value).encode())


@FILES
@given(st.data())
def test_any_bytes_in_any_place_are_a_typed_record_or_one_error(tmp_path: Path, data: st.DataObject) -> None:
    at, length = data.draw(st.integers(0, len(LINE))), data.draw(st.integers(0, 20))
    put = data.draw(
        st.binary(max_size=8) | st.sampled_from([b"NaN", b"true", b"[" * 3000, b"\n", b"1e999", b'"', b"}"])
    )
    _read_or_refuse(tmp_path / "log", LINE.encode()[:at] + put + LINE.encode()[at + length :])


def _read_or_refuse(path: Path, line: bytes) -> None:
    path.write_bytes(line + b"\n")
    for ours in (True, False):
        try:
            records = read_records(path, ours=ours)
        except StoreError as error:
            assert str(path) in error.found and "line " in error.found and error.hint
            continue
        for record in records:
            _typed(record)
            assert record_of(json.loads(json.dumps(asdict(record)))) == record
    assert path.read_bytes() == line + b"\n"


def test_a_tile_without_further_sums_is_one_of_ours() -> None:
    assert len(Tile.named_in("tvmflow.tiles_uint8_1_1_1_1_1_4_16_0_0_0_0_0_0_0_0")) == 1
    assert not Tile.named_in("tvmflow.tiles_uint8_0_1_1_1_1_4_16_0_0_0_0_0_0_0_0")
