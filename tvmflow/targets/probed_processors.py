"""What devices said that their processors are, for targets with `mcpu: device`: kept in the cache folder, so that a
device need not stay attached.

Recipe keys have the name and not `device`: another phone with another processor compiles anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from filelock import FileLock

from tvmflow.config.params import TargetEntry
from tvmflow.support.files import digest_of, write_atomic
from tvmflow.toolchain.environments import cache_folder

DEVICE = "device"


def recorded(entry: TargetEntry) -> tuple[str, tuple[str, ...]] | None:
    """Return LLVM's name of the processor of an entry's device, and where that differs from the name; None where it was
    never asked.
    """
    found = _known().get(_key(entry))
    if not isinstance(found, dict) or not isinstance(found.get("attributes"), list):
        return None
    return str(found.get("mcpu")), tuple(map(str, found["attributes"]))


def record(entry: TargetEntry, mcpu: str, attributes: tuple[str, ...]) -> None:
    """Keep what the device of an entry said."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        write_atomic(
            path,
            json.dumps(
                {**_known(), _key(entry): {"mcpu": mcpu, "attributes": list(attributes)}}, indent=1, sort_keys=True
            ),
        )


def _path() -> Path:
    return cache_folder() / "processors.json"


def _known() -> dict[str, object]:
    try:
        found = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _key(entry: TargetEntry) -> str:
    return digest_of([entry.mtriple, entry.device.transport, entry.device.key, entry.device.options])[:32]
