"""Start a sandbox and talk to it: a process that reads model files, whose code and bytes nobody vouches for.

It sees Python, its packages and the folders that it is given; it writes in its own folder and the stage's; it has no
network, no signals to others, bounded memory, processor time and wall-clock time. What the kernel cannot do is left
out, and `held` (and doctor) says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tvmflow.support import errors
from tvmflow.support.paths import CODE_ROOT
from tvmflow.toolchain.environments import cache_folder, environments_folder, toolchain_file

MAX_REPLY_BYTES = 256 << 20
MIN_MEMORY_BYTES = 6 << 30
_ENVIRONMENT = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "KERAS_BACKEND")
_ENVIRONMENT_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "TVM_", "TVMFLOW_")
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/nix/store",
    "/proc",
    "/sys",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
)


@dataclass(frozen=True)
class Policy:
    """What a sandbox may do. reads, writes: folders beside Python's own. without: protections left out, for tests.

    what: is read, for errors.
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
    """Return how much memory reading these files may take: sixteen times their size, at least 6 GiB, never all there
    is.
    """
    size = sum(path.stat().st_size for path in files if path.is_file())
    return min(max(MIN_MEMORY_BYTES, 16 * size), psutil.virtual_memory().total * 9 // 10)


class Sandbox:
    """A running sandbox. `reply` is what its function returned, if that was plain data.

    waits: for the function to return; otherwise `wait` does, and something else can be done meanwhile.
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
        self._own = Path(tempfile.mkdtemp(prefix="tvmflow-sandbox-")).resolve()
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
        """Wait until the function has returned. Raises what it raised, or ModelFileError."""
        self.reply = self._ask(None, None)
        return self

    @property
    def group(self) -> int:
        """The process group of what runs inside."""
        return self._process.pid

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the object that the function returned. Raises what it raised, or ModelFileError."""
        return self._ask({"method": method, "arguments": arguments}, None)

    def close(self) -> None:
        """Kill what runs and remove the sandbox's folder."""
        _kill(self._process)
        self._process.wait()
        self._replies.close()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        shutil.rmtree(self._own, ignore_errors=True)

    def _send(self, request: dict[str, Any], progress: Callable[..., None] | None) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self._process.stdin.write(json.dumps({**request, "wants_progress": progress is not None}).encode() + b"\n")
            self._process.stdin.flush()

    def _ask(self, request: dict[str, Any] | None, progress: Callable[..., None] | None) -> Any:
        """Return the reply to a request, or to the one that was sent before."""
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
                    raise self._broken(_printable(event["broke"]))
                elif "reply" in event:
                    return event["reply"]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise self._broken(f"a malformed reply ({type(error).__name__})") from error
        finally:
            killer.cancel()
        if timed_out.is_set():
            raise errors.StageTimeoutError(
                f"{self.policy.what} did not load and reply within {self.policy.timeout_s:g} s",
                "one without endless loops",
                "raise flows.timeout_s of the stage if it is only large",
            )
        raise self._broken(_how_it_died(self._process.wait()))

    def _broken(self, how: str) -> errors.ModelFileError:
        with contextlib.suppress(OSError):
            said = (self._own / "stderr").read_bytes()[-20_000:]
            if "TVMFLOW_DEBUG" in os.environ:
                print(_printable(said.decode("utf-8", "replace"), "\n"), file=sys.stderr)
            words = errors.last_words(said)
            how += f"; its last words: {words}" if words else ""
        return errors.ModelFileError(
            f"reading {self.policy.what} failed: {how}",
            f"one that loads in {self.policy.memory_bytes >> 20} MiB of memory, without files or network of its own",
            "look whether the file is whole, and whether its own framework loads it",
        )


def run_in_sandbox(
    function: str, arguments: dict[str, Any], policy: Policy, progress: Callable[..., None] | None = None
) -> Any:
    """Call `module:function` with plain data in a sandbox and return its reply. Raises what it raised, or
    ModelFileError.

    Files that it left in the writable folders are checked: no links, nothing that is not a plain file.
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
    """Return variables that tune libraries, and none that hold secrets or lead to files of the user."""
    kept = {k: v for k, v in os.environ.items() if k in _ENVIRONMENT or k.startswith(_ENVIRONMENT_PREFIXES)}
    places = {"HOME": str(scratch), "TMPDIR": str(scratch), "USER": "sandbox", "TVMFLOW_CACHE": str(cache_folder())}
    return {**kept, **places, "PYTHONPATH": str(CODE_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def _python_folders() -> list[str]:
    """Return where Python and its packages live. Of our own folder, which may be the user's workspace, only the
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
    """Return how many processes and threads this user has: the limit counts them all."""
    count = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids = process.info["uids"]
        count += process.info["num_threads"] or 1 if uids and uids.real == os.getuid() else 0
    return count


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _how_it_died(code: int) -> str:
    return f"its process died of {signal.Signals(-code).name}" if code < 0 else f"its process ended with code {code}"


def _printable(text: object, also: str = "") -> str:
    """Return text without the characters that command a terminal."""
    return "".join(c if c.isprintable() or c in also else " " for c in str(text))
