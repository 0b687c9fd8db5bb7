"""Records and digests: what a stage made, and from what.

A record is the frozen value that a stage hands on. It names every output file with its size, sha256 (which we trust)
and md5 (which is the file's name in DVC's cache), and the whole recipe that made it. It is written into the folder of
the outputs, so that whoever brings back the folder brings back the record.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tvmflow.errors import StoreError

RECORD_NAME = "record.json"
RECORD_SCHEMA = 1
_CHUNK = 1 << 20


@dataclass(frozen=True)
class OutputFile:
    sha256: str
    md5: str
    size: int


@dataclass(frozen=True)
class Record:
    """What a stage made for a cell. Subclassed once per stage so that each arrow of the walk has its own type."""

    stage: str
    cell: str
    key: str
    recipe: dict[str, Any]
    outputs: dict[str, OutputFile]
    facts: dict[str, Any] = field(default_factory=dict)
    elapsed_s: float = 0.0
    created: str = ""

    def digest(self, only: Iterable[str] | None = None) -> str:
        """Return the sha256 over the output files (all, or those named): what the next stage is made from."""
        names = sorted(self.outputs if only is None else only)
        return digest_of({name: self.outputs[name].sha256 for name in names})


class FetchedModel(Record):
    """Weights file, labels, calibration, evaluation and golden inputs."""


class ImportedModel(Record):
    """Relax IR, weights, and the answers of the source framework."""


class QuantizedModel(Record):
    """Relax IR and weights in the cell's precision."""


class PackedModel(Record):
    """Relax IR and weights in the layout of the target."""


class TuningRecords(Record):
    """The best measured schedule of each workload."""


class BuiltLibrary(Record):
    """The compiled library, its manifest, and the IR after each phase."""


class DeployedLibrary(Record):
    """Which device loaded the library, and how it answered."""


class Scorecard(Record):
    """Accuracy, agreement, latency and size of one cell on one device."""


RECORD_TYPES: dict[str, type[Record]] = {
    "fetch": FetchedModel,
    "import_model": ImportedModel,
    "quantize": QuantizedModel,
    "graph_pack": PackedModel,
    "tune": TuningRecords,
    "build": BuiltLibrary,
    "deploy": DeployedLibrary,
    "evaluate": Scorecard,
}


def canonical_json(value: Any) -> str:
    """Return JSON that is equal exactly when the values are: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: Any) -> str:
    """Return the sha256 of a JSON-able value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> OutputFile:
    """Read a file once and return its digests and its size in bytes."""
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            md5.update(chunk)
            size += len(chunk)
    return OutputFile(sha256.hexdigest(), md5.hexdigest(), size)


def describe_folder(folder: Path) -> dict[str, OutputFile]:
    """Describe every file below a folder but the record itself, keyed by its path with forward slashes."""
    return {
        path.relative_to(folder).as_posix(): describe_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RECORD_NAME
    }


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, and a crash leaves one of them."""
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


def record_text(record: Record) -> str:
    return json.dumps({"schema": RECORD_SCHEMA, **asdict(record)}, sort_keys=True, indent=1)


def read_record(path: Path) -> Record:
    """Read a record. Raises StoreError when it is missing or damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return record_from(data)
    except FileNotFoundError:
        raise StoreError(f"no record at {path}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"damaged record {path}: {error}") from None


def record_from(data: Mapping[str, Any]) -> Record:
    if data["schema"] != RECORD_SCHEMA:
        raise ValueError(f"schema {data['schema']}, expected {RECORD_SCHEMA}")
    outputs = {str(name): OutputFile(**fields) for name, fields in data["outputs"].items()}
    for name in outputs:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"output {name!r} leaves its folder")
    rest = {k: v for k, v in data.items() if k not in ("schema", "outputs")}
    if digest_of(rest["recipe"]) != rest["key"]:
        raise ValueError("the key is not the digest of the recipe")
    return RECORD_TYPES[data["stage"]](outputs=outputs, **rest)


def first_difference(folder: Path, outputs: Mapping[str, OutputFile]) -> str | None:
    """Compare files on disk with their record. Return what is wrong with the first bad one, None when all are right."""
    for name, expected in outputs.items():
        path = folder / name
        try:
            if path.stat().st_size != expected.size or sha256_of(path) != expected.sha256:
                return f"{name} was altered"
        except FileNotFoundError:
            return f"{name} is gone"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None
