"""Tell what a stage does to the process that started it, as lines of JSON, and end when that process is gone."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tvmflow.devices.waiting import WAITS_HERE
from tvmflow.tuning.status_lines import FIRST

Tell = Callable[[dict[str, Any]], None]


def teller(descriptor: int | None) -> Tell:
    """Return what writes events to a file descriptor, None for the terminal. This process ends with the reader."""
    if descriptor is None:
        return _tell_terminal

    def tell(event: dict[str, Any]) -> None:
        rest = (json.dumps(event) + "\n").encode()
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except BrokenPipeError:
            _leave()

    threading.Thread(target=_watch, args=(descriptor,), daemon=True).start()
    return tell


def tell_waits(tell: Tell) -> None:
    """Tell of waits for devices, which do not count against the time limit of the stage."""
    WAITS_HERE.say = lambda text: tell({"progress": [text, 0, 0]})
    WAITS_HERE.on_pause = lambda is_paused: tell({"paused": is_paused})


def _watch(descriptor: int) -> None:
    """Wait until the reader of this process's events is gone."""
    poll = select.poll()
    poll.register(descriptor, 0)  # poll reports errors without any requested event
    while not poll.poll():
        pass
    _leave()


def _leave() -> NoReturn:
    """End this process and its children, since its parent is gone. The stage stays unfinished, as after a kill."""
    if os.getsid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _tell_terminal(event: dict[str, Any]) -> None:
    if "progress" in event and sys.stderr.isatty():
        text, done, total = event["progress"]
        count = f" {done}/{total}" if total else ""
        ends = text.startswith(FIRST) or (total and done == total)
        print(f"\r\033[K{text}{count}", end="\n" if ends else "", file=sys.stderr, flush=True)
