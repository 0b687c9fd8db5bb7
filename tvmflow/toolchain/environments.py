"""Manage tool environments: programs whose packages conflict with ours, each in its own virtual environment.

An environment is made on first use, under the digest of its pinned packages, and kept; an incomplete one is never used.
A tool is a process that communicates over its standard streams and ends with ours, or after a timeout.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tvmflow.support.errors import TvmflowError, UsageError, last_words
from tvmflow.support.files import digest_of, sha256_of
from tvmflow.support.private_places import check_private

Array = np.ndarray[Any, Any]
INSTALL_TIMEOUT_S = 1200.0
REPLY_TIMEOUT_S = 600.0
_WORKERS = Path(__file__).resolve().parent / "workers"


@dataclass(frozen=True)
class ToolEnvironment:
    """packages: pinned, in pip's notation. worker: the file in `workers/` that runs inside."""

    packages: tuple[str, ...]
    worker: str


TOOL_ENVIRONMENTS = {
    "mxnet": ToolEnvironment(("mxnet==1.9.1", "numpy==1.23.5"), "mxnet_worker.py"),
    "tensorflow": ToolEnvironment(("tensorflow-cpu==2.21.0",), "tensorflow_worker.py"),
}


def tool_version(name: str) -> str:
    """Return the version of an environment: its pins and the digests of its worker and of what workers share."""
    tool = TOOL_ENVIRONMENTS[name]
    return " ".join([*tool.packages, *(sha256_of(_WORKERS / file)[:16] for file in (tool.worker, "serving.py"))])


def cache_folder() -> Path:
    """Return the cache folder of all workspaces: TVMFLOW_CACHE, or tvmflow's folder in the user's cache. Raises
    StoreError for one that another user can exchange: programs in it are run.
    """
    return _checked(os.environ.get("TVMFLOW_CACHE") or str(_home() / ".cache" / "tvmflow"))


@functools.cache
def _checked(folder: str) -> Path:
    check_private(Path(folder), "the cache")
    return Path(folder)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError("this user has no home folder", "HOME, or TVMFLOW_CACHE, to keep tools in") from None


def environments_folder() -> Path:
    """Return the folder of the tool environments."""
    return cache_folder() / "tools"


def toolchain_file() -> Path:
    """Return the file that caches what only TVM knows of this machine and of LLVM."""
    return cache_folder() / "toolchain.json"


def make_environments(tools: tuple[str, ...]) -> None:
    """Make environments (`tool:NAME`) now, for later use without a network. Raises TvmflowError."""
    for tool in tools:
        python_of(tool.removeprefix("tool:"))


def python_of(name: str) -> Path:
    """Return the interpreter of a tool environment, made if necessary. Raises TvmflowError."""
    from filelock import FileLock

    tool = TOOL_ENVIRONMENTS[name]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = environments_folder() / f"{name}-{digest_of([*tool.packages, version])[:12]}"
    python = folder / "bin" / "python"
    if python.exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if not python.exists():
            _make(name, tool, folder)
    return python


def _make(name: str, tool: ToolEnvironment, folder: Path) -> None:
    """Install beside the final place and move the folder there when complete; scripts with absolute paths are
    not used.
    """
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        for command in (
            [sys.executable, "-P", "-m", "venv", str(unfinished)],
            [
                str(unfinished / "bin" / "python"),
                "-P",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *tool.packages,
            ],
        ):
            completed = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
            if completed.returncode:
                raise _not_made(name, tool, completed.stderr.strip()[-400:])
        unfinished.rename(folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_made(name, tool, str(error)) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _not_made(name: str, tool: ToolEnvironment, why: str) -> TvmflowError:
    return TvmflowError(
        f"the tool environment for {name} could not be made: {why}",
        f"pip install {' '.join(tool.packages)} to work in a fresh environment",
        f"check pip's access to a package index; environments live in {environments_folder()}",
    )


class ToolProcess:
    """A running worker, which ends with this object. Every request returns a list of named arrays; errors of the tool
    are TvmflowErrors.

    threads: number of compute threads, None: its default.
    """

    def __init__(self, name: str, arguments: list[str], threads: int | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(python_of(name)), str(_WORKERS / TOOL_ENVIRONMENTS[name].worker), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={
                "PATH": os.environ.get("PATH", ""),
                "HOME": str(environments_folder()),
                "LANG": "C.UTF-8",
                **({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
                **{key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")},
            },
        )
        self._errors: list[bytes] = []
        # The thread must not reference this object: thread and worker would keep each other alive.
        threading.Thread(target=_listen, args=[self._process.stderr, self._errors], daemon=True).start()
        weakref.finalize(self, _kill, self._process)

    def arrays(
        self, request: str, x: Array | Mapping[str, Array] | None = None, **options: Any
    ) -> list[tuple[str, Array]]:
        """Send a request and return the reply's arrays in order. x: the input, or several by name."""
        bodies = {name: _npy(np.ascontiguousarray(one)) for name, one in x.items()} if isinstance(x, Mapping) else {}
        if isinstance(x, Mapping):
            body, options = b"".join(bodies.values()), {**options, "inputs": [[n, len(b)] for n, b in bodies.items()]}
        else:
            body = b"" if x is None else _npy(np.ascontiguousarray(x))
        head = json.dumps({"request": request, "bytes": len(body), **options}).encode() + b"\n"
        watchdog = threading.Timer(REPLY_TIMEOUT_S, _kill, [self._process])
        watchdog.start()
        try:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(head + body)
            self._process.stdin.flush()
            reply = json.loads(self._process.stdout.readline() or b"{}")
            if "error" in reply or "arrays" not in reply:
                raise self._failure(str(reply.get("error", "it ended without a reply")))
            return [
                (str(name), np.load(io.BytesIO(self._read(int(size))), allow_pickle=False))
                for name, size in reply["arrays"]
            ]
        except (OSError, ValueError) as error:
            raise self._failure(str(error)) from error
        finally:
            watchdog.cancel()

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) != size:
            raise ValueError(f"{size} bytes announced, {len(data)} came")
        return data

    def close(self) -> None:
        _kill(self._process)

    def _failure(self, why: str) -> TvmflowError:
        words = last_words(b"".join(self._errors))
        return TvmflowError(f"{self.name} in its tool environment failed: {why}" + (f" ({words})" if words else ""))


def run_tool(
    name: str, arguments: list[str], timeout_s: float = REPLY_TIMEOUT_S, script: str | Path | None = None
) -> None:
    """Run the worker, or another script, to its end, for exports. Raises TvmflowError with its last output."""
    process = subprocess.Popen(
        [str(python_of(name)), str(script or _WORKERS / TOOL_ENVIRONMENTS[name].worker), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={
            key: value for key, value in os.environ.items() if key != "KERAS_BACKEND"
        },  # our backend may not be installed there
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise TvmflowError(f"{name} in its tool environment took longer than {timeout_s:g} s") from None
    finally:
        _kill(process)
    if process.returncode:
        lines = said.strip().splitlines() or ["no output"]
        raise TvmflowError(f"{name} in its tool environment failed: {lines[-1][:400]}")


def _npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _listen(stream: IO[bytes], lines: list[bytes]) -> None:
    with stream:
        for line in stream:
            lines[:] = [*lines[-20:], line]


def _kill(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
