"""List the external data of an ONNX model in a sandbox, since a small file can exhaust memory in protobuf."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tvmflow.frontends.onnx.files import external_names, is_name
from tvmflow.sandbox.process import Policy, memory_for, reading_s, run_in_sandbox
from tvmflow.support.errors import ModelFileError
from tvmflow.support.plain_files import is_plain


def onnx_external_data(path: Path) -> dict[str, Path]:
    """Return name -> file of a model's external data. Raises ModelFileError unless each is a complete file
    beside it.
    """
    status = path.stat()
    return beside(path, _names(path.absolute(), status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=64)
def _names(path: Path, _changed: int, _size: int) -> object:
    """Return the sandbox's result, cached per file, since several cells use one model."""
    policy = Policy(reading_s(path), (path,), memory_bytes=memory_for(path), what=path.name)
    return run_in_sandbox(f"{external_names.__module__}:{external_names.__name__}", {"path": str(path)}, policy)


def beside(path: Path, names: object) -> dict[str, Path]:
    """Return the files of these names beside a model. Raises ModelFileError."""
    if not isinstance(names, list) or not all(isinstance(name, str) and is_name(name) for name in names):
        raise ModelFileError(
            f"{path.name} has external data, but not in files", "plain files next to the model", "export it again"
        )
    files = {name: path.parent / name for name in names}
    for name, file in files.items():
        if not is_plain(file):
            raise ModelFileError(
                f"no {name} next to {path.name}", "the external data of the model", "copy it there too"
            )
    return files
