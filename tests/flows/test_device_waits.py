"""A stage that waits for its device: said, not counted against its time limit, not retried."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.display import Display
from flows.events import tell
from flows.stage_process import StageRequest, _TimeLimit, run_stage
from tests.conftest import CELL
from tvmflow.devices.device_lock import describe_work, hold
from tvmflow.support.errors import TvmflowError


def test_a_stage_waits_for_this_machine_says_so_and_goes_on(make_workspace: Callable[..., Path]) -> None:
    """Measurements of all users, of whichever home, keep a stage waiting."""
    root = make_workspace()
    texts: list[str] = []
    waits = threading.Event()

    def hear(text: str, _done: int, _total: int) -> None:
        texts.append(text)
        waits.set()

    describe_work("~/ws a measurement")
    ends: list[str] = []

    def run() -> None:
        with pytest.raises(TvmflowError) as error:  # of the stage, which goes on without its input
            run_stage(StageRequest("import_model", CELL, str(root), 60.0), hear)
        ends.append(error.value.found)

    with hold("this-host", "this machine"):
        stage = threading.Thread(target=run)
        stage.start()
        assert waits.wait(60) and not ends
    stage.join()
    assert len(ends) == 1 and "fetch" in ends[0]
    assert re.fullmatch(r"waits for this machine, held by .+: ~/ws a measurement since \d+ s", texts[0])
    assert texts[1].startswith("got this machine after")


def test_the_time_limit_of_a_stage_stands_still_while_it_waits() -> None:
    ended = threading.Event()
    limit = _TimeLimit(0.2, ended.set)
    limit.pause(True)
    assert not ended.wait(0.3) and not limit.is_over
    limit.pause(False)
    assert ended.wait(5) and limit.is_over


def test_a_wait_is_a_line_at_once() -> None:
    import io

    from rich.console import Console

    out = io.StringIO()
    with Display(2, console=Console(file=out, width=200), now=time.monotonic):
        tell("a@b:c", "tune", "started", 0, 0)
        tell("a@b:c", "tune", "waits for board-b, held by alice: ~/ws digits since 2 min", 0, 0)
    assert out.getvalue() == "a@b:c tune: waits for board-b, held by alice: ~/ws digits since 2 min\n"
