"""The processes of stages, and one started in advance: importing TVM takes longer than most stages do.

A spare waits with TVM, and what else the stage needs that is likely to be next, imported until it gets a stage on its standard input; it
serves one stage, whichever, and ends, so that each stage still has a process of its own. It ends too when its standard input is closed: with the process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from tvmflow.recipe import CODE_ROOT

_Started = tuple[subprocess.Popen[bytes], int]  # and the end of the pipe on which it tells what happens

_lock = threading.Lock()
_is_wanted = False
_spare: _Started | None = None


@contextlib.contextmanager
def spare_processes() -> Iterator[None]:
    """Within, a process waits for the next stage wherever nothing is being measured."""
    global _is_wanted
    _is_wanted = True
    start_spare()
    try:
        yield
    finally:
        _is_wanted = False
        spare = _take()
        if spare is not None:
            _discard(spare)


def start_spare(after: str | None = None) -> None:
    """Start a process for the next stage if such are wanted and none waits. after: the stage that runs meanwhile, if any."""
    global _spare
    with _lock:
        if _is_wanted and _spare is None:
            _spare = _start(subprocess.DEVNULL, "" if after is None else after)


def start_stage(arguments: list[str], known: list[list[Any]], output: IO[bytes], log: Path) -> _Started:
    """Start `python -m tasks ARGUMENTS` and return its process and the end of the pipe on which it tells what happens.

    known: digests of files, as Digests.to_json has them. output: the open file of `log`, for what the process prints.
    """
    request = json.dumps({"arguments": arguments, "known": known, "log": str(log)}).encode() + b"\n"
    spare = _take()
    if spare is not None:
        if _send(spare, request):
            return spare
        _discard(spare)
    started = _start(output, None, arguments)
    _send(started, request)  # where it has died already, its exit code and the log say why
    return started


def _take() -> _Started | None:
    global _spare
    with _lock:
        spare, _spare = _spare, None
    return spare


def _start(output: IO[bytes] | int, after: str | None, arguments: Sequence[str] = ()) -> _Started:
    """Start a process that waits, for what comes after a stage; after: None where its stage is there already."""
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.waiting", str(writer), *([] if after is None else ["--after", after]), *arguments], stdin=subprocess.PIPE, stdout=output, stderr=output,
            pass_fds=(writer,), start_new_session=True, env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
        )  # fmt: skip
    finally:
        os.close(writer)
    return process, reader


def _send(started: _Started, request: bytes) -> bool:
    process, _reader = started
    stdin = cast(IO[bytes], process.stdin)
    try:
        with stdin:
            stdin.write(request)
    except BrokenPipeError:
        return False
    return process.poll() is None


def _discard(started: _Started) -> None:
    process, reader = started
    process.kill()
    process.communicate()
    os.close(reader)
