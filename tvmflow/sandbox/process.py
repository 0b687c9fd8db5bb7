"""Start a sandbox and communicate with it: a process that reads untrusted model files.

It can read Python, its packages and the given files and folders, and write its own folder and the given ones. It has no
network, sees no other processes, and has limited memory, CPU time and wall-clock time. Protections that the kernel does
not support are skipped, and `held` (and doctor) reports them. What it replies and leaves is checked here and in
`outputs`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tvmflow.sandbox.outputs import check_outputs
from tvmflow.sandbox.watcher import SIGNALLED
from tvmflow.support import errors
from tvmflow.support.own_packages import IN_WHEEL
from tvmflow.support.paths import CODE_ROOT
from tvmflow.support.plain_files import special_kind
from tvmflow.support.temporary import make_folder, remove_folder
from tvmflow.toolchain.environments import cache_folder, environments_folder, toolchain_file

MAX_REPLY_BYTES = 4 << 20
MIN_MEMORY_BYTES = 6 << 30
_END_S = 5.0  # for the watcher to end all processes
_MAX_STDERR_BYTES = 20_000
_MAX_TEXT = 4000  # characters of an error's part
_OUT_OF_MEMORY = (
    "MemoryError",
    "bad_alloc",
    "annot allocate memory",
    "an't allocate memory",
    "Failed to allocate memory",
    "Unable to allocate",
)
# No variable by its beginning: new ones may be secrets.
_ENVIRONMENT = tuple(
    """
    PATH LANG LC_ALL LC_CTYPE TZ LD_LIBRARY_PATH VIRTUAL_ENV KERAS_BACKEND TVMFLOW_DEBUG
    OMP_NUM_THREADS OMP_WAIT_POLICY OMP_PROC_BIND OMP_PLACES KMP_AFFINITY KMP_BLOCKTIME MKL_NUM_THREADS
    OPENBLAS_NUM_THREADS TVM_NUM_THREADS TVM_BIND_THREADS
    """.split()
)
_ERRORS = tuple(
    """
    TvmflowError UsageError UnknownNameError SourceError ModelFileError UnsupportedOperatorError AgreementError
    StageError ToolchainError BundleError StoreError
    """.split()
)  # that a function may raise; none is retried, or has an exit code of its own but UsageError
_SYSTEM = tuple(
    """
    /usr /lib /lib32 /lib64 /bin /sbin /nix/store /proc /sys /etc/ld.so.cache /etc/alternatives /etc/localtime
    /dev/null /dev/zero /dev/random /dev/urandom
    """.split()
)


@dataclass(frozen=True)
class Policy:
    """The permissions of a sandbox. reads, writes: beside Python's own; reads name files where others lie beside them.

    outputs: name -> most bytes of each file that may be left in `writes`. load_s: time until the first progress after
    loading, if that is less than timeout_s. without: disabled protections, for tests. what: the name of the input in
    errors.
    """

    timeout_s: float
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    memory_bytes: int = MIN_MEMORY_BYTES
    outputs: Mapping[str, int] = field(default_factory=dict)
    load_s: float | None = None
    reply_bytes: int = MAX_REPLY_BYTES
    without: tuple[str, ...] = ()
    what: str = "the model"

    def to_json(self, scratch: Path) -> dict[str, Any]:
        reads = {str(place) for path in self.reads for place in (path.absolute(), path.resolve())}
        return {
            "root": str(scratch / ".root"),
            "reads": [*_SYSTEM, *_python_folders(), *sorted(reads)],
            "writes": [str(scratch), "/dev/null", *(str(path.resolve()) for path in self.writes)],
            "memory_bytes": self.memory_bytes,
            "cpu_s": int(self.timeout_s * (os.cpu_count() or 1)) + 10,
            "processes": _threads_of_user() + 4096,
            "without": list(self.without),
        }


def reading_s(*files: Path) -> float:
    """Return the time limit for reading these files without converting them: 60 s, and one more for each 16 MiB.

    As many times that as processes wait for each core: another limit is that of processor time.
    """
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return (60.0 + sum(path.stat().st_size for path in files if path.is_file()) / (16 << 20)) * max(1.0, waiting)


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
        _refuse_special(policy)
        self.policy, self.held = policy, list[str]()
        self._own = make_folder("sandbox")
        (self._own / ".root").mkdir()
        self._group: int | None = None
        self._unread = b""
        reader, writer = os.pipe()
        with (self._own / "stderr").open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tvmflow.sandbox.child", str(writer)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                pass_fds=(writer,),
                cwd=self._own,
                start_new_session=True,
                env=_environment(self._own),
            )
        os.close(writer)
        self._replies = reader
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
        """Return the process group inside the sandbox; to be called after a reply."""
        assert self._group is not None
        return self._group

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the object that the function returned. Raises its error, or ModelFileError."""
        return self._ask({"method": method, "arguments": arguments}, None)

    def close(self) -> None:
        """Kill all processes and remove the sandbox's folder."""
        self._kill()
        os.close(self._replies)
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        remove_folder(self._own)

    def _kill(self) -> int:
        """Let the watcher kill all processes, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_S)
        for group in (self._process.pid, self._group):  # it did not start, or is kept from running
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if group is not None:
                    os.killpg(group, signal.SIGKILL)
        return self._process.wait()

    def _send(self, request: dict[str, Any], progress: Callable[..., None] | None) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reply says why
            self._process.stdin.write(json.dumps({**request, "wants_progress": progress is not None}).encode() + b"\n")
            self._process.stdin.flush()

    def _ask(self, request: dict[str, Any] | None, progress: Callable[..., None] | None) -> Any:
        """Return the reply to a request, or to the previous one."""
        started = time.monotonic()
        limit = min(self.policy.timeout_s, self.policy.load_s or self.policy.timeout_s)
        if request is not None:
            self._send(request, progress)
        steps = set[str]()
        try:
            while line := self._line(started + limit):
                event = json.loads(line)
                if "group" in event and self._group is None:  # the watcher is first
                    self._group = int(event["group"])
                elif "held" in event and not self.held:
                    self.held = [_text(name) for name in event["held"]]
                elif "progress" in event and progress is not None:
                    text, *numbers = event["progress"]
                    progress(_text(text), *(number for number in numbers[:2] if isinstance(number, int | float)))
                    steps.add(text)
                    limit = self.policy.timeout_s if len(steps) > 1 else limit
                elif "error" in event:
                    raise _error_of(event["error"])
                elif "broke" in event:
                    raise self._internal_error(_text(event["broke"]), _text(event["at"]))
                elif "reply" in event:
                    return event["reply"]
        except TimeoutError:
            self._kill()
            raise errors.StageTimeoutError(
                f"{self.policy.what} did not load and reply within {limit:g} s",
                "one without endless loops",
                "raise flows.timeout_s of the stage if it is only large",
            ) from None
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise self._broken_error(f"a malformed reply ({type(error).__name__})") from error
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            code = self._kill()
        raise self._broken_error(_describe_exit(code))

    def _line(self, deadline: float) -> bytes:
        """Return the next line of the replies, b"" at their end. Raises TimeoutError, or ValueError for a long one."""
        while b"\n" not in self._unread:
            if len(self._unread) > self.policy.reply_bytes:
                raise ValueError("a reply that is too long")
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                raise TimeoutError
            if not (data := os.read(self._replies, 1 << 20)):
                return b""
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line + b"\n"

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
            with (self._own / "stderr").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_STDERR_BYTES))
                said = file.read(_MAX_STDERR_BYTES)
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

    Files that it left in the writable folders are checked (`outputs`).
    """
    with Sandbox(function, arguments, policy, progress) as sandbox:
        reply = sandbox.reply
    for folder in policy.writes:
        check_outputs(folder, policy.outputs, policy.what)
    return reply


