"""Test tables on terminals of 80 and 120 columns, and progress with and without a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from flows.display import Display
from tests.conftest import examples
from tests.report.report_data import BADGE, card, history, latency, part, processors
from tests.scorecards import DEVICE
from tvmflow.api.results import CellStatus
from tvmflow.devices.gpu.quarantine import DifferingKernel
from tvmflow.devices.gpu_facts import GpuFacts
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.evaluation.quality_warnings import CALIBRATED_ON_NOISE
from tvmflow.evaluation.scorecard import AcceleratorPart, GpuAgreement, GpuNumbers, Scorecard
from tvmflow.pipeline.results import RetuneResult
from tvmflow.report.console import Grid, grid, print_to, printable, show_table, show_text
from tvmflow.report.plans import status_table
from tvmflow.report.processors import numbers_of
from tvmflow.report.retune_tables import retune_table
from tvmflow.report.tables import latency_table, part_table, scorecard_markdown, scorecard_table
from tvmflow.tuning.records.origins import ORIGINS

WIDTHS = (80, 120)


def _printed(value: Grid, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False, force_terminal=True)
    print_to(console, value)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]


def _card(name: str, **more: Any) -> Scorecard:
    return Scorecard.from_json(card(name, 0.0181) | more)


NAMES = [f"digits_torch@local-cpu:{precision}" for precision in ("float32", "int8", "bfloat16")]
RETUNED = RetuneResult(
    NAMES[0],
    before={"tvm": "0.26.0"},
    now={"tvm": "0.27.0"},
    tuning={"kernels": dict(zip(ORIGINS, range(5), strict=True))},
    comparison=Comparison(0.9, 0.88, 0.93, 60, 0.95),
    verdict="digits_torch.local-cpu.float32 version 2 is the champion now (was version 1)",
)
TABLES: dict[str, Callable[[], Grid]] = {
    "scorecard": lambda: scorecard_table([_card(NAMES[0])]),
    "scorecards": lambda: scorecard_table([_card(name) for name in NAMES]),
    "latency": lambda: latency_table(_card(NAMES[0])),
    "busy": lambda: latency_table(_card(NAMES[0], peers={"onnxruntime": latency(1.0, badges=(BADGE,))})),
    "processors": lambda: processors()[0].table(),
    "accelerator": lambda: part_table(AcceleratorPart(**part(), launches=3)),
    "retune": lambda: retune_table([RETUNED, RetuneResult(NAMES[1], "failed, the champion stays: no device")]),
    "history": lambda: grid(
        "measurements",
        ("when", "tvm", "device", "latency", "version", "changed"),
        [
            [*(row[k] for k in ("when", "tvm", "device", "latency", "version")), "; ".join(row["changed"])]
            for row in history(NAMES[0], 3.0)
        ],
        ("device", "version", "changed"),
    ),
}


def test_cpu_and_accelerator_are_side_by_side_with_units_and_origins() -> None:
    [beside] = processors()
    table = beside.table()
    assert table.columns == ("", "unit", "digits@local-cpu:float32", "digits@vta-sim:vta_int8")
    assert [list(row[1:]) for row in table.rows] == [
        ["ms", "20, measured", "-"],  # the simulator's time says nothing
        ["cycles", "-", "50,000, estimated"],
        ["ms", "-", "0.5, estimated"],
        ["bytes", "-", "4096, measured"],
        ["bytes", "44,000, estimated", "-"],
        ["operations", "-", "5,000,000, measured"],
        ["operations", "8,000,000, estimated", "-"],
    ]
    by_plan = card(
        "digits@board:vta_int8", 2.0, part=part() | {"operations": 5e6, "counted": False, "simulated": False}
    )
    board = numbers_of(Scorecard.from_json(by_plan), None)
    assert [value and value.how for value in board[:4]] == ["measured", "estimated", "estimated", "estimated"]


def test_a_warning_is_on_every_line_that_shows_the_cell() -> None:
    made = _card(NAMES[1], warnings=[vars(CALIBRATED_ON_NOISE)])
    table = scorecard_table([_card(NAMES[0]), made])
    assert [CALIBRATED_ON_NOISE.badge in row[0] for row in table.rows] == [False, True]
    for text in (table.caption, latency_table(made).caption, scorecard_markdown(made)):
        assert CALIBRATED_ON_NOISE.text in text
    cell = CellStatus("a", NAMES[1], (), True, None, (CALIBRATED_ON_NOISE.badge,))
    assert status_table(Path(), [cell]).rows[0][2] == "up to date, calibrated on noise"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_tables_fit_and_break_no_number(name: str, width: int) -> None:
    value = TABLES[name]()
    text = _printed(value, width)
    assert max(len(line) for line in text.splitlines()) <= width
    for row in value.rows:
        for column, cell in zip(value.columns, row, strict=True):
            if column not in value.words:
                assert cell in text, (column, cell)
            assert all(word in text or len(word) > 24 for word in cell.split()), cell


def test_on_a_busy_machine_the_numbers_stay_and_have_a_badge() -> None:
    measured = Scorecard.from_json(card(NAMES[0], 1.0, (BADGE,)))
    table = scorecard_table([measured])
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["latency"] == f"1 ms (0.99 to 1.01), {BADGE}" and row["vs best peer"] == "0.70x, 0.66 to 0.73 (source)"
    assert row["vs onnxruntime"].startswith("1.30x, 1.23 to 1.37 (") and row["vs tied"].startswith(
        "1.01x, 0.96 to 1.06: no difference"
    )
    caption = latency_table(measured).caption
    assert (
        f"compute: {BADGE}" in caption
        and "cores 60 ns apart; 2 ms with cores 340 ns apart (25% of the turns)" in caption
    )
    assert BADGE in scorecard_markdown(measured)


def test_a_scorecard_of_a_gpu_says_what_it_is_and_whether_it_agrees() -> None:
    card = replace(
        _card(NAMES[0]),
        gpu=GpuNumbers(compile_ms=812.0, open_ms=25.0, copy_in_ms=0.25, copy_out_ms=0.5),
        first_run_ms=(3.0,),
        kernel_agreement=GpuAgreement(7, 3, 1e-3, 7e-7, None),
        device=replace(DEVICE, gpu=GpuFacts("opencl", "Mali-G72", "ARM Platform", "2.1")),
    )
    starts = "opened in 25 ms, 812 ms without cached programs; inputs copied in 0.25 ms, outputs in 0.5 ms"
    text = scorecard_markdown(card)
    assert "| GPU | Mali-G72, ARM Platform 2.1, opencl |" in text and f"| {starts} |" in text
    assert "| 7 agree, largest error 7e-07 |" in text
    assert f"first run 3.00 ms; GPU: {starts}" in str(latency_table(card).caption)
    differs = GpuAgreement(7, 3, 1e-3, None, DifferingKernel("conv2d", None))
    assert "conv2d is the first of 7 that differs" in scorecard_markdown(replace(card, kernel_agreement=differs))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(st.text(max_size=60), min_size=4, max_size=4), min_size=1, max_size=4), st.sampled_from(WIDTHS)
)
def test_whatever_a_table_holds_it_fits(rows: list[list[str]], width: int) -> None:
    text = _printed(grid("a title", ("name", "some", "more", "last"), rows, ("name", "last")), width)
    assert "\x1b" not in text.replace("\x1b[", "") and "a title" in text


def test_neither_markup_nor_escapes_of_others_act() -> None:
    text = _printed(grid("[bold]x[/]", ("a", "b"), [["[Task 1/2]", "red\x1b[31m\rover\nnext \u202e"]]), 80)
    assert "[bold]x[/]" in text and "[Task 1/2]" in text
    assert not {"\r", "\u202e"} & set(text) and "red [31m over next" in text
    assert printable("a\tb") == "a b"


def test_rows_are_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    show_table("t", ("a", "b"), [[long, "1"]])
    show_text("word " * 100)
    table, text = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert long in table and text.count("word") == 100


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _display(terminal: bool, width: int = 80, **more: Any) -> tuple[Display, _Clock]:
    clock = _Clock()
    console = Console(
        file=io.StringIO(), width=width, force_terminal=terminal, markup=False, highlight=False, _environ={}
    )
    return Display(1, console=console, now=clock, **more), clock


def _written(display: Display) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", display.console.file.getvalue()).splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", WIDTHS)
def test_live_progress_has_stage_trials_best_and_time_left_in_two_lines(width: int) -> None:
    display, clock = _display(True, width)
    display.hear(NAMES[0], "tune", "started", 0, 0)
    display.hear(NAMES[0], "tune", "no kernel measured yet", 0, 48)
    clock.now = 10.0
    display.hear(
        NAMES[0], "tune", "best 0.0312 ms in 3 of 9 kernels, 1.8x the default, and more words than fit", 12, 48
    )
    display.hear(NAMES[0], "tune", "[Task 3/9] 1.00 / 2.00 GFLOP/s, trial 2 of 3, dense", 13, 48)
    with display.console.capture() as captured:
        display.console.print(display._lines())
    head, tail = captured.get().splitlines()
    assert head == f"{NAMES[0]} tune 5/8 0:10, 0:27 left"
    assert tail.startswith("  [#####...............] 13/48 best 0.0312 ms in 3 of 9 kernels") and len(tail) <= width


def test_the_first_number_stays_and_ends_without_a_line_of_its_own() -> None:
    display, _clock = _display(False)
    text = (
        "first: 0.21 ms with default schedules, 2.1 times as fast as ONNX Runtime; expected tuning gain: about 10% "
        "in 2 minutes"
    )
    for said in ("started", "building with default schedules", text, "done"):
        display.hear(NAMES[0], "first", said, 0, 0)
    assert _written(display) == [f"{NAMES[0]} {text}"] and not display.running


def test_plain_lines_where_there_is_no_terminal() -> None:
    display, clock = _display(False)
    display.hear(NAMES[0], "tune", "started", 0, 0)
    for at in range(1, 13):
        clock.now = 5.0 * at
        display.hear(NAMES[0], "tune", f"best {at} ms", 4 * at, 48)
        display.hear(NAMES[0], "tune", "[Task 3/9] 1.00 / 2.00 GFLOP/s", 4 * at, 48)
    display.hear(NAMES[0], "tune", "done", 0, 0)
    display.hear(NAMES[0], "build", "hit", 0, 0)
    assert _written(display) == [
        f"{NAMES[0]} tune 5/8 0:30, 0:30 left: 24/48 best 6 ms",
        f"{NAMES[0]} tune 5/8 1:00, 0:00 left: 48/48 best 12 ms",
        f"{NAMES[0]} tune: done, 60.0 s",
        f"{NAMES[0]} build: hit",
    ]


def test_tuning_lines_are_written_for_who_wants_them() -> None:
    display, _ = _display(False, tuning_lines=True)
    display.hear(NAMES[0], "tune", "started", 0, 0)
    display.hear(NAMES[0], "tune", "[Task  3/17] 1.00 / 2.00 GFLOP/s, trial 2 of 3, dense", 1, 48)
    assert _written(display) == ["[Task  3/17] 1.00 / 2.00 GFLOP/s, trial 2 of 3, dense"]
