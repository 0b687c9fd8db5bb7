"""One rule for a device: locks of all users of a machine, and what is said while one waits."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tvmflow.devices.device_lock import DeviceLock, describe_work, hold, holders, lock_folder
from tvmflow.devices.this_host import hold_host_for_stage, measure_on_this_host
from tvmflow.devices.waiting import WAITS_HERE, Waits, wait_for
from tvmflow.support.errors import DeviceBusyError, StoreError
from tvmflow.support.paths import CODE_ROOT

# A cell on a board: it waits, measures 0.05 s, and writes when.
_CELL = """
import sys, time
from tvmflow.devices.device_lock import describe_work, hold
describe_work(sys.argv[1])
with hold("board-b", "board-b"):
    begin = time.monotonic()
    time.sleep(0.05)
    print(begin, time.monotonic())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVMFLOW_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(WAITS_HERE, "say", texts.append)
    return texts


def _start(program: str, *arguments: str, home: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CODE_ROOT), **({"HOME": str(home)} if home else {})},
    )


def test_five_cells_of_two_homes_and_workspaces_on_one_board(tmp_path: Path) -> None:
    """All measure, one after the other, and each says whom it waits for."""
    with hold("board-b", "board-b"):
        cells = [
            _start(_CELL, f"~/ws-{at % 2} digits.board-b.float32 #{at}", home=tmp_path / f"home{at % 2}")
            for at in range(5)
        ]
        waits = [cell.stderr.readline() for cell in cells if cell.stderr]
    texts = [cell.communicate(timeout=60) for cell in cells]
    assert [cell.returncode for cell in cells] == [0] * 5, texts
    times = sorted(tuple(map(float, out.split())) for out, _ in texts)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times))
    assert all(re.fullmatch(r"waits for board-b, held by \w+: .* since \d s\n", wait) for wait in waits), waits
    assert all("got board-b after" in error for _, error in texts)


def test_a_holder_that_is_killed_frees_its_device() -> None:
    holder = _start(_CELL.replace("0.05", "60").replace("begin = ", "print('held', flush=True); begin = "), "a cell")
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    lock = DeviceLock("board-b")
    assert not lock.try_take() and ": a cell since" in lock.held_by()
    holder.kill()
    holder.wait()
    assert wait_for("board-b", lambda: lock.try_take() or None, lock.held_by, 5.0)
    lock.release()


def test_a_limit_of_the_user_ends_a_wait(said: list[str]) -> None:
    describe_work("~/ws digits tune")
    with hold("board", "board"), pytest.raises(DeviceBusyError, match=r"0\.2 s: held by .*: ~/ws digits tune") as error:
        with hold("board", "board", 0.2):
            raise AssertionError("two at once")
    assert not error.value.retryable and len(said) == 1  # a retry would only wait again


def test_a_wait_is_said_again_every_minute(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmflow.devices.waiting._AGAIN_S", 0.1)
    monkeypatch.setattr("tvmflow.devices.waiting._POLL_S", 0.02)
    end = time.monotonic() + 0.35
    assert wait_for("x", lambda: time.monotonic() > end or None, lambda: "held by a: b")
    assert said[:3] == ["waits for x, held by a: b"] * 3 and said[-1].startswith("got x after")


def test_stages_share_this_machine_and_a_measurement_has_it_alone(said: list[str]) -> None:
    first, second, alone = (DeviceLock("this-host") for _ in range(3))
    assert first.try_take(shared=True) and second.try_take(shared=True) and not alone.try_take()
    late = DeviceLock("this-host")
    assert not late.try_take(shared=True)  # it queues behind the measurement, which else would never begin
    first.release()
    second.release()
    assert alone.try_take() and not late.try_take(shared=True)
    for one in (alone, late):
        one.release()
    with hold_host_for_stage(alone=True), measure_on_this_host(0.1):
        with pytest.raises(DeviceBusyError), measure_on_this_host(0.1):
            raise AssertionError("two at once")
    with measure_on_this_host(0.1), pytest.raises(DeviceBusyError), measure_on_this_host(0.1):
        raise AssertionError("two at once")


def test_the_clock_of_work_stands_still_while_a_process_only_waits() -> None:
    waits, paused = Waits(), []
    waits.on_pause = paused.append  # type: ignore[assignment]
    begin = waits.working_s()
    with waits.waiting():
        time.sleep(0.1)
    assert waits.working_s() - begin < 0.09 and paused == [True, False]
    with waits.holding(), waits.waiting():  # another device of the process works
        time.sleep(0.1)
    assert waits.working_s() - begin > 0.09 and paused == [True, False]


def test_holders_of_a_trackers_devices() -> None:
    assert "nobody on this host holds it" in holders("tracker-a:1-board-")
    describe_work("~/ws a cell")
    with hold("tracker-a:1-board-one", "x"), hold("tracker-a:1-board-two", "x"), hold("tracker-a:1-boards-x", "x"):
        assert holders("tracker-a:1-board-").count("~/ws a cell") == 2
    assert holders("tracker-a:1-board-") == "released on this host just now"
    for path in lock_folder().glob("tracker-a_1-board-*"):
        os.utime(path, (0, 0))
    assert "nobody on this host holds it" in holders("tracker-a:1-board-")


def test_the_folder_is_for_all_users_and_follows_no_link(folder: Path, tmp_path: Path) -> None:
    lock = DeviceLock("board")
    assert lock.try_take()
    lock.release()
    assert lock_folder() == folder and folder.stat().st_mode & 0o7777 == 0o1777
    files = sorted(folder.iterdir())
    assert len(files) == 2 and all(file.stat().st_mode & 0o777 == 0o666 for file in files)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for file in files:
        file.unlink()
        file.symlink_to(victim)
    with pytest.raises(StoreError, match="cannot be locked"):
        DeviceLock("board").try_take()
    for file in files:
        file.unlink()
        file.hardlink_to(victim)
    with pytest.raises(StoreError, match="one name"):
        DeviceLock("board").try_take()
    assert victim.read_text() == "precious"


def test_a_lock_file_that_was_removed_is_made_again(folder: Path) -> None:
    lock, other = DeviceLock("board"), DeviceLock("board")
    assert lock.try_take() and not other.try_take()
    lock.release()
    for file in folder.iterdir():
        file.unlink()
    assert not other.try_take() and other.try_take()  # it had the old file open
    assert not lock.try_take()
    other.release()


def test_what_other_users_write_is_only_shown(folder: Path) -> None:
    lock, other = DeviceLock("board"), DeviceLock("board")
    assert lock.try_take()
    file = next(file for file in folder.iterdir() if file.name.endswith(".lock"))
    for content in (b"\xff\x00{", b'[1]\n{"pid": "x"}\n', b'{"pid": 1, "user": "\x1b[31m", "work": 1, "since": 0}'):
        file.write_bytes(content)
        assert other.held_by().startswith("held by ") and "\x1b" not in other.held_by()
    lock.release()
