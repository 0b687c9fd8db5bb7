"""Test that a sandbox protects files, network, other processes, memory and time."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tvmflow.sandbox.allowed_calls import MACHINES, filter_for
from tvmflow.sandbox.outputs import check_outputs
from tvmflow.sandbox.process import Policy, Sandbox, reading_s, run_in_sandbox
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
    "see all of the system",
}


def _run(deed: str, timeout_s: float = 120.0, out: Path | None = None, **more: Any) -> Any:
    arguments = more.pop("arguments", {})
    policy = Policy(timeout_s, reads=TESTS, writes=() if out is None else (out,), **more)
    return run_in_sandbox(f"{DEEDS}:{deed}", arguments, policy)


@pytest.mark.parametrize(
    "without", [(), ("landlock",), ("namespaces",)], ids=["all", "namespaces alone", "landlock alone"]
)
def test_deeds_of_hostile_code(tmp_path: Path, without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox("os:getpid", {}, Policy(60.0, without=without)) as sandbox:
        held = set(sandbox.held)
    if not ({"namespaces", "own root", "landlock", "seccomp"} - set(without) - {"own root"}) <= held:
        pytest.skip(f"needs Landlock, namespaces and seccomp; this kernel gives {sorted(held)}")
    out, victim, secret = tmp_path / "out", tmp_path / "victim", tmp_path / "secret"
    out.mkdir()
    victim.write_text("whole"), secret.write_text("secret")
    for name in ("AWS_SECRET_ACCESS_KEY", "TVMFLOW_SIGNING_KEY", "TVMFLOW_MLFLOW_URI", "OMP_SECRET"):
        monkeypatch.setenv(name, "secret")
    received: list[int] = []
    mode, limit = victim.stat().st_mode & 0o7777, resource.getrlimit(resource.RLIMIT_CPU)
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
            policy = Policy(120.0, TESTS, (out,), outputs={"model.json": 9}, without=without)
            outcomes = run_in_sandbox(f"{DEEDS}:attempt", arguments, policy)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert {name for name, came in outcomes.items() if came == "done"} == ALLOWED, outcomes
    assert not received and victim.stat().st_mode & 0o7777 == mode
    assert resource.getrlimit(resource.RLIMIT_CPU) == limit
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


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (lambda place: place.symlink_to("/etc/passwd"), "no plain file"),
        (lambda place: os.mkfifo(place), "no plain file"),
        (lambda place: place.mkdir(), "no plain file"),
        (lambda place: os.link(__file__, place), "no plain file"),
        (lambda place: place.write_bytes(b"x" * 11), "11 bytes"),
        (lambda place: place.with_name("evil.pth").write_text("import os"), "evil.pth"),
    ],
    ids=["link", "pipe", "folder", "second name", "large", "unknown"],
)
def test_what_it_left_is_refused(tmp_path: Path, leave: Callable[[Path], Any], says: str) -> None:
    leave(tmp_path / "model.json")
    with pytest.raises(ModelFileError, match=says):
        check_outputs(tmp_path, {"model.json": 10}, "the model")


def test_what_it_left_gets_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "model.json").chmod(0o4777)
    check_outputs(tmp_path, {"model.json": 10}, "the model")
    assert (tmp_path / "model.json").stat().st_mode & 0o7777 == 0o644


def test_memory_of_all_processes_is_bounded() -> None:
    with pytest.raises(ModelFileError, match=r"needs too much memory: .* MiB in 3 processes|in 4 processes"):
        _run("eat_shared_memory", memory_bytes=400 << 20, arguments={"mib": 300})


@pytest.mark.parametrize(
    ("deed", "arguments", "says"),
    [
        ("hang_without_a_reply", {}, "within 3 s"),
        ("reply_without_end", {}, "a malformed reply"),
        ("fill_stderr", {"mib": 200}, "SIGABRT"),
        ("reply_other_types", {}, "a malformed reply"),
    ],
)
def test_replies_are_bounded(deed: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises((ModelFileError, StageTimeoutError), match=says):
        _run(deed, timeout_s=3.0 if deed.startswith("hang") else 60.0, arguments=arguments)


@pytest.mark.parametrize(("kind", "becomes"), [("GateRefusedError", ModelFileError), ("DownloadError", ModelFileError)])
def test_an_error_is_of_a_kind_that_readers_raise(kind: str, becomes: type) -> None:
    with pytest.raises(becomes) as error:
        _run("refuse_as", arguments={"kind": kind, "found": "x" * 9000})
    assert len(error.value.found) < 5000


def test_only_the_files_of_a_model_are_read(tmp_path: Path) -> None:
    """What lies beside a model, in the home folder or the workspace, is not there."""
    for name in (".ssh/id_rsa", ".aws/credentials", ".dvc/config.local", "model.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret")
    for without in ((), ("namespaces",), ("landlock",)):
        policy = Policy(60.0, (tmp_path / "model.onnx", *TESTS), without=without)
        found = run_in_sandbox(f"{DEEDS}:read_all", {"folder": str(tmp_path)}, policy)
        assert found == ["model.onnx"]


@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["namespaces", "none"])
def test_nothing_goes_on_after_it(tmp_path: Path, without: tuple[str, ...]) -> None:
    """A grandchild in a session of its own."""
    policy = Policy(60.0, TESTS, (tmp_path,), outputs={"beats": 99}, without=without)
    run_in_sandbox(f"{DEEDS}:spawn_and_leave", {"out": str(tmp_path)}, policy)
    before = (tmp_path / "beats").read_text()
    time.sleep(0.1)
    assert (tmp_path / "beats").read_text() == before


def test_loading_has_a_limit_of_its_own() -> None:
    with pytest.raises(StageTimeoutError, match="within 2 s"):
        _run("loop_forever", load_s=2.0)


def test_limits_do_not_come_back_in_a_child() -> None:
    assert "not allowed" in _run("limits_of_a_child") or "not permitted" in _run("limits_of_a_child")


def test_an_object_lives_as_long_as_its_sandbox() -> None:
    with Sandbox(f"{DEEDS}:Counter", {"start": 3}, Policy(60.0, reads=TESTS)) as sandbox:
        assert [sandbox.call("add", number=1), sandbox.call("add", number=5)] == [4, 9]
        assert sandbox.call("collected_after") > gc.get_threshold()[0]  # imports make many objects that live on
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
    beats, deadline = tmp_path / "beats", time.monotonic() + 120
    while not beats.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    last = ""
    while (now := beats.read_text()) != last:
        assert time.monotonic() < deadline, "the sandbox outlived who started it"
        last = now
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("held", "level", "says"),
    [
        (["limits", "namespaces", "own root", "landlock", "capabilities", "seccomp"], "ok", "landlock"),
        (["limits", "namespaces", "own root", "capabilities", "seccomp"], "ok", "own root"),
        (["limits", "landlock", "capabilities", "seccomp"], "ok", "no namespaces, as in containers"),
        (["limits", "namespaces", "capabilities", "seccomp"], "warning", "read and write all files"),
        (["limits", "landlock", "capabilities"], "warning", "may use the network"),
    ],
)
def test_doctor_says_what_protects(held: list[str], level: str, says: str) -> None:
    (finding,) = judge_sandbox(held)
    assert finding.level == level and says in finding.found
    assert level == "ok" or "Linux 5.13" in finding.hint


_X86_64 = {
    "read": 0, "openat": 257, "mkdir": 83, "ioctl": 16, "kill": 62, "clone": 56, "socketpair": 53, "sendto": 44,
    "prlimit64": 302,
}  # fmt: skip
_NEVER = {
    "socket": (41, 198), "connect": (42, 203), "ptrace": (101, 117), "mount": (165, 40), "unshare": (272, 97),
    "setns": (308, 268), "bpf": (321, 280), "keyctl": (250, 219), "io_uring_setup": (425, 425), "clone3": (435, 435),
    "shmget": (29, 194), "memfd_create": (319, 279), "symlinkat": (266, 36), "linkat": (265, 37), "mknodat": (259, 33),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchownat": (260, 54), "utimensat": (280, 88), "setxattr": (188, 5),
    "process_vm_writev": (311, 271), "pidfd_open": (434, 434), "sendmsg": (46, 211), "openat2": (437, 437),
    "userfaultfd": (323, 282), "rt_sigqueueinfo": (129, 138), "pivot_root": (155, 41), "execveat": (322, 281),
}  # fmt: skip


def _verdict(machine: str, number: int, *arguments: int, own: int | None = None, arch: int | None = None) -> int:
    """Run the filter as the kernel does."""
    steps, at, held = filter_for(machine, own), 0, 0
    data = {0: number, 4: MACHINES[machine][1] if arch is None else arch}
    for place in range(6):
        value = arguments[place] if place < len(arguments) else 0
        data |= {16 + 8 * place: value & 0xFFFFFFFF, 20 + 8 * place: value >> 32}
    while True:
        code, if_true, if_false, k = steps[at]
        at += 1
        if code == 0x06:
            return {0x7FFF0000: 0, 0x80000000: -1}.get(k, k & 0xFFFF)
        if code in (0x20, 0x54):
            held = data[k] if code == 0x20 else held & k
        else:
            at += if_true if {0x15: held == k, 0x35: held >= k, 0x45: bool(held & k)}[code] else if_false


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_the_filter_refuses_all_that_is_not_listed(machine: str) -> None:
    column = sorted(MACHINES, reverse=True).index(machine)
    assert len(filter_for(machine)) < 4096  # the kernel's bound
    for name, numbers in _NEVER.items():
        assert _verdict(machine, numbers[column]) == errno.ENOSYS, name
    for number in (-1 & 0xFFFFFFFF, 500, 0x40000000, 0x40000000 + 41):
        assert _verdict(machine, number) == errno.ENOSYS
    assert _verdict(machine, 63 * column) == 0 and _verdict(machine, 63 * column, arch=0x40000003) == -1


@pytest.mark.parametrize(
    ("call", "allowed", "refused"),
    [
        ("openat", (0, 0, 0x241, 0o644), (0, 0, 0x241, 0o4755)),
        ("mkdir", (0, 0o755), (0, 0o2755)),
        ("ioctl", (0, 0x5401), (0, 0x5412)),
        ("clone", (0x3D0F00,), (0x10000011,)),
        ("clone", (0x1200011,), (0x20000011,)),
        ("socketpair", (1, 0x80001), (1, 0x80002)),
        ("sendto", (3, 5, 1, 0, 0), (3, 5, 1, 0, 1 << 40)),
        ("sendto", (3, 5, 1, 0, 0), (3, 5, 1, 0, 4)),
        ("prlimit64", (0, 7, 9), (77, 7, 9)),
        ("kill", (1234, 9), (77, 9)),
    ],
)
def test_the_filter_looks_at_arguments(call: str, allowed: tuple[int, ...], refused: tuple[int, ...]) -> None:
    assert _verdict("x86_64", _X86_64[call], *allowed, own=1234) == 0
    assert _verdict("x86_64", _X86_64[call], *refused, own=1234) == errno.EPERM


def test_a_sandbox_may_be_waited_for_later() -> None:
    with Sandbox(f"{DEEDS}:Counter", {"start": 3}, Policy(60.0, reads=TESTS), waits=False) as sandbox:
        assert sandbox.held == []
        assert sandbox.wait().call("add", number=1) == 4 and sandbox.held
    with (
        Sandbox("os:no_such_function", {}, Policy(60.0), waits=False) as sandbox,
        pytest.raises(ModelFileError, match="no_such"),
    ):
        sandbox.wait()


def test_a_busy_machine_has_longer_to_read_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(bytes(32 << 20))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for load, seconds in ((0.3, 62.0), (2.0, 62.0), (8.0, 4 * 62.0)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert reading_s(tmp_path / "model", tmp_path / "none") == seconds
