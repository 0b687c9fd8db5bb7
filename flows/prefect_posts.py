"""Write to a run's page in Prefect without waiting for its server: what it does not take in time is dropped.

While a server is away, Prefect's client repeats each request for more than a minute.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable

_MOST = 16  # posts that wait; further ones are dropped
_WAIT_S = 10.0

_posts: queue.Queue[Callable[[], None]] = queue.Queue(_MOST)
_lock = threading.Lock()
_writer: threading.Thread | None = None
_stuck: threading.Event | None = None  # the end of a post that was waited for in vain


def post(write: Callable[[], object]) -> threading.Event | None:
    """Call `write` soon, in another thread with this one's context of Prefect; its errors are ignored.

    Returns an event of its end, None if it was dropped.
    """
    global _writer
    context, done = contextvars.copy_context(), threading.Event()

    def run() -> None:
        try:
            with contextlib.suppress(Exception):
                context.run(write)
        finally:
            done.set()

    with _lock:
        if _writer is None or not _writer.is_alive():
            _writer = threading.Thread(target=_write, daemon=True, name="prefect-posts")
            _writer.start()
    try:
        _posts.put_nowait(run)
    except queue.Full:
        return None
    return done


def post_within(write: Callable[[], object], seconds: float = _WAIT_S) -> bool:
    """Call `write` like `post` and wait for it for some seconds: once, until the server answers again. Returns whether
    it ended.
    """
    global _stuck
    done = post(write)
    if done is None or (_stuck is not None and not _stuck.is_set()):
        return False
    if done.wait(seconds):
        return True
    _stuck = done
    return False


def _write() -> None:
    while True:
        _posts.get()()
