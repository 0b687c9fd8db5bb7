"""Show a table of all workloads while they are tuned, on a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from tvmflow.support.progress import TASK_LINE, Progress
from tvmflow.tuning.search.state import TuneReport, Watch, WorkloadSearch, fastest_kernel

if TYPE_CHECKING:
    from rich.table import Table

_ROWS = 24
_REASON = 200  # characters of the reason of a failure
_COLUMNS = ("workload", "calls", "default ms", "best ms", "GFLOP/s", "of the fastest", "trials", "device s")


@contextmanager
def live_table(progress: Progress) -> Iterator[tuple[Watch | None, Progress]]:
    """Show the table and a status line below it; without a terminal, yield `progress` unchanged."""
    if not sys.stderr.isatty():
        yield None, progress
        return

    parts: list[Any] = ["", ""]  # the table, and the line below it

    with Live(console=Console(stderr=True), refresh_per_second=2) as live:

        def watch(searches: list[WorkloadSearch], report: TuneReport) -> None:
            parts[0] = _table(searches, report)
            live.update(Group(*parts))

        def say(text: str, done: int, total: int) -> None:
            parts[1] = f"{text} {done}/{total}" if total else text
            live.update(Group(*parts))

        yield watch, say


def task_line(
    searches: list[WorkloadSearch], now: WorkloadSearch, seconds: float | None, trials: int, error: str = ""
) -> str:
    """Return one measurement as `[Task 3/17] current / best GFLOP/s`, in ms if the operations are unknown.

    seconds: infinity for a schedule that failed, None where nothing could be measured. error: why.
    """
    number, most = searches.index(now) + 1, min(trials, len(now.candidates))
    unit = "GFLOP/s" if now.flops else "ms"
    best = f"{_speed(now, now.best_s)} {unit}" if math.isfinite(now.best_s) else "none so far"
    if seconds is None:
        current = "not measured"
    else:
        current = _speed(now, seconds) if math.isfinite(seconds) else "failed"
    lines = error.strip().splitlines()
    why = f": {lines[0][:_REASON]}" if lines else ""
    return (
        f"{TASK_LINE}{number:>{len(str(len(searches)))}}/{len(searches)}] {current} / {best}, "
        f"trial {now.trials} of {most}, {now.workload.name}{why}"
    )


def _speed(search: WorkloadSearch, seconds: float) -> str:
    return f"{search.flops / seconds / 1e9:.2f}" if search.flops else f"{seconds * 1e3:.3g}"


def best_so_far(searches: list[WorkloadSearch]) -> str:
    """Return the summed best time of the measured kernels and its ratio to their default schedules."""
    known = [s for s in searches if math.isfinite(s.best_s)]
    if not known:
        return "no kernel measured yet"
    best = sum(s.workload.calls * s.best_s for s in known)
    text = f"best {best * 1e3:.3g} ms in {len(known)} of {len(searches)} kernels"
    if any(not math.isfinite(s.default_s) for s in known):
        return text
    return f"{text}, {sum(s.workload.calls * s.default_s for s in known) / best:.2f}x the default"


def describe_stop(report: TuneReport) -> str:
    """Return the result of a search, why it ended, and the expected gain of another minute."""
    return (
        f"{best_so_far(report.searches)}; the search ended ({report.stopped}), another minute would save about "
        f"{report.promised:.1%}"
    )


def _table(searches: list[WorkloadSearch], report: TuneReport) -> Table:
    table = Table(title=f"{report.measured} measured, {report.reused} known, {sum(report.failures.values())} failed")
    fastest = fastest_kernel(searches)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "workload" else "right")
    shown = sorted(searches, key=lambda t: -t.workload.calls * (t.best_s if math.isfinite(t.best_s) else 0.0))
    for search in shown[:_ROWS]:
        table.add_row(*_row(search, fastest))
    return table


def _row(search: WorkloadSearch, fastest: float) -> tuple[str, ...]:
    known = math.isfinite(search.best_s)
    speed = search.flops / search.best_s if known and search.flops else 0.0
    return (
        search.workload.name,
        str(search.workload.calls),
        f"{search.default_s * 1e3:.3g}" if math.isfinite(search.default_s) else "-",
        f"{search.best_s * 1e3:.3g}" if known else "-",
        f"{speed / 1e9:.0f}" if speed else "-",
        f"{speed / fastest:.0%}" if speed else "-",
        str(search.trials),
        f"{search.spent_s:.1f}",
    )
