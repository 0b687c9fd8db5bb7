"""Explain errors of the system, and those of others that a full disk causes: of databases, of processes that died."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from tvmflow.support.errors import StageCrashedError, StageError, ToolchainError, TvmflowError, cause, from_os_error
from tvmflow.support.files import why_not_writable


def explain(error: Exception, root: Path) -> TvmflowError | None:
    """Return an error as one of ours; None for one of another package while the workspace `root` can be written."""
    if isinstance(error, OSError):
        return from_os_error(error, "working in")
    if isinstance(error, TvmflowError) and not isinstance(error, StageCrashedError | ToolchainError):
        return error
    if os.strerror(errno.ENOSPC) in str(error):  # said by a linker, which has given back what it took
        return from_os_error(OSError(errno.ENOSPC, "", str(root)), "working in")
    return why_not_writable(root) or (error if isinstance(error, TvmflowError) else None)


def explain_in_cell(error: Exception, root: Path, what: str) -> TvmflowError:
    """Return an error of one cell as one of ours, so that the other cells go on. what: began it."""
    unexpected = StageError(f"{what} ended with {cause(error)}", hint="report this; the other cells went on")
    return explain(error, root) or unexpected


@contextlib.contextmanager
def explains_faults(root: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        known = explain(error, root)
        if known is None or known is error:
            raise
        raise known from error
