"""Show what the stages of many cells do: live bars on a terminal, a line per stage elsewhere. On stderr."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from flows.stage_tasks import listen


class Display:
    """A context in which progress is shown."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal
        self.progress = Progress(
            SpinnerColumn(), TextColumn("{task.fields[cell]} [bold]{task.fields[stage]}"), BarColumn(),
            TextColumn("{task.description}"), TimeElapsedColumn(), console=self.console, transient=False,
        )  # fmt: skip
        self.bars: dict[tuple[str, str], Any] = {}
        self.started: dict[tuple[str, str], float] = {}
        self.lock = threading.Lock()

    def __enter__(self) -> Display:
        listen(self._hear)
        if self.live:
            self.progress.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self.live:
            self.progress.stop()

    def _hear(self, cell: str, stage: str, text: str, done: int, total: int) -> None:
        with self.lock:
            key = (cell, stage)
            if text == "started":
                self.started[key] = time.monotonic()
                if self.live:
                    self.bars[key] = self.progress.add_task("", cell=cell, stage=stage, total=None)
            elif text in ("done", "failed", "hit"):
                self._end(key, text)
            elif self.live and key in self.bars:
                self.progress.update(self.bars[key], description=text, completed=done, total=total or None)

    def _end(self, key: tuple[str, str], how: str) -> None:
        cell, stage = key
        if how == "hit":
            if not self.live:
                print(f"{cell} {stage}: hit", file=sys.stderr, flush=True)
            return
        seconds = time.monotonic() - self.started.pop(key, time.monotonic())
        if self.live and key in self.bars:
            self.progress.update(self.bars.pop(key), description=how, completed=1, total=1)
        elif not self.live:
            print(f"{cell} {stage}: {how}, {seconds:.1f} s", file=sys.stderr, flush=True)
