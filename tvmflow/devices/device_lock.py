"""Lock devices against all processes of this machine, of every user and workspace.

A lock is a file in a folder that all users share. The kernel releases it when its process ends, however that ends.
The file says who holds it; that text is only shown, since every user may write it.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvmflow.devices.waiting import duration, wait_for
from tvmflow.support.errors import StoreError

FOLDER = "TVMFLOW_LOCKS"  # environment variable with the folder, to share it with containers
_SYSTEM_FOLDER = Path("/run/lock")  # shared by all users on Debian and its kin
_TEMPORARY_FOLDER = Path("/tmp")  # noqa: S108  (TMPDIR may differ between users; the folder's mode is checked)
_SHARED_MODE = 0o1777  # everyone may add files, only the owner may remove them
_MADE_S = 0.5
_FRESH_S = 5.0  # within which a tracker says that a device is free again
_MOST_BYTES = 1 << 16
_LONGEST = 200  # characters of a text of another user

_work = ""  # of this process, for others to read


def describe_work(text: str) -> None:
    """Set what this process does, which waiting processes show: the workspace and the cell."""
    global _work
    _work = text


def lock_folder() -> Path:
    """Return the folder of the locks, which all users of this machine share. Raises StoreError if it cannot be."""
    named = os.environ.get(FOLDER)
    system = _SYSTEM_FOLDER if _is_shared(_SYSTEM_FOLDER) else _TEMPORARY_FOLDER
    folder = Path(named) if named else system / "tvmflow-locks"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=bool(named))
            folder.chmod(_SHARED_MODE)  # mkdir applies the umask
        status = folder.lstat()
    except OSError as error:
        raise _no_folder(folder, str(error)) from None
    if not stat.S_ISDIR(status.st_mode):
        raise _no_folder(folder, "it is not a folder")
    deadline = time.monotonic() + _MADE_S
    while not _is_shared(folder) and status.st_uid != os.getuid() and time.monotonic() < deadline:
        time.sleep(0.02)  # another user is between the lines above
    if not _is_shared(folder) and status.st_uid != os.getuid():
        raise _no_folder(folder, "other users cannot write to it")
    return folder


def _is_shared(folder: Path) -> bool:
    try:
        return folder.lstat().st_mode & 0o7777 == _SHARED_MODE
    except OSError:
        return False


def _no_folder(folder: Path, why: str) -> StoreError:
    return StoreError(
        f"no device can be locked in {folder}: {why}",
        "a folder of mode 1777, which all users of this machine share",
        f"ask its owner to run 'chmod 1777 {folder}', or name another folder for all users in {FOLDER}",
    )


class DeviceLock:
    """The lock of one device. It excludes other locks of the name, in this process too.

    Whoever waits takes `_turn` first, so that shared holders that follow each other do not keep it waiting forever.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._file, self._turn = _LockFile(_file_name(name)), _LockFile(_file_name(name) + ".turn")

    def try_take(self, shared: bool = False) -> bool:
        """Take the lock if it is free. shared: only exclusive holders exclude it."""
        if not (self._turn.try_lock() and self._file.try_lock(shared)):
            return False
        self._turn.release()
        self._file.describe(shared)
        return True

    def held_by(self) -> str:
        """Return who holds the lock, for people."""
        return _holder(lock_folder() / _file_name(self.name))

    def release(self) -> None:
        """Release the lock and its place in the queue."""
        self._turn.release()
        self._file.release()


