"""Define records: the outputs of a stage and the recipe that made them.

A record lists every output file with its size, sha256 (which is trusted) and md5 (its name in DVC's cache), and the
complete recipe. It is written into the output folder, so that whoever restores the folder restores the record.

Digests and recipe key protect from accidents: damage, files of another run, a stale stage. They do not protect from
someone who writes into a shared remote, who can compute them for files of his own. With TVMFLOW_RECORDS_SECRET, the
same on all machines of a team, records are signed (HMAC-SHA256), and one without that signature is not used.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tvmflow.support.digests import Digests, OutputFile
from tvmflow.support.errors import StoreError, UsageError, first_line
from tvmflow.support.files import canonical_json, digest_of

RECORD_NAME = "record.json"
LIBRARIES = ("library.so", "network.so")  # of build: the library for TVM, and the one for apps, if any
RECORD_SCHEMA = 1
SECRET = "TVMFLOW_RECORDS_SECRET"  # noqa: S105 (the name of a variable)
_SHORTEST_SECRET = 16


@dataclass(frozen=True)
class Record:
    """The outputs of a stage for a cell. steps: of its work, with the seconds after which each began."""

    stage: str
    cell: str
    key: str
    recipe: dict[str, Any]
    outputs: dict[str, OutputFile]
    facts: dict[str, Any] = field(default_factory=dict)
    elapsed_s: float = 0.0
    created: str = ""
    steps: tuple[tuple[str, float], ...] = ()

    def digest(self, only: Iterable[str] | None = None) -> str:
        """Return the sha256 over the output files (all, or those named), an input of the next stage."""
        names = sorted(self.outputs if only is None else only)
        return digest_of({name: self.outputs[name].sha256 for name in names})


def describe_folder(folder: Path, digests: Digests | None = None) -> dict[str, OutputFile]:
    """Return the description of every file below a folder, except the record, by its path with forward slashes."""
    digests = digests or Digests()
    return {
        path.relative_to(folder).as_posix(): digests.describe(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RECORD_NAME
    }


def record_text(record: Record) -> str:
    """Return a record as JSON, signed if there is a secret."""
    data = {"schema": RECORD_SCHEMA, **asdict(record)}
    if (secret := _secret()) is not None:
        data["hmac"] = _signature(data, secret)
    return json.dumps(data, sort_keys=True, indent=1)


def _secret() -> bytes | None:
    """Return the secret that signs records, None without one. Raises UsageError for a short one."""
    text = os.environ.get(SECRET)
    if text is None:
        return None
    if len(text) < _SHORTEST_SECRET:
        raise UsageError(
            f"{SECRET} has {len(text)} characters",
            f"at least {_SHORTEST_SECRET}",
            "make one with 'openssl rand -hex 32'",
        )
    return text.encode()


def _signature(data: Mapping[str, Any], secret: bytes) -> str:
    return hmac.digest(secret, canonical_json(data).encode(), "sha256").hex()


def read_record(path: Path, known: tuple[str, Mapping[str, Any]] | None = None) -> Record:
    """Read a record. Raises StoreError if it is missing or damaged. known: as for `record_from`."""
    try:
        text = path.read_text(encoding="utf-8")
        return (_record_of(text, known) if known else None) or record_from(json.loads(text), known)
    except FileNotFoundError:
        raise StoreError(f"no record at {path}") from None
    except OSError as error:
        raise StoreError(f"record {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"damaged record {path}: {first_line(error)}") from None


def _record_of(text: str, known: tuple[str, Mapping[str, Any]]) -> Record | None:
    """Return a record if it has this key, without parsing its recipe, which is nearly all of its text; else None."""
    before, _, recipe = text.partition('\n "recipe": {\n')
    _, _, after = recipe.partition("\n },\n")  # nested values are indented deeper, and no JSON text has a line break
    if f'"key": "{known[0]}"' not in before or not after:
        return None
    data = json.loads(f"{before}{after}")
    return record_from({**data, "recipe": known[1]}, known) if data["key"] == known[0] else None


def record_from(data: Mapping[str, Any], known: tuple[str, Mapping[str, Any]] | None = None) -> Record:
    """Return a record from its JSON. Raises ValueError if it contradicts itself.

    known: a key and its recipe, whose digest need not be computed again: that takes longer than reading the record.
    """
    if data["schema"] != RECORD_SCHEMA:
        raise ValueError(f"schema {data['schema']}, expected {RECORD_SCHEMA}")
    outputs = {str(name): OutputFile(**fields) for name, fields in data["outputs"].items()}
    for name in outputs:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"output {name!r} leaves its folder")
    secret = _secret()
    if secret is not None:
        signed = {name: value for name, value in data.items() if name != "hmac"}
        if not hmac.compare_digest(str(data.get("hmac", "")), _signature(signed, secret)):
            raise ValueError(f"it is not signed with {SECRET}")
    rest = {k: v for k, v in data.items() if k not in ("schema", "outputs", "hmac", "steps")}
    if (rest["key"], rest["recipe"]) != known and digest_of(rest["recipe"]) != rest["key"]:
        raise ValueError("the key is not the digest of the recipe")
    steps = tuple((str(text), float(began)) for text, began in data.get("steps", ()))
    return Record(outputs=outputs, steps=steps, **rest)


def first_difference(
    folder: Path, outputs: Mapping[str, OutputFile], digests: Digests, only: Iterable[str] | None = None
) -> str | None:
    """Compare files on disk (all, or those named) with their record. Return what is wrong with the first bad one, or
    None.
    """
    place = os.fspath(folder)
    for name in outputs if only is None else only:
        path, expected = f"{place}/{name}", outputs.get(name)  # a text: making thousands of Paths takes seconds
        if expected is None:
            return f"{name} was never made"
        try:
            if os.stat(path).st_size != expected.size or digests.sha256_of(path) != expected.sha256:  # noqa: PTH116
                return f"{name} was altered"
        except FileNotFoundError:
            return f"{name} is gone"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None
