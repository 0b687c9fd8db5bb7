"""Run a function in a fork of this process, beside what this process does meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import psutil

_MOST_BYTES = 1 << 30
_DONE = 86  # the status of a fork with a result: a library that ends its process gives 0 or 1


class ForkFailedError(Exception):
    """The function raised an error in the fork, or the fork died."""


def can_fork() -> bool:
    """Whether this process is small, since a sandbox counts its memory twice then, and PyTorch has no GPU, which a fork
    cannot use.
    """
    memory, torch = psutil.Process().memory_info(), sys.modules.get("torch")
    return memory.rss - memory.shared <= _MOST_BYTES and not (torch and torch.cuda.is_available())


@contextmanager
def forked(function: Callable[[], bytes]) -> Iterator[Callable[[], bytes]]:
    """Yield a function that waits for the result of another one, which runs in a fork. It raises ForkFailedError; a
    fork that nobody waited for is ended.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run_and_end(function, writer)
    os.close(writer)
    codes: list[int] = []

    def wait() -> int:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return codes[0]

    def finish() -> bytes:
        with os.fdopen(reader, "rb", closefd=False) as file:
            result = file.read()
        if (code := wait()) != _DONE:
            raise ForkFailedError(f"it ended with status {code}")
        return result

    try:
        yield finish
    finally:
        if not codes:
            os.kill(child, signal.SIGKILL)
            wait()
        os.close(reader)


def _run_and_end(function: Callable[[], bytes], writer: int) -> NoReturn:
    """Run it in a new thread: threads of OpenMP do not live on in a fork, and the one that used them would wait for
    them forever, while another starts its own.
    """
    done: list[None] = []

    def run() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(function())
        done.append(None)

    try:
        threading.excepthook = lambda _error: None  # whoever waits runs the function, and gets its error
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        os._exit(_DONE if done else 1)
    finally:
        os._exit(1)
