"""Start a sandbox and communicate with it: a process that reads untrusted model files.

It can read Python, its packages and the given folders, and write its own folder and the stage's. It has no network,
cannot signal other processes, and has limited memory, CPU time and wall-clock time. Protections that the kernel does
not support are skipped, and `held` (and doctor) reports them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tvmflow.support import errors
from tvmflow.support.paths import CODE_ROOT
from tvmflow.support.temporary import make_folder, remove_folder
from tvmflow.toolchain.environments import cache_folder, environments_folder, toolchain_file

MAX_REPLY_BYTES = 256 << 20
MIN_MEMORY_BYTES = 6 << 30
_OUT_OF_MEMORY = (
    "MemoryError",
    "bad_alloc",
    "annot allocate memory",
    "an't allocate memory",
    "Failed to allocate memory",
    "Unable to allocate",
)
_ENVIRONMENT = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "KERAS_BACKEND")
_ENVIRONMENT_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "TVM_", "TVMFLOW_")
_SYSTEM = tuple(
    """
    /usr /lib /lib32 /lib64 /bin /sbin /nix/store /proc /sys /etc/ld.so.cache /etc/alternatives /etc/localtime
    /dev/null /dev/zero /dev/random /dev/urandom
    """.split()
)


@dataclass(frozen=True)
class Policy:
    """The permissions of a sandbox. reads, writes: folders beside Python's own. without: disabled protections, for
    tests. what: the name of the input in errors.
    """

    timeout_s: float
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    memory_bytes: int = MIN_MEMORY_BYTES
    without: tuple[str, ...] = ()
    what: str = "the model"

    def to_json(self, scratch: Path) -> dict[str, Any]:
        return {
            "reads": [*_SYSTEM, *_python_folders(), *(str(path.resolve()) for path in self.reads)],
            "writes": [str(scratch), "/dev/null", *(str(path.resolve()) for path in self.writes)],
            "memory_bytes": self.memory_bytes,
            "cpu_s": int(self.timeout_s * (os.cpu_count() or 1)) + 10,
            "processes": _threads_of_user() + 4096,
            "without": list(self.without),
        }


def memory_for(*files: Path) -> int:
    """Return the memory limit for reading these files: 16 times their size, at least 6 GiB, less than all memory."""
    size = sum(path.stat().st_size for path in files if path.is_file())
    return min(max(MIN_MEMORY_BYTES, 16 * size), psutil.virtual_memory().total * 9 // 10)


class Sandbox:
    """A running sandbox. `reply` is the function's result if that is plain data.

    waits: block until the function returns; otherwise call `wait`, and do other work meanwhile.
    """

    def __init__(
        self,
        function: str,
        arguments: dict[str, Any],
        policy: Policy,
        progress: Callable[..., None] | None = None,
        *,
        waits: bool = True,
    ) -> None:
        self.policy, self.held = policy, list[str]()
        self._own = make_folder("sandbox")
        reader, writer = os.pipe()
        with (self._own / "stderr").open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tvmflow.sandbox.child", str(writer)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                pass_fds=(writer,),
                cwd=self._own,
                start_new_session=True,
                env=_environment(self._own),
            )
        os.close(writer)
        self._replies = os.fdopen(reader, "rb")
        try:
            request = {
                "policy": policy.to_json(self._own),
                "parent": os.getpid(),
                "function": function,
                "arguments": arguments,
            }
            self.reply: Any = None
            if waits:
                self.reply = self._ask(request, progress)
            else:
                self._send(request, progress)
        except BaseException:
            self.close()
            raise

    def wait(self) -> Sandbox:
        """Wait until the function has returned. Raises its error, or ModelFileError."""
        self.reply = self._ask(None, None)
        return self

    @property
    def group(self) -> int:
        """Return the process group inside the sandbox."""
        return self._process.pid

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the object that the function returned. Raises its error, or ModelFileError."""
        return self._ask({"method": method, "arguments": arguments}, None)

    def close(self) -> None:
        """Kill the process group and remove the sandbox's folder."""
        _kill(self._process)
        self._process.wait()
        self._replies.close()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        remove_folder(self._own)

    def _send(self, request: dict[str, Any], progress: Callable[..., None] | None) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reply says why
            self._process.stdin.write(json.dumps({**request, "wants_progress": progress is not None}).encode() + b"\n")
            self._process.stdin.flush()

    def _ask(self, request: dict[str, Any] | None, progress: Callable[..., None] | None) -> Any:
        """Return the reply to a request, or to the previous one."""
        timed_out = threading.Event()

        def kill() -> None:
            timed_out.set()
            _kill(self._process)

        killer = threading.Timer(self.policy.timeout_s, kill)
        killer.start()
        try:
            if request is not None:
                self._send(request, progress)
            while line := self._replies.readline(MAX_REPLY_BYTES):
                event = json.loads(line)
                if "held" in event:
                    self.held = event["held"]
                elif "progress" in event and progress is not None:
                    progress(_printable(event["progress"][0]), *event["progress"][1:])
                elif "error" in event:
                    raise errors.from_json({key: _printable(text) for key, text in event["error"].items()})
                elif "broke" in event:
                    raise self._internal_error(_printable(event["broke"]), _printable(event["at"]))
                elif "reply" in event:
                    return event["reply"]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise self._broken_error(f"a malformed reply ({type(error).__name__})") from error
        finally:
            killer.cancel()
        if timed_out.is_set():
            raise errors.StageTimeoutError(
                f"{self.policy.what} did not load and reply within {self.policy.timeout_s:g} s",
                "one without endless loops",
                "raise flows.timeout_s of the stage if it is only large",
            )
        raise self._broken_error(_describe_exit(self._process.wait()))

    def _broken_error(self, how: str) -> errors.ModelFileError:
        """Return the error of a process that ended, or said nothing sensible."""
        said = self._said()
        words = errors.last_words(said)
        how += f"; its last output: {words}" if words else ""
        if is_out_of_memory(said.decode("utf-8", "replace")) or signal.SIGKILL.name in how:
            return self._memory_error(how)
        return errors.ModelFileError(
            f"reading {self.policy.what} failed: {how}",
            "one that its own framework loads",
            "check whether the file is complete, and whether its own framework loads it",
        )

    def _internal_error(self, what: str, place: str) -> errors.ModelFileError:
        """Return the error of a function that raised one that nobody expected. place: in tvmflow's code."""
        self._said()
        if is_out_of_memory(what):
            return self._memory_error(what)
        return errors.ModelFileError(
            f"reading {self.policy.what} failed at {place}: {what}",
            "a model that tvmflow supports, or an error that names what it does not",
            "this is a gap in tvmflow: report it with the model; TVMFLOW_DEBUG=1 prints the whole trace",
        )

    def _memory_error(self, how: str) -> errors.ModelFileError:
        return errors.ModelFileError(
            f"reading {self.policy.what} needs too much memory: {how}",
            f"one that loads in {self.policy.memory_bytes >> 20} MiB of memory",
            "sixteen times the size of the files, at least 6 GiB, at most 90 % of the machine's memory: use a smaller "
            "model or batch, or a machine with more memory",
        )

    def _said(self) -> bytes:
        """Return the last output of the process; print it for TVMFLOW_DEBUG."""
        try:
            said = (self._own / "stderr").read_bytes()[-20_000:]
        except OSError:
            return b""
        if "TVMFLOW_DEBUG" in os.environ:
            print(_printable(said.decode("utf-8", "replace"), "\n"), file=sys.stderr)
        return said


