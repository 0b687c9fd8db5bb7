"""A fork returns a result, or fails; it has threads of OpenMP of its own, and does not outlive whoever waits for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tvmflow.support import forks
from tvmflow.support.forks import ForkFailedError, can_fork, forked


def test_a_process_is_small_by_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_MOST_BYTES", 0)
    assert not can_fork()
    monkeypatch.setattr(forks, "_MOST_BYTES", 1 << 50)
    assert can_fork()


def test_the_result_comes_from_another_process_and_may_be_large() -> None:
    large = bytes(range(256)) * 4096
    with forked(lambda: b"%d " % os.getpid() + large) as wait:
        process, found = wait().split(b" ", 1)
    assert int(process) != os.getpid() and found == large


def test_the_next_function_runs_while_nobody_reads_the_first_result(tmp_path: Path) -> None:
    path = tmp_path / "reached"

    def reach() -> bytes:
        path.write_text("")
        return b""

    with forked(lambda: bytes(1 << 20), reach, _raise) as wait:
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.exists() and wait() == bytes(1 << 20) and wait() == b""
        for _ in range(2):
            with pytest.raises(ForkFailedError, match=r"status 1$"):
                wait()


def _raise() -> bytes:
    raise ValueError("of the function")


def _die_of_a_signal() -> bytes:
    signal.raise_signal(signal.SIGSEGV)
    return b"alive"


def _end() -> bytes:
    os._exit(0)  # without a result


@pytest.mark.parametrize(("function", "status"), [(_raise, 1), (_die_of_a_signal, -signal.SIGSEGV), (_end, 0)])
def test_an_error_and_a_death_are_failures(function: Callable[[], bytes], status: int) -> None:
    with forked(function) as wait, pytest.raises(ForkFailedError, match=f"status {status}$"):
        wait()


def test_a_fork_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "process"

    def never_end() -> bytes:
        path.write_text(str(os.getpid()))
        time.sleep(600)
        return b""

    with pytest.raises(ValueError, match="of the context"), forked(never_end):
        while not path.exists() or not path.read_text():
            time.sleep(0.01)
        raise ValueError("of the context")
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


def test_a_fork_computes_with_threads_after_its_parent_did() -> None:
    """Without a thread of its own it would wait forever for the threads of its parent."""
    import torch

    def compute() -> bytes:
        threading.Timer(20, os._exit, [1]).start()  # instead of a test that hangs
        return repr(float(torch.softmax(x, -1).sum())).encode()

    before, x = torch.get_num_threads(), torch.ones(256, 64, 64)
    torch.set_num_threads(2)
    try:
        expected = float(torch.softmax(x, -1).sum())  # starts the threads
        with forked(compute) as wait:
            assert float(wait()) == expected
    finally:
        torch.set_num_threads(before)
