"""Remember the processors of devices for targets with `mcpu: device`, in the cache folder.

A device need not stay attached. Recipe keys contain the processor's name instead of `device`, so that another phone
with another processor is compiled for anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from filelock import FileLock

from tvmflow.config.params import TargetEntry
from tvmflow.support.files import digest_of, write_atomic
from tvmflow.toolchain.environments import cache_folder

DEVICE = "device"


def read_record(entry: TargetEntry) -> tuple[str, tuple[str, ...]] | None:
    """Return LLVM's name and attributes of the processor of an entry's device, None if it was never probed."""
    found = _known().get(_key(entry))
    if not isinstance(found, dict) or not isinstance(found.get("attributes"), list):
        return None
    return str(found.get("mcpu")), tuple(map(str, found["attributes"]))


def record(entry: TargetEntry, mcpu: str, attributes: tuple[str, ...]) -> None:
    """Store the processor of an entry's device."""
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
