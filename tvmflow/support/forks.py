"""Run functions in a fork of this process, beside what this process does meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import NoReturn

import psutil

_MOST_BYTES = 1 << 30
_LENGTH = 8  # bytes before each result: how many it has


class ForkFailedError(Exception):
    """A function raised an error in the fork, or the fork died."""


def can_fork() -> bool:
    """Whether this process is small, since a sandbox counts its memory twice then, and PyTorch has no GPU, which a fork
    cannot use.
    """
    memory, torch = psutil.Process().memory_info(), sys.modules.get("torch")
    return memory.rss - memory.shared <= _MOST_BYTES and not (torch and torch.cuda.is_available())


@contextmanager
def forked(*functions: Callable[[], bytes]) -> Iterator[Callable[[], bytes]]:
    """Yield a function that waits for the result of the first of these, in the next call for that of the second, and so
    on; they run in a fork, one after the other. It raises ForkFailedError. The context's end is the fork's, too.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run_and_end(functions, writer)
    os.close(writer)
    codes: list[int] = []

    def wait() -> int:
        if not codes:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return codes[0]

    with os.fdopen(reader, "rb") as file:

        def finish() -> bytes:
            header = file.read(_LENGTH)
            result = file.read(int.from_bytes(header))
            if len(header) < _LENGTH or len(result) < int.from_bytes(header):
                raise ForkFailedError(f"it ended with status {wait()}")
            return result

        try:
            yield finish
        finally:
            if not codes:
                os.kill(child, signal.SIGKILL)
                wait()


def _run_and_end(functions: Sequence[Callable[[], bytes]], writer: int) -> NoReturn:
    """Run them in a new thread: threads of OpenMP do not live on in a fork, and the one that used them would wait for
    them forever, while another starts its own. This thread writes, since nobody may read yet.
    """
    results: SimpleQueue[bytes | None] = SimpleQueue()

    def run() -> None:
        try:
            for function in functions:
                results.put(function())
        finally:
            results.put(None)

    try:
        threading.excepthook = lambda _error: None  # whoever waits runs the function, and gets its error
        threading.Thread(target=run).start()
        written = 0
        with os.fdopen(writer, "wb") as file:
            while (result := results.get()) is not None:
                file.write(len(result).to_bytes(_LENGTH) + result)
                file.flush()
                written += 1
        os._exit(0 if written == len(functions) else 1)
    finally:
        os._exit(1)