@contextlib.contextmanager
def hold(name: str, what: str, wait_s: float | None = None, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a device. Raises DeviceBusyError after `wait_s`, None for no limit."""
    lock = DeviceLock(name)
    try:
        wait_for(what, lambda: lock.try_take(shared) or None, lock.held_by, wait_s)
        yield
    finally:
        lock.release()


def holders(prefix: str) -> str:
    """Return who holds the locks whose names begin so; without one, whether this host had one until just now."""
    found, is_fresh = [], False
    for path in sorted(lock_folder().glob(f"{_legal(prefix)}*.lock")):
        probe = _LockFile(path.name)
        if not probe.try_lock(shared=True):
            found.append(_holder(path).removeprefix("held by "))
        probe.release()
        with contextlib.suppress(OSError):  # taking and releasing a lock both write its file
            is_fresh = is_fresh or time.time() - path.stat().st_mtime < _FRESH_S
    if found:
        return f"held by {'; '.join(found)}"
    if is_fresh:
        return "released on this host just now"
    return "busy, by what its tracker says; nobody on this host holds it"


class _LockFile:
    """A file of the shared folder with a lock of the kernel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: int | None = None
        self._is_locked = self._is_exclusive = False

    def try_lock(self, shared: bool = False) -> bool:
        if self._is_locked:
            return True
        path = lock_folder() / self.name
        self._open = _open_file(path) if self._open is None else self._open
        try:
            fcntl.flock(self._open, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not _is_same(path, self._open):  # removed meanwhile, such as by a cleaner of temporary files
            self.release()
            return False
        self._is_locked, self._is_exclusive = True, not shared
        return True

    def describe(self, shared: bool) -> None:
        """Write who holds it. A shared holder adds a line to those of others."""
        assert self._open is not None
        about = {"pid": os.getpid(), "user": _user(), "work": _work or _command(), "since": time.time()}
        with contextlib.suppress(OSError):  # a full disk must not stop a measurement
            if not shared or os.fstat(self._open).st_size > _MOST_BYTES:
                os.ftruncate(self._open, 0)
            os.lseek(self._open, 0, os.SEEK_END)
            os.write(self._open, (json.dumps(about) + "\n").encode())

    def release(self) -> None:
        if self._open is None:
            return
        if self._is_locked and self._is_exclusive:
            with contextlib.suppress(OSError):
                os.ftruncate(self._open, 0)
        os.close(self._open)
        self._open, self._is_locked = None, False


def _open_file(path: Path) -> int:
    """Open a regular file of the folder, made if missing. Raises StoreError.

    It never follows a link. It creates only with O_EXCL: the kernel (fs.protected_regular) refuses O_CREAT on a file
    that another user owns in such a folder.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    error: OSError | None = None
    for _try in range(20):
        try:
            opened = os.open(path, flags)
        except FileNotFoundError:
            try:
                opened = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            os.fchmod(opened, 0o666)  # not reduced by the umask: all users lock it
        except PermissionError as refused:
            error = refused
            time.sleep(0.02)  # another user may be between the two lines above
            continue
        except OSError as refused:
            error = refused
            break
        status = os.fstat(opened)
        if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
            return opened
        os.close(opened)
        error = OSError("it is no regular file with one name")
        break
    raise StoreError(f"{path} cannot be locked: {error}", "a regular file that every user may write", f"remove {path}")


def _is_same(path: Path, opened: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    status = os.fstat(opened)
    return (found.st_ino, found.st_dev) == (status.st_ino, status.st_dev)


def _file_name(name: str) -> str:
    return f"{_legal(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.lock"


def _legal(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", name)[:100]


def _holder(path: Path) -> str:
    """Return the text of the holder that wrote last and still lives."""
    described: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, StoreError, ValueError):
        opened = _open_file(path)
        try:
            lines = os.pread(opened, 2 * _MOST_BYTES, 0).decode("utf-8", errors="replace").splitlines()
        finally:
            os.close(opened)
        described = [one for line in lines if isinstance(one := json.loads(line), dict)]
    found = ""  # by the newest: of a container, or where /proc hides the processes of others
    for one in reversed(described):
        try:
            pid, since = int(one["pid"]), float(one["since"])
            user, work = (_shown(str(one[name])) for name in ("user", "work"))
        except (LookupError, TypeError, ValueError):
            continue
        text = f"held by {user}: {work} since {duration(max(0.0, time.time() - since))}"
        if Path(f"/proc/{pid}").exists():
            return text
        found = found or text
    return found or "held by another process"


def _shown(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)[:_LONGEST]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _command() -> str:
    return f"{shown_path(Path.cwd())} {Path(sys.argv[0] if sys.argv else '').name}".strip()


def shown_path(path: Path) -> str:
    """Return a path with ~ for the home folder."""
    with contextlib.suppress(ValueError, RuntimeError):
        return f"~/{path.relative_to(Path.home())}"
    return str(path)
