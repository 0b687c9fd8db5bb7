"""Ask in a sandbox which files belong to an ONNX model: a small file may take protobuf all the memory there is."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tvmflow.frontends.onnx.files import external_names, is_name
from tvmflow.sandbox.process import Policy, memory_for, run_in_sandbox
from tvmflow.support.errors import ModelFileError

_TIMEOUT_S = 300.0


def onnx_external_data(path: Path) -> dict[str, Path]:
    """Return name -> file of a model's external data. Raises ModelFileError unless each is a whole file beside it."""
    status = path.stat()
    return beside(path, _names(path.absolute(), status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=64)
def _names(path: Path, _changed: int, _size: int) -> object:
    """Return what the sandbox returned, asked once for a file: a walk asks for every cell of a model."""
    policy = Policy(_TIMEOUT_S, (path.parent, path.resolve()), memory_bytes=memory_for(path), what=path.name)
    return run_in_sandbox(f"{external_names.__module__}:{external_names.__name__}", {"path": str(path)}, policy)


def beside(path: Path, names: object) -> dict[str, Path]:
    """Return the files of these names beside a model, which a sandbox gave. Raises ModelFileError."""
    if not isinstance(names, list) or not all(isinstance(name, str) and is_name(name) for name in names):
        raise ModelFileError(
            f"{path.name} has external data in no files", "plain files beside the model", "export it again"
        )
    files = {name: path.parent / name for name in names}
    for name, file in files.items():
        if file.is_symlink() or not file.is_file():
            raise ModelFileError(f"no {name} beside {path.name}", "the external data of the model", "bring it too")
    return files
