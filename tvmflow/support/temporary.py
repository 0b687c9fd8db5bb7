"""Make the temporary folders of tvmflow, and remove those that killed processes left.

A folder is named `tvmflow-KIND-NAMESPACE-PID-START-RANDOM` after the process that made it. The first folder that a
process makes removes those of processes that have ended: never one of a living process, nor of another container.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tvmflow.support.private_places import check_private

_NAME = re.compile(r"tvmflow-[a-z]+-(\d+)-(\d+)-(\d+)-\w+")
_swept: set[str] = set()


@contextlib.contextmanager
def temporary_folder(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a private folder that is removed at the end. kind: letters, what it is for; parent: by default the system's
    folder for temporary files.
    """
    folder = make_folder(kind, parent)
    try:
        yield folder
    finally:
        remove_folder(folder)


def check_temporary() -> None:
    """Raise StoreError if the system's folder for temporary files, which compilers use too, is not safe from others."""
    check_private(Path(tempfile.gettempdir()), "the folder for temporary files")


def make_folder(kind: str, parent: Path | None = None) -> Path:
    """Make a private folder that the caller removes; the next command does if this process is killed before."""
    where = str(parent or tempfile.gettempdir())
    if where not in _swept:
        if parent is None:
            check_temporary()
        _swept.add(where)
        sweep(Path(where))
    pid = os.getpid()
    prefix = f"tvmflow-{kind}-{_namespace()}-{pid}-{_start_of(pid)}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=where)).resolve()


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, also folders without permission. What cannot be removed stays for the
    next command.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir():
        for place, _, _ in os.walk(folder):  # never through a link
            with contextlib.suppress(OSError):
                os.chmod(place, 0o700)  # noqa: PTH101
        shutil.rmtree(folder, ignore_errors=True)


def sweep(where: Path) -> None:
    """Remove the folders of processes that have ended."""
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in list(entries):
            match = _NAME.fullmatch(entry.name)
            if match is None or int(match[1]) != _namespace():
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
                if is_ours and int(match[3]) and _start_of(int(match[2])) != int(match[3]):
                    remove_folder(Path(entry.path))


def _namespace() -> int:
    """Return the number of the namespace that process ids are of: a container has its own."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return 0


def _start_of(pid: int) -> int:
    """Return when a process started, in clock ticks since the system did; 0 for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()  # the name of a program may hold anything
    return 0 if fields[0] in "ZX" else int(fields[19])