def _refuse_special(policy: Policy) -> None:
    """Raise ModelFileError for a pipe or a device among the files to read, which would hold the reader."""
    for path in policy.reads:
        if kind := special_kind(path):
            raise errors.ModelFileError(f"{path} is {kind}", "a plain file", "copy its contents to a file")


def _environment(scratch: Path) -> dict[str, str]:
    """Return the listed environment variables, with the sandbox's own folder in place of the user's."""
    kept = {k: v for k, v in os.environ.items() if k in _ENVIRONMENT}
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
    code = (CODE_ROOT / name for name in ("tvmflow", *(() if IN_WHEEL else ("tasks",))))
    return [*sorted(roots), *map(str, (*code, environments_folder(), toolchain_file()))]


def _threads_of_user() -> int:
    """Return the number of processes and threads of this user, all of which the limit counts."""
    count = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids = process.info["uids"]
        count += process.info["num_threads"] or 1 if uids and uids.real == os.getuid() else 0
    return count


def _error_of(event: dict[str, Any]) -> errors.TvmflowError:
    """Return the error of a function; one that it may not raise becomes ModelFileError."""
    parts = {key: _text(event.get(key, "")) for key in ("type", "found", "expected", "hint")}
    parts["found"] = parts["found"] if parts["found"].strip() else "an error that says nothing"
    return errors.from_json({**parts, "type": parts["type"] if parts["type"] in _ERRORS else "ModelFileError"})


def _describe_exit(code: int) -> str:
    number = -code if code < 0 else code - SIGNALLED
    if number in [one.value for one in signal.Signals]:
        return f"its process died of {signal.Signals(number).name}"
    return f"its process ended with code {code}"


def _text(text: object) -> str:
    """Return text of the sandbox without terminal control characters, and not too long. Raises TypeError for
    something else.
    """
    if not isinstance(text, str):
        raise TypeError("no text")
    return _printable(text[:_MAX_TEXT])


def _printable(text: object, also: str = "") -> str:
    """Return text without terminal control characters."""
    return "".join(c if c.isprintable() or c in also else " " for c in str(text))
