"""Show the progress of stages on stderr: two live lines per stage on a terminal, plain lines elsewhere.

A stage's text is shown with its progress, its duration and the remaining time. A finished stage leaves a line.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flows.events import PREVIEW, forget, listen
from tvmflow.config.params import STAGE_NAMES
from tvmflow.devices.waiting import WAITS
from tvmflow.support.progress import TASK_LINE
from tvmflow.tuning.status_lines import FIRST

_EVERY_S = 30.0  # between plain lines about a long stage
_BAR = 20  # characters
_SURE_S = 3.0  # of work before the remaining time is shown


@dataclass
class Running:
    """A running stage. first: time and progress of the first report; said: time of the last plain line."""

    cell: str
    stage: str
    started: float
    text: str = ""
    done: int = 0
    total: int = 0
    first: tuple[float, int] = (0.0, 0)
    said: float = field(default=0.0)

    def hear(self, text: str, done: int, total: int, now: float) -> None:
        """Record a progress report; another total means another part of the work."""
        if total != self.total or done < self.done:
            self.first = (now, done)
        self.text, self.done, self.total = text, done, total

    def left_s(self, now: float) -> float | None:
        """Return the remaining seconds at the speed so far, None if unknown."""
        since, before = self.first
        if self.done <= before or now - since < _SURE_S:
            return None
        return (now - since) * (self.total - self.done) / (self.done - before)

    def head(self, now: float) -> str:
        """Return the cell, the stage and its duration."""
        left = self.left_s(now)
        number = f"{STAGE_NAMES.index(self.stage) + 1}/{len(STAGE_NAMES)}" if self.stage in STAGE_NAMES else ""
        tail = "" if left is None else f", {clock(left)} left"
        return f"{self.cell} {self.stage} {number} {clock(now - self.started)}{tail}"

    def tail(self) -> str:
        """Return the progress and the stage's text."""
        if not self.total:
            return self.text
        count = f"{self.done}/{self.total}"
        filled = min(_BAR, _BAR * self.done // self.total)
        return f"[{'#' * filled}{'.' * (_BAR - filled)}] {count} {self.text}"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, with hours if any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Display:
    """Shows progress within a context. tuning_lines: also a line per measurement of a kernel."""

    def __init__(
        self,
        cells: int,
        tuning_lines: bool = False,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cells, self.tuning_lines, self.now = cells, tuning_lines, now
        self.console = console or Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
        self.running: dict[tuple[str, str], Running] = {}
        self.lock = threading.RLock()
        self.live = Live(
            get_renderable=self._lines,
            console=self.console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="visible",
        )

    def __enter__(self) -> Display:
        listen(self.hear)
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        forget(self.hear)
        if self.console.is_terminal:
            self.live.stop()

    def _lines(self) -> Group:
        """Return the live lines: two per running stage, none wider than the terminal."""
        with self.lock:
            now = self.now()
            lines = [
                line for one in self.running.values() for line in (one.head(now), f"  {one.tail()}") if line.strip()
            ]
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))

    def hear(self, cell: str, stage: str, text: str, done: int, total: int) -> None:
        """Handle an event of a stage."""
        with self.lock:
            key, now = (cell, stage), self.now()
            if text.startswith(FIRST):
                self._say(f"{cell} {text}")
            elif stage == PREVIEW and text in ("done", "failed"):
                self.running.pop(key, None)
            elif text == "started":
                self.running[key] = Running(cell, stage, now, said=now)
            elif text == "hit":
                self._say(f"{cell} {stage}: hit")
            elif text in ("done", "restored", "failed"):
                running = self.running.pop(key, None)
                self._say(f"{cell} {stage}: {text}, {now - (running.started if running else now):.1f} s")
            elif key in self.running:
                self._progress(self.running[key], text, done, total, now)

    def _progress(self, one: Running, text: str, done: int, total: int, now: float) -> None:
        if text.startswith(TASK_LINE):
            one.hear(one.text, done, total, now)
            if self.tuning_lines:
                self._say(text if self.cells == 1 else f"{one.cell} {text}")
        else:
            one.hear(text, done, total, now)
            if text.startswith(WAITS):
                self._say(f"{one.cell} {one.stage}: {text}")
        if not self.console.is_terminal and not self.tuning_lines and now - one.said >= _EVERY_S:
            one.said = now
            count = f"{one.done}/{one.total} " if one.total else ""
            self._say(f"{one.head(now)}: {count}{one.text}")

    def _say(self, line: str) -> None:
        """Write a permanent line, complete even if it is wider than the terminal."""
        self.console.print(Text(line), soft_wrap=True)
