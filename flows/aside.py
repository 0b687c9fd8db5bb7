"""Run background work of this process; stages that measure this machine wait until it is finished."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

_threads: list[threading.Thread] = []


def start_background(work: Callable[[], object]) -> None:
    """Run work in a thread; its errors are raised later by the code that needs its result."""

    def run() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=run, daemon=True, name="aside")
    _threads.append(thread)
    thread.start()


def wait_for_background() -> None:
    """Wait until all background work is finished."""
    for thread in list(_threads):
        thread.join()