def is_out_of_memory(text: str) -> bool:
    """Return whether an error's text says that memory ran out, as Python, C++ and the frameworks say it."""
    return any(words in text for words in _OUT_OF_MEMORY)


def run_in_sandbox(
    function: str, arguments: dict[str, Any], policy: Policy, progress: Callable[..., None] | None = None
) -> Any:
    """Call `module:function` with plain data in a sandbox and return its reply. Raises its error, or ModelFileError.

    Files that it left in the writable folders are checked: only plain files, no links.
    """
    with Sandbox(function, arguments, policy, progress) as sandbox:
        reply = sandbox.reply
    for folder in policy.writes:
        for path in folder.rglob("*"):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise errors.ModelFileError(
                    f"reading {policy.what} left {path.name}, which is no plain file", "plain files"
                )
    return reply


def _environment(scratch: Path) -> dict[str, str]:
    """Return environment variables of libraries, without secrets or paths of the user."""
    kept = {k: v for k, v in os.environ.items() if k in _ENVIRONMENT or k.startswith(_ENVIRONMENT_PREFIXES)}
    places = {"HOME": str(scratch), "TMPDIR": str(scratch), "USER": "sandbox", "TVMFLOW_CACHE": str(cache_folder())}
    return {**kept, **places, "PYTHONPATH": str(CODE_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def _python_folders() -> list[str]:
    """Return the folders of Python and its packages; of our own folder, which may be the user's workspace, only the
    code.
    """
    roots = {
        sys.prefix,
        sys.base_prefix,
        *(str(Path(p).resolve()) for p in (sys.prefix, sys.base_prefix, sys.executable)),
    }
    roots |= {path for path in sys.path if "-packages" in path or "lib/python" in path}
    roots |= {path for path in os.environ.get("PATH", "").split(os.pathsep) if path}
    code = (CODE_ROOT / name for name in ("tvmflow", "tasks"))
    return [*sorted(roots), *map(str, (*code, environments_folder(), toolchain_file()))]


def _threads_of_user() -> int:
    """Return the number of processes and threads of this user, all of which the limit counts."""
    count = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids = process.info["uids"]
        count += process.info["num_threads"] or 1 if uids and uids.real == os.getuid() else 0
    return count


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _describe_exit(code: int) -> str:
    return f"its process died of {signal.Signals(-code).name}" if code < 0 else f"its process ended with code {code}"


def _printable(text: object, also: str = "") -> str:
    """Return text without terminal control characters."""
    return "".join(c if c.isprintable() or c in also else " " for c in str(text))
