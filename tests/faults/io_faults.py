"""Fail each call that makes, writes, moves or removes a file, in turn: `python -m tests.faults.io_faults [--step N]`.

After each: a result, or one clear error; every file is as before, or as a run without faults leaves it, and nothing
else is left; the same command then leaves what a run without faults does, byte for byte. Prints the counts.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvmflow.support.errors import TvmflowError

_SHORT_WRITE = -1
# number, whether what needs room fails from then on
MODES = {
    "full disk": (errno.ENOSPC, 1),
    "damaged disk": (errno.EIO, 0),
    "no permission": (errno.EACCES, 0),
    "short write": (_SHORT_WRITE, 0),
}
_VOLATILE = re.compile(rb'"(created|elapsed_s|expires|when)": ?("[^"]*"|[\d.e-]+)|\d{10,}|tvmflow-[\w-]+|calls.txt.*')
_REFUSED, _FAILED = 3, 4
Snapshot = dict[str, bytes]


def build_shim(folder: Path) -> Path:
    """Compile the library that is loaded before Python."""
    source, shim = Path(__file__).parent / "io_faults.c", folder / "io_faults.so"
    subprocess.run(["gcc", "-std=gnu11", "-O1", "-shared", "-fPIC", str(source), "-o", str(shim), "-ldl"], check=True)
    return shim


def _snapshot(root: Path, random: bool) -> Snapshot:
    """Return path -> contents, without what differs at each run. Locks, which are empty and stay, are left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and ".locks" not in name and name != "calls.txt":
            data = b"" if random else _VOLATILE.sub(b"", path.read_bytes())
            found[name] = oct(path.stat().st_mode & 0o777).encode() + data
    return found


class Library:
    """The loaded shim."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.disarm.restype = ctypes.c_long
        self._library.failed_call.restype = ctypes.c_char_p

    def arm(self, at: int, number: int, persistent: int) -> None:
        self._library.arm(ctypes.c_long(at), number, persistent)

    def disarm(self) -> tuple[int, str]:
        calls = int(self._library.disarm())
        return calls, self._library.failed_call().decode()


def _tried(do: Callable[[], Any], arm: Callable[[], None], disarm: Callable[[], Any]) -> tuple[int, Any]:
    """Return how a deed ended, and what `disarm` and its error say."""
    code, said, counts = 0, "", None
    try:
        arm()
        try:
            do()
        finally:
            counts = disarm()
    except (TvmflowError, OSError) as error:  # the command line makes one line of both
        code, said = _REFUSED, f"{type(error).__name__}: {error}"
    except BaseException:
        code, said = _FAILED, traceback.format_exc()[-1500:]
    return code, (counts, said)


class Faults:
    """Runs scenarios below a folder. found: outcomes; failures: what was wrong."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.step, self.library = folder, step, Library()
        self.found: Counter[str] = Counter()
        self.failures: list[str] = []

    def _wrong(self, what: str) -> None:
        self.failures.append(what)
        print(what, file=sys.stderr, flush=True)

    def run(self, name: str, scenario: Any) -> None:
        base = self.folder / "base"
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir()
        _tried(lambda: scenario.prepare(base), lambda: None, lambda: None)
        before = _snapshot(base, scenario.random)
        root = self._copy(base)
        code, (counted, said) = _tried(
            lambda: scenario.do(root), lambda: self.library.arm(1 << 40, 0, 0), self.library.disarm
        )
        fresh, calls = _snapshot(root, scenario.random), counted[0]
        if code or not calls:
            self._wrong(f"{name}: without faults it ended with {code} after {calls} calls: {said}")
            return
        for mode, (number, persistent) in MODES.items():
            for at in range(1, calls + 1, self.step):
                self._fail(name, scenario, base, (mode, at, number, persistent), before, fresh)

    def _copy(self, base: Path) -> Path:
        root = self.folder / "disk"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(base, root, symlinks=True)
        return root

    def _fail(
        self, name: str, scenario: Any, base: Path, way: tuple[str, int, int, int], before: Snapshot, fresh: Snapshot
    ) -> None:
        mode, at, number, persistent = way
        root = self._copy(base)
        code, ((_, call), said) = _tried(
            lambda: scenario.do(root), lambda: self.library.arm(at, number, persistent), self.library.disarm
        )
        if not call:
            return  # this call does not fail in this way
        where = f"{name}, {mode} at call {at}, {call}"
        self.found["injected"] += 1
        self.found["refused" if code == _REFUSED else "done" if code == 0 else "failed"] += 1
        if code not in (0, _REFUSED) or (code == _REFUSED and not said.strip()):
            self._wrong(f"{where}: ended with {code}: {said}")
        left = _snapshot(root, scenario.random)
        left = {
            path: data for path, data in left.items() if not path.startswith("artifacts/.tmp/")
        }  # the next removes it
        if code == 0 and call not in ("unlink", "rmdir") and left != fresh:
            self._wrong(f"{where}: said nothing, but left {_difference(left, fresh)}")
        wrong = [path for path, data in left.items() if data not in (before.get(path), fresh.get(path))]
        wrong = [path for path in wrong if not _is_beginning(path, left[path], fresh.get(path, b""))]
        if wrong and call not in ("unlink", "rmdir"):  # what cannot be removed, stays
            self._wrong(f"{where}: left {wrong[:4]}")
        if code == 0 and scenario.counts:
            return
        code, (_, said) = _tried(lambda: scenario.do(root), lambda: None, self.library.disarm)
        if code:
            self._wrong(f"{where}: the next run ended with {code}: {said}")
        again = _snapshot(root, scenario.random)
        again = {path: data for path, data in again.items() if path in fresh or call not in ("unlink", "rmdir")}
        if again != fresh:
            self._wrong(f"{where}: the next run left {_difference(again, fresh)}")


def _is_beginning(path: str, data: bytes, whole: bytes) -> bool:
    """Return whether a log has its first records, each of them whole."""
    return path.endswith(".jsonl") and whole.startswith(data) and (data.endswith(b"\n") or b"{" not in data)


def _difference(left: Snapshot, fresh: Snapshot) -> list[str]:
    return sorted(path for path in left.keys() | fresh.keys() if left.get(path) != fresh.get(path))[:4]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if "DISK" not in os.environ:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            environment = {**os.environ, "LD_PRELOAD": str(build_shim(folder)), "DISK": f"{folder / 'disk'}/"}
            command = [sys.executable, "-m", "tests.faults.io_faults", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    from tests.faults.io_scenarios import scenarios

    folder = Path(os.environ["DISK"]).parent
    os.environ.pop("LD_PRELOAD")
    (folder / "shared").mkdir()
    faults = Faults(folder, given.step)
    for name, scenario in scenarios(folder / "shared").items():
        if given.only in name:
            faults.run(name, scenario)
            print(f"{name}: {dict(faults.found)}", file=sys.stderr, flush=True)
    for line in faults.failures:
        print(line)
    print(json.dumps(dict(faults.found)))
    return 1 if faults.failures else 0


if __name__ == "__main__":
    sys.exit(main())
