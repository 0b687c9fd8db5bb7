"""Read, write and describe files: canonical JSON, sha256, atomic writes, groups of arrays."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmflow.support.digests import Digests, OutputFile

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Return JSON that is equal exactly when the values are: sorted keys, no spaces, no NaN."""
    return _CANONICAL.encode(value)


def digest_of(value: Any) -> str:
    """Return the sha256 of a JSON-able value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> OutputFile:
    """Read a file once and return its digests and size."""
    return Digests().describe(path)


def write_atomic(path: Path, text: str) -> None:
    """Write a file atomically: readers and crashes see either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Write all files below a folder to the disk, and the folder."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def save_arrays(path: Path, **groups: Sequence[Any]) -> None:
    """Write groups of numpy arrays to an .npz file: the first of a group as NAME, the others as NAME.1, NAME.2, ..."""
    import numpy as np

    arrays = {
        name if index == 0 else f"{name}.{index}": array
        for name, group in groups.items()
        for index, array in enumerate(group)
    }
    np.savez(path, **arrays)


def load_arrays(path: Path, name: str) -> tuple[Any, ...]:
    """Return a group of arrays written by `save_arrays`, empty if there is none."""
    import numpy as np

    with np.load(path, allow_pickle=False) as data:
        count = sum(stored == name or stored.startswith(f"{name}.") for stored in data.files)
        return tuple(np.asarray(data[name if index == 0 else f"{name}.{index}"]) for index in range(count))
