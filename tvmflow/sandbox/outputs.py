"""Check the files that a sandbox left before anything reads them: names, types, sizes and modes by an allowlist."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from tvmflow.support.errors import ModelFileError

_MODE = 0o644


def check_outputs(folder: Path, allowed: Mapping[str, int], what: str) -> None:
    """Raise ModelFileError unless a folder contains only these files, plain ones of at most so many bytes; give each
    the usual mode.

    A symbolic link, a FIFO or a device would make a reader read something else, or wait; a second hard link could be
    written later.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            if entry.name not in allowed:
                raise _refusal(what, f"{entry.name[:100]!r}", f"only {', '.join(sorted(allowed)) or 'its reply'}")
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise _refusal(what, f"{entry.name}, which is no plain file", "plain files")
            if found.st_size > allowed[entry.name]:
                raise _refusal(what, f"{entry.name} of {found.st_size} bytes", f"at most {allowed[entry.name]}")
            if stat.S_IMODE(found.st_mode) != _MODE:
                Path(entry.path).chmod(_MODE)


def _refusal(what: str, left: str, expected: str) -> ModelFileError:
    return ModelFileError(f"reading {what} left {left}", expected, "import it again; if it is the same, report it")
