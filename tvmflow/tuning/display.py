"""Show a table of all workloads while they are tuned, on a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tvmflow.progress import Progress
from tvmflow.tuning.state import Task, TuneReport, Watch, fastest_kernel

if TYPE_CHECKING:
    from rich.table import Table

_ROWS = 24
_COLUMNS = ("workload", "calls", "default ms", "best ms", "GFLOP/s", "of the fastest", "trials", "device s")


@contextmanager
def live_table(progress: Progress) -> Iterator[tuple[Watch | None, Progress]]:
    """Show the table and, below it, what is going on; where there is no terminal, pass `progress` on as it is."""
    if not sys.stderr.isatty():
        yield None, progress
        return
    from rich.console import Console, Group
    from rich.live import Live

    parts: list[Any] = ["", ""]  # the table, and the line below it

    with Live(console=Console(stderr=True), refresh_per_second=2) as live:

        def watch(tasks: list[Task], report: TuneReport) -> None:
            parts[0] = _table(tasks, report)
            live.update(Group(*parts))

        def say(text: str, done: int, total: int) -> None:
            parts[1] = f"{text} {done}/{total}" if total else text
            live.update(Group(*parts))

        yield watch, say


def _table(tasks: list[Task], report: TuneReport) -> Table:
    from rich.table import Table

    table = Table(title=f"{report.measured} measured, {report.reused} known, {sum(report.failures.values())} failed")
    fastest = fastest_kernel(tasks)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "workload" else "right")
    shown = sorted(tasks, key=lambda t: -t.workload.calls * (t.best_s if math.isfinite(t.best_s) else 0.0))
    for task in shown[:_ROWS]:
        table.add_row(*_row(task, fastest))
    return table


def _row(task: Task, fastest: float) -> tuple[str, ...]:
    known = math.isfinite(task.best_s)
    speed = task.flops / task.best_s if known and task.flops else 0.0
    return (
        task.workload.name, str(task.workload.calls), f"{task.default_s * 1e3:.3g}" if math.isfinite(task.default_s) else "-",
        f"{task.best_s * 1e3:.3g}" if known else "-", f"{speed / 1e9:.0f}" if speed else "-",
        f"{speed / fastest:.0%}" if speed else "-", str(task.trials), f"{task.spent_s:.1f}",
    )  # fmt: skip
