"""Handle Ctrl-C and SIGTERM: kill running stages, start no new ones, and let the flow end and report to Prefect."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from tvmflow.support.errors import StageError, first_line
from tvmflow.support.files import why_not_writable

_requested = threading.Event()
_depth = 0  # nesting of stops_on_signals
_signals: list[int] = []
_leaves_at_once = False
_killers: list[Callable[[], bool]] = []


def is_stopping() -> bool:
    """Return whether the user asked to stop."""
    return _requested.is_set()


def when_stopping(kill: Callable[[], bool]) -> None:
    """Register `kill`, called when the user asks to stop; it returns whether anything was killed."""
    _killers.append(kill)


def kill_stages() -> None:
    """Kill what runs, before this process ends at once."""
    for kill in _killers:
        kill()


def leave_at_once() -> None:
    """Let the command end without Prefect's own end, which tries for minutes to send logs to a server that is away."""
    global _leaves_at_once
    _leaves_at_once = True


def leave(code: int) -> None:
    """End this process now if something asked for that. code: the exit code."""
    if _leaves_at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def exit_code() -> int:
    """Return the shell's exit code of a command ended by a signal."""
    return 128 + (_signals[0] if _signals else signal.SIGINT)


def _stop(number: int, _frame: FrameType | None) -> None:
    again = is_stopping()
    _signals.append(number)
    _requested.set()
    killed = [kill() for kill in _killers]
    if again:
        os.write(sys.stderr.fileno(), b"\ninterrupted at once\n")
        os._exit(exit_code())
    if not any(killed):  # no stage was killed that would end the flow: interrupt the current work
        raise KeyboardInterrupt


@contextlib.contextmanager
def cancels_flow(root: Path) -> Iterator[None]:
    """Convert the end of a cancelled flow to KeyboardInterrupt, and the lack of its server to StageError, or to what
    keeps it from writing to the workspace `root`.
    """
    from httpx import HTTPError
    from prefect.exceptions import CancelledRun

    try:
        yield
    except CancelledRun:
        raise KeyboardInterrupt from None
    except HTTPError as error:  # Prefect's errors of requests too; its client has tried for a minute
        raise why_not_writable(root) or StageError(
            f"Prefect's server at {os.environ.get('PREFECT_API_URL')} went away: {first_line(error, 160)}",
            "a server that responds to the end of the run",
            "what was made and measured is kept: start the server and run the same command again to resume",
        ) from error


@contextlib.contextmanager
def stops_on_signals() -> Iterator[None]:
    """Within this context, the first signal stops the stages and lets the flow end; a second one ends everything.

    Flows use it as well as the command line, because Prefect installs its own SIGTERM handler around a flow. The
    outermost context resets earlier requests, so that a notebook can continue after Ctrl-C.
    """
    global _depth
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread handle signals
        yield
        return
    if _depth == 0:
        _requested.clear()
        _signals.clear()
    _depth += 1
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _depth -= 1
        for number, handler in before.items():
            signal.signal(number, handler)
