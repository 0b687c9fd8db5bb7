"""Write a source model as ONNX, for baselines, in a process of its own while its import goes on.

torch.onnx.export takes a quarter of an import and needs nothing of the rest. It runs in a fork, which has the model as
it is loaded. A fork of a large model would count twice against the memory of the sandbox: that is written here, later.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psutil

from tvmflow.frontends.source_model import SourceModel
from tvmflow.support.errors import first_line

_MOST_FORKED_BYTES = 1 << 30
_MOST_TEXT = 4000


@contextmanager
def exporting_onnx(source: SourceModel, path: Path) -> Iterator[Callable[[], str]]:
    """Yield a function that waits for the file and returns the reason why there is none, or an empty text: a failed
    export costs a baseline, not the cell. An export that nobody waited for is ended.
    """
    if not _can_fork():
        yield lambda: _write(source, path)
        return
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _write_and_end(source, path, writer)
    os.close(writer)
    codes: list[int] = []

    def wait() -> int:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return codes[0]

    def finish() -> str:
        text = b""
        while part := os.read(reader, _MOST_TEXT):
            text += part
        code = wait()
        failure = text.decode("utf-8", "replace") or (f"the export ended with status {code}" if code else "")
        if failure:
            path.unlink(missing_ok=True)
        return failure

    try:
        yield finish
    finally:
        if not codes:
            os.kill(child, signal.SIGKILL)
            wait()
        os.close(reader)


def _can_fork() -> bool:
    """Whether the model is small, and PyTorch has no GPU, which a fork cannot use."""
    memory, torch = psutil.Process().memory_info(), sys.modules.get("torch")
    return memory.rss - memory.shared <= _MOST_FORKED_BYTES and not (torch and torch.cuda.is_available())


def _write_and_end(source: SourceModel, path: Path, writer: int) -> NoReturn:
    try:
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # a fork has no threads of OpenMP, and would wait for them
        os.write(writer, _write(source, path).encode()[:_MOST_TEXT])
        os._exit(0)
    finally:
        os._exit(1)


def _write(source: SourceModel, path: Path) -> str:
    """Write the file; return the reason if that fails, or an empty text."""
    try:
        source.to_onnx(path)
    except Exception as error:
        path.unlink(missing_ok=True)
        return first_line(error)
    return ""
