"""Write a source model as ONNX, for baselines, in a process of its own while its import goes on.

torch.onnx.export takes a quarter of an import and needs nothing of the rest but the exported program. It runs in a
fork, which has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tvmflow.frontends.source_model import SourceModel
from tvmflow.support.errors import first_line
from tvmflow.support.forks import ForkFailedError, can_fork, forked

_MOST_TEXT = 4000


@contextmanager
def exporting_onnx(source: SourceModel, path: Path) -> Iterator[Callable[[], str]]:
    """Yield a function that waits for the file and returns the reason why there is none, or an empty text: a failed
    export costs a baseline, not the cell. An export that nobody waited for is ended.
    """
    if not can_fork():
        yield lambda: _write(source, path)
        return
    with forked(lambda: _write_beside(source, path)) as wait:

        def finish() -> str:
            try:
                failure = wait().decode("utf-8", "replace")
            except ForkFailedError as error:
                failure = f"the export failed: {error}"
            if failure:
                path.unlink(missing_ok=True)
            return failure

        yield finish


def _write_beside(source: SourceModel, path: Path) -> bytes:
    """Write the file by one thread: the others belong to the import."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    return _write(source, path).encode()[:_MOST_TEXT]


def _write(source: SourceModel, path: Path) -> str:
    """Write the file; return the reason if that fails, or an empty text."""
    try:
        source.to_onnx(path)
    except Exception as error:
        path.unlink(missing_ok=True)
        return first_line(error)
    return ""
