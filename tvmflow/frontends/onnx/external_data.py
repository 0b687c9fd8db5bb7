"""List the external data of an ONNX model in a sandbox, since a small file can exhaust memory in protobuf."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tvmflow.frontends.onnx.files import external_ends, files_beside, is_name
from tvmflow.sandbox.process import Policy, memory_for, reading_s, run_in_sandbox
from tvmflow.support.errors import ModelFileError


def onnx_external_data(path: Path) -> dict[str, Path]:
    """Return name -> file of a model's external data. Raises ModelFileError unless each is a complete file
    beside it.
    """
    status = path.stat()
    return beside(path, _ends(path.absolute(), status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=64)
def _ends(path: Path, _changed: int, _size: int) -> object:
    """Return the sandbox's result, cached per file, since several cells use one model."""
    policy = Policy(reading_s(path), (path,), memory_bytes=memory_for(path), what=path.name)
    return run_in_sandbox(f"{external_ends.__module__}:{external_ends.__name__}", {"path": str(path)}, policy)


def beside(path: Path, ends: object) -> dict[str, Path]:
    """Return the files beside a model that a sandbox named, with their ends. Raises ModelFileError."""
    if not isinstance(ends, dict) or not all(
        isinstance(name, str) and is_name(name) and type(end) is int and end >= 0 for name, end in ends.items()
    ):
        raise ModelFileError(
            f"{path.name} has external data, but not in files", "plain files next to the model", "export it again"
        )
    return files_beside(path, ends)
