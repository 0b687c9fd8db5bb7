"""Test that a sandbox protects files, network, other processes, memory and time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import REPOSITORY
from tvmflow.sandbox import syscalls
from tvmflow.sandbox.process import Policy, Sandbox, run_in_sandbox
from tvmflow.setup.doctor import judge_sandbox
from tvmflow.support.errors import ModelFileError, StageTimeoutError

pytestmark = pytest.mark.heavy

DEEDS = "tests.sandbox.sandbox_deeds"
TESTS = (REPOSITORY / "tests",)
ALLOWED = {
    "write in its own folder",
    "write in the stage's folder",
    "make a temporary file",
    "start a child",
    "start a thread",
    "keep nothing open",
    "talk to itself",
}
NOT_BY_NAMESPACES = {"read a file of the user", "list a folder of the user", "signal the parent"}


def _run(deed: str, timeout_s: float = 120.0, out: Path | None = None, **more: Any) -> Any:
    arguments = more.pop("arguments", {})
    policy = Policy(timeout_s, reads=TESTS, writes=() if out is None else (out,), **more)
    return run_in_sandbox(f"{DEEDS}:{deed}", arguments, policy)


@pytest.mark.parametrize("without", [(), ("landlock",)], ids=["landlock", "namespaces"])
def test_deeds_of_hostile_code(tmp_path: Path, without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox("os:getpid", {}, Policy(60.0, without=without)) as sandbox:
        held = set(sandbox.held)
    if not {"namespaces" if without else "landlock", "seccomp"} <= held:
        pytest.skip(f"needs Landlock or namespaces, and seccomp; this kernel gives {sorted(held)}")
    out, victim, secret = tmp_path / "out", tmp_path / "victim", tmp_path / "secret"
    out.mkdir()
    victim.write_text("whole"), secret.write_text("secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: received.append(number))
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
            local.bind(str(tmp_path / "socket"))
            local.listen()
            arguments = {
                "secret": str(secret),
                "victim": str(victim),
                "out": str(out),
                "parent": os.getpid(),
                "port": server.getsockname()[1],
            }
            outcomes = _run("attempt", out=out, without=without, arguments=arguments)
    finally:
        signal.signal(signal.SIGUSR1, before)
    allowed = ALLOWED | (NOT_BY_NAMESPACES if without else set())
    assert {name for name, came in outcomes.items() if came == "done"} - {"signal the parent"} == allowed - {
        "signal the parent"
    }, outcomes
    assert without or not received
    assert victim.read_text() == "whole" and not (REPOSITORY / "tests" / "sandbox" / "hacked").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "secret", "socket", "victim"]


def test_memory_is_bounded() -> None:
    with pytest.raises(ModelFileError, match=r"MemoryError[\s\S]*512 MiB of memory"):
        _run("eat_memory", memory_bytes=512 << 20, arguments={"step_bytes": 16 << 20})


def test_an_endless_loop_ends() -> None:
    with pytest.raises(StageTimeoutError, match=r"within 3 s[\s\S]*endless loops"):
        _run("loop_forever", timeout_s=3.0)


def test_an_endless_file_ends(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="File too large"):
        _run("write_forever", out=tmp_path, memory_bytes=256 << 20, arguments={"out": str(tmp_path)})
    assert (tmp_path / "big").stat().st_size <= 256 << 20


def test_a_crash_is_told_and_control_characters_reach_no_terminal() -> None:
    with pytest.raises(ModelFileError, match="SIGABRT"):
        _run("crash")
    with pytest.raises(ModelFileError) as error:
        _run("refuse")
    assert "\x1b" not in error.value.found and error.value.expected == "a good one"
    for deed in ("reply_nonsense", "reply_deep"):
        with pytest.raises(ModelFileError, match="a malformed reply"):
            _run(deed)


def test_an_internal_error_is_told_as_one() -> None:
    with pytest.raises(ModelFileError, match=r"failed at .*: KeyError: 'num_heads'") as error:
        _run("stumble")
    assert "memory" not in str(error.value) and "complete" not in str(error.value)
    with pytest.raises(ModelFileError, match=r"needs too much memory: RuntimeError: std::bad_alloc"):
        _run("stumble", arguments={"over": "std::bad_alloc"})


def test_links_that_it_left_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        _run("leave_a_link", out=tmp_path, without=("landlock", "namespaces"), arguments={"out": str(tmp_path)})


def test_limits_do_not_come_back_in_a_child() -> None:
    assert "not allowed" in _run("limits_of_a_child") or "not permitted" in _run("limits_of_a_child")


def test_an_object_lives_as_long_as_its_sandbox() -> None:
    with Sandbox(f"{DEEDS}:Counter", {"start": 3}, Policy(60.0, reads=TESTS)) as sandbox:
        assert [sandbox.call("add", number=1), sandbox.call("add", number=5)] == [4, 9]
        own = sandbox._own
        assert own.is_dir()
    assert not own.exists()


def test_it_dies_with_who_started_it(tmp_path: Path) -> None:
    code = (
        f"from tvmflow.sandbox.process import *; from pathlib import Path; o = Path({str(tmp_path)!r})\n"
        f"run_in_sandbox('{DEEDS}:spawn_and_hang', {{'out': str(o)}}, Policy(500.0, "
        f"reads=(Path({str(TESTS[0])!r}),), writes=(o,)))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    deadline = time.monotonic() + 120
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    sandbox = int((tmp_path / "pids").read_text().split()[0])
    try:
        while psutil.pid_exists(sandbox) and psutil.Process(sandbox).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the sandbox outlived who started it"
            time.sleep(0.05)
    finally:
        for pid in (tmp_path / "pids").read_text().split():
            if psutil.pid_exists(int(pid)):
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    ("held", "level", "says"),
    [
        (["limits", "landlock", "capabilities", "seccomp"], "ok", "landlock"),
        (["limits", "namespaces", "capabilities", "seccomp"], "warning", "not kept from reading"),
        (["limits", "capabilities", "seccomp"], "warning", "read and write all files"),
        (["limits", "landlock", "capabilities"], "warning", "may use the network"),
    ],
)
def test_doctor_says_what_protects(held: list[str], level: str, says: str) -> None:
    (finding,) = judge_sandbox(held)
    assert finding.level == level and says in finding.found
    assert level == "ok" or "Linux 5.13" in finding.hint


@pytest.mark.parametrize("machine", sorted(syscalls._MACHINES))
def test_the_filter_of_every_machine_is_a_program(machine: str) -> None:
    """Jumps stay inside, the end is reached by no jump too far, and every denied number is refused."""
    steps = syscalls._filter(*syscalls._MACHINES[machine])
    for at, (code, if_true, if_false, _) in enumerate(steps):
        assert code in (0x20, 0x06) or at + 1 + max(if_true, if_false) < len(steps)
    column, architecture, clone = syscalls._MACHINES[machine]

    def verdict(number: int, flags: int = 0, arch: int = architecture) -> int:
        data, at, held = {0: number, 4: arch, 16: flags}, 0, 0
        while True:
            code, if_true, if_false, k = steps[at]
            if code == 0x06:
                return k
            held = data[k] if code == 0x20 else held
            holds = {0x20: True, 0x15: held == k, 0x35: held >= k, 0x45: bool(held & k)}[code]
            at += 1 + (0 if code == 0x20 else if_true if holds else if_false)

    refused = 0x00050001
    assert all(verdict(numbers[column]) == refused for numbers in syscalls._DENIED.values())
    assert verdict(clone) == verdict(0) == verdict(1) == 0x7FFF0000 and verdict(clone, 0x10000000) == refused
    assert verdict(0, arch=0x40000003) == 0x80000000 and verdict(0x40000000 + 41) == refused
    assert verdict(435) == 0x00050000 | 38  # clone3: not there


def test_a_sandbox_may_be_waited_for_later() -> None:
    with Sandbox(f"{DEEDS}:Counter", {"start": 3}, Policy(60.0, reads=TESTS), waits=False) as sandbox:
        assert sandbox.held == []
        assert sandbox.wait().call("add", number=1) == 4 and sandbox.held
    with (
        Sandbox("os:no_such_function", {}, Policy(60.0), waits=False) as sandbox,
        pytest.raises(ModelFileError, match="no_such"),
    ):
        sandbox.wait()
