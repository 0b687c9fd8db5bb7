"""Work of this process beside the stages that run: stages that measure this machine wait until it is over."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

_threads: list[threading.Thread] = []


def begin_aside(work: Callable[[], object]) -> None:
    """Do some work in a thread; what is wrong with it, whoever needs its result finds out and says."""

    def run() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=run, daemon=True, name="aside")
    _threads.append(thread)
    thread.start()


def wait_for_aside() -> None:
    """Return when all such work is over."""
    for thread in list(_threads):
        thread.join()
