"""Define malicious actions that sandbox tests call."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvmflow.support.errors import ModelFileError


def _environ(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def _connect(family: int, address: Any) -> None:
    with socket.socket(family) as one:
        one.settimeout(1.0)
        one.connect(address)


def _descriptors() -> list[str]:
    """Return what this process inherited open beyond its own standard streams and its replies."""
    kept = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = str(Path(f"/proc/self/fd/{number}").readlink())
        except OSError:
            continue
        if not name.startswith(("pipe:", "/proc/")) and not name.endswith("/stderr"):
            kept.append(name)
    return kept


def attempt(secret: str, victim: str, out: str, parent: int, port: int) -> dict[str, str]:
    """Try each deed and return its name -> what came of it."""
    outside = Path(secret).parent
    deeds: dict[str, Callable[[], Any]] = {
        "read a file of the user": lambda: Path(secret).read_text(),
        "list a folder of the user": lambda: _find(Path(secret).name, outside),
        "read the parent's environment": lambda: _environ(parent),
        "overwrite a file": lambda: Path(victim).write_text("hacked"),
        "truncate a file": lambda: os.truncate(victim, 0),
        "append to a file": lambda: Path(victim).open("a").write("hacked"),
        "remove a file": lambda: Path(victim).unlink(),
        "rename a file": lambda: Path(victim).rename(outside / "other"),
        "make a file outside": lambda: (outside / "new").write_text("x"),
        "make a folder outside": lambda: (outside / "folder").mkdir(),
        "link a file in": lambda: os.link(victim, Path(out) / "linked"),
        "make a file in the code": lambda: (Path(__file__).parent / "hacked").write_text("x"),
        "connect to a port": lambda: _connect(socket.AF_INET, ("127.0.0.1", port)),
        "connect by IPv6": lambda: _connect(socket.AF_INET6, ("::1", port)),
        "connect to a socket of the host": lambda: _connect(socket.AF_UNIX, str(outside / "socket")),
        "signal the parent": lambda: os.kill(parent, signal.SIGUSR1),
        "trace the parent": lambda: os.close(os.open(f"/proc/{parent}/mem", os.O_RDONLY)),
        "leave by a child": lambda: subprocess.run(
            ["/bin/sh", "-c", f"echo hacked > {victim}"], check=True, capture_output=True
        ),
        "see secrets of the environment": lambda: _none_of_these_in_the_environment(),
        "change a mode": lambda: Path(victim).chmod(0o4777),
        "change times": lambda: os.utime(victim, (1, 1)),
        "set an attribute": lambda: os.setxattr(victim, "user.hacked", b"x"),
        "limit the parent": lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1)),
        "stop the parent": lambda: os.kill(parent, signal.SIGSTOP),
        "send datagrams": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].close(),
        "send to an address": lambda: socket.socketpair()[0].sendto(b"x", str(outside / "socket")),
        "share memory": lambda: _call("shmget", 0, 4096, 0o1600),
        "keep memory in no file": lambda: os.close(os.memfd_create("x")),
        "enter a namespace": lambda: _call("unshare", 0x10000000),
        "leave a setuid file": lambda: os.close(os.open(Path(out) / "suid", os.O_CREAT | os.O_WRONLY, 0o4755)),
        "leave a link": lambda: (Path(out) / "link").symlink_to("/etc/passwd"),
        "leave a second name": lambda: os.link(out, Path(out) / "second"),
        "leave a pipe": lambda: os.mkfifo(Path(out) / "pipe"),
        "write in its own folder": lambda: Path("mine").write_text("x"),
        "write in the stage's folder": lambda: (Path(out) / "model.json").write_text("x"),
        "make a temporary file": lambda: Path(os.environ["TMPDIR"], "t").write_text("x"),
        "start a child": lambda: subprocess.run([sys.executable, "-c", "print(1)"], check=True, capture_output=True),
        "start a thread": lambda: _thread(),
        "keep nothing open": lambda: _none(_descriptors()),
        "see all of the system": lambda: _none([] if len(os.listdir("/usr/share")) > 3 else ["a part"]),
        "talk to itself": lambda: socket.socketpair()[0].close(),
    }
    outcomes = {}
    for name, deed in deeds.items():
        try:
            deed()
            outcomes[name] = "done"
        except (OSError, subprocess.CalledProcessError, KeyError) as error:
            outcomes[name] = type(error).__name__
    return outcomes


def _none_of_these_in_the_environment() -> None:
    secrets = (
        "AWS_SECRET_ACCESS_KEY",
        "TVMFLOW_SIGNING_KEY",
        "TVMFLOW_MLFLOW_URI",
        "MLFLOW_TRACKING_URI",
        "OMP_SECRET",
    )
    if not set(secrets) & set(os.environ):
        raise KeyError(secrets)


def _call(name: str, *numbers: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*numbers) < 0:
        raise OSError(ctypes.get_errno(), name)


def _find(name: str, folder: Path) -> None:
    if name not in os.listdir(folder):
        raise FileNotFoundError(name)


def _none(things: list[str]) -> None:
    if things:
        raise OSError(str(things))


def _thread() -> None:
    one = threading.Thread(target=time.sleep, args=(0.0,))
    one.start()
    one.join()


def eat_memory(step_bytes: int) -> None:
    kept = []
    while True:
        kept.append(bytearray(step_bytes))


def eat_shared_memory(mib: int) -> None:
    """Fill memory that no limit of one process counts, in two processes."""
    os.fork()
    kept = mmap.mmap(-1, mib << 20)
    for _ in range(mib):
        kept.write(b"x" * (1 << 20))
    time.sleep(100)


def hang_without_a_reply() -> None:
    os.close(int(sys.argv[1]))
    time.sleep(1000)


def reply_without_end() -> None:
    while True:
        os.write(int(sys.argv[1]), b"x" * 65536)


def fill_stderr(mib: int) -> None:
    for _ in range(mib):
        os.write(2, b"\n" * (1 << 20))
    os.abort()


def reply_other_types() -> None:
    os.write(int(sys.argv[1]), b'{"error": {"type": "GateRefusedError", "found": "' + b"x" * 9000 + b'", "hint": 3}}\n')
    time.sleep(100)


def refuse_as(kind: str, found: str) -> None:
    os.write(int(sys.argv[1]), ('{"error": {"type": "%s", "found": "%s"}}\n' % (kind, found)).encode())  # noqa: UP031
    time.sleep(100)


def loop_forever() -> None:
    while True:
        pass


def write_forever(out: str) -> None:
    with (Path(out) / "big").open("wb") as file:
        while True:
            file.write(b"\0" * (1 << 20))


def crash() -> None:
    os.abort()


def refuse() -> None:
    raise ModelFileError("bad \x1b[2Jmodel", "a good one")


def stumble(over: str = "") -> None:
    raise RuntimeError(over) if over else KeyError("num_heads")


def read_all(folder: str) -> list[str]:
    """Return the files in a folder, and in its folders that usually hold secrets, that can be read."""
    names = ["model.onnx", ".ssh/id_rsa", ".aws/credentials", ".dvc/config.local"]
    found = []
    for name in names:
        try:
            if (Path(folder) / name).read_text():
                found.append(name)
        except OSError:
            continue
    return found


def reply_nonsense() -> None:
    os.write(int(sys.argv[1]), b"[1, 2\n")


def spawn_and_hang(out: str) -> None:
    """Go on writing in a process of another session, whose parent has ended."""
    beats = Path(out) / "beats"
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            beats.write_text(str(time.monotonic_ns()))
            time.sleep(0.02)
    time.sleep(1000)


def spawn_and_leave(out: str) -> None:
    if not os.fork():
        spawn_and_hang(out)
    while not (Path(out) / "beats").exists():
        time.sleep(0.01)


def limits_of_a_child() -> str:
    """Try to get the limits back in a child, as root might."""
    code = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (r.RLIM_INFINITY, r.RLIM_INFINITY))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr


class Counter:
    """An object that lives in the sandbox."""

    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def collected_after(self) -> int:
        """Return after how many new objects Python looks for unreachable ones."""
        return gc.get_threshold()[0]


def load_and_run(folder: str, framework: str, file: str) -> list[int]:
    """Load a model as import does and run it once."""
    import numpy as np

    from tvmflow.frontends.registry import load_source
    from tvmflow.frontends.source_model import SourceDescription, one_input

    model = load_source(Path(folder), SourceDescription(framework, None, file, one_input("input", (1, 1, 8, 8))))
    return list(model.run(np.zeros((1, 1, 8, 8), np.float32))[0].shape)


def reply_deep() -> None:
    os.write(int(sys.argv[1]), b"[" * 50_000 + b"\n")
