"""Describe the execution time of cells side by side, and of GPUs the two waits of an app: for the first output after
start, and for outputs to reach the host.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.report.console import Grid, grid

STEPS = ("mean", "median", "max", "min", "std")


@dataclass(frozen=True)
class Start:
    """The waits of an app that computes on a GPU, in ms. empty, filled: from opening the library to the first output,
    with an empty and a filled cache of compiled programs; get_output: copying the outputs to the host, apart from run.
    """

    empty_ms: float
    filled_ms: float
    run_ms: float
    get_output_ms: float

    def to_json(self) -> dict[str, float]:
        return {
            **asdict(self),
            "empty_runs": self.empty_ms / self.run_ms,
            "filled_runs": self.filled_ms / self.run_ms,
            "get_output_share": self.get_output_ms / self.run_ms,
        }


def start_of(card: Scorecard) -> Start | None:
    """Return the waits of a GPU cell, None for another one."""
    if card.gpu is None or not card.has_time:
        return None
    first, run = card.median_first_run_ms or 0.0, card.latency.compute.median_ms
    return Start(card.gpu.compile_ms + first, card.gpu.open_ms + first, run, card.gpu.copy_out_ms)


def execution_of(card: Scorecard) -> dict[str, Any]:
    """Return the numbers of both tables for one cell, as JSON: times in ms, None where the device has no time."""
    start, compute = start_of(card), card.latency.compute
    times = {step: getattr(compute, f"{step}_ms") for step in STEPS} if card.has_time and compute.is_time else None
    return {"times": times, "start": start.to_json() if start else None}


def execution_tables(cards: list[Scorecard]) -> list[Grid]:
    """Return the execution time of the cells side by side; with GPU cells also their start and outputs."""
    rows = []
    for card in cards:
        times = execution_of(card)["times"]
        rows.append([card.cell, *(_ms(times[step]) if times else "-" for step in STEPS)])
    found = [grid("execution time", ("cell", *(f"{step} (ms)" for step in STEPS)), rows, ("cell",))]
    starts = [(card.cell, start) for card in cards if (start := start_of(card))]
    if starts:
        columns = ("cell", "empty program cache", "filled program cache", "run (ms)", "get_output (ms)")
        lines = [
            [
                cell,
                *(f"{_ms(ms)} ms = {ms / one.run_ms:.3g} runs" for ms in (one.empty_ms, one.filled_ms)),
                *(_ms(ms) for ms in (one.run_ms, one.get_output_ms)),
            ]
            for cell, one in starts
        ]
        caption = "from opening the library to the first output; get_output: the copy to the host, a part of run"
        found.append(grid("start and outputs of GPUs", columns, lines, ("cell",), caption))
    return found


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.4g}"
