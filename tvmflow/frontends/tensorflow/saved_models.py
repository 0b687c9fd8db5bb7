"""Find a SavedModel in what people have: a folder, a .zip, TF Hub's .tar.gz; or a frozen graph of TensorFlow 1.

Of a folder and of an archive only the files of a SavedModel are taken. What is in them is TensorFlow's to read, in its
tool environment and in the sandbox of the stage.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tvmflow.frontends.archives import ARCHIVE_ERRORS, MAX_ENTRIES, MAX_NAME, MAX_UNPACKED_BYTES
from tvmflow.support.errors import ModelFileError
from tvmflow.support.plain_files import is_plain

GRAPH = "saved_model.pb"
PARTS = "saved_model"  # folder of a stage with the other files of a SavedModel folder
_FOLDERS = ("variables", "assets")
_SAVED_MODEL_START = b"\x08\x01\x12"  # schema version 1, then a graph with its signatures
_BLOCK = 1 << 20


def is_saved_model(path: Path) -> bool:
    """Return whether a .pb file is the graph of a SavedModel, not a frozen graph."""
    with path.open("rb") as file:
        return file.read(3) == _SAVED_MODEL_START


def companions(path: Path) -> dict[str, Path]:
    """Return the variables and assets beside a saved_model.pb: name in the stage's folder -> file; none for another
    file.
    """
    if path.name != GRAPH or not is_saved_model(path):
        return {}
    found: dict[str, Path] = {}
    for folder in _FOLDERS:
        for file in sorted((path.parent / folder).rglob("*")):
            if file.is_dir() and not file.is_symlink():
                continue
            if not is_plain(file) or len(found) >= MAX_ENTRIES:
                raise ModelFileError(
                    f"{file} is no plain file, or one of more than {MAX_ENTRIES}",
                    "a SavedModel folder of plain files, no links",
                    "save the model again, or copy the file there",
                )
            found[f"{PARTS}/{file.relative_to(path.parent).as_posix()}"] = file
    return found


def unpacked_model(path: Path, work: Path) -> Path:
    """Return the SavedModel folder, or the frozen graph, of a fetched file; what must be unpacked lies below `work`.

    Raises ModelFileError.
    """
    if path.suffix == ".pb":
        if not is_saved_model(path):
            return path
        folder, parts = work / "model", path.parent / PARTS
        _copy(path, folder / GRAPH)
        for name in _FOLDERS:
            for file in (file for file in (parts / name).rglob("*") if file.is_file()):
                _copy(file, folder / file.relative_to(parts))
        return folder
    try:
        if path.suffix == ".zip":
            _unpack_zip(path, work / "model")
        else:
            _unpack_tar(path, work / "model")
    except (*ARCHIVE_ERRORS, tarfile.TarError, NotImplementedError) as error:
        expected = "an archive of a SavedModel folder"
        raise ModelFileError(f"{path.name} cannot be unpacked: {error}", expected) from error
    models = sorted((work / "model").rglob(GRAPH))
    if len(models) != 1:
        raise ModelFileError(f"{path.name} contains {len(models)} {GRAPH} files", "one SavedModel folder")
    return models[0].parent


def _copy(file: Path, to: Path) -> None:
    """Copy bytes alone: a sandbox sets no times and no rights."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with file.open("rb") as source, to.open("xb") as target:
        shutil.copyfileobj(source, target, _BLOCK)


def _unpack_zip(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        _check(path, ((entry.filename, entry.file_size) for entry in archive.infolist()))
        for one in archive.infolist():
            archive.extract(one, folder)


def _unpack_tar(path: Path, folder: Path) -> None:
    """Unpack plain files. tarfile's filter refuses what would leave the folder."""
    with tarfile.open(path, "r:gz") as archive:
        size = 0
        for count, entry in enumerate(archive, 1):
            size += entry.size
            if count > MAX_ENTRIES:
                raise ValueError(f"more than {MAX_ENTRIES} entries")
            _check(path, [(entry.name, size)])
            if entry.isdir():
                continue
            if not entry.isfile():
                raise ValueError(f"{entry.name} is no plain file")
            archive.extract(entry, folder, set_attrs=False, filter="data")


def _check(path: Path, entries: Iterable[tuple[str, int]]) -> None:
    size = 0
    for count, (name, one) in enumerate(entries, 1):
        size += one
        parts = PurePosixPath(name).parts
        if len(name) > MAX_NAME or not name.isprintable() or name.startswith("/") or ".." in parts:
            raise ValueError(f"the name {name[:100]!r}")
        if size > MAX_UNPACKED_BYTES or count > MAX_ENTRIES:
            raise ModelFileError(f"{path.name} unpacks to {size} bytes", f"at most {MAX_UNPACKED_BYTES}")
