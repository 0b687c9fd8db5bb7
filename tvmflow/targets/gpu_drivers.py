"""Remember the GPU drivers of targets' devices, in drivers.json of the workspace, which belongs into git.

A device need not stay attached, and a colleague without it must get the same recipe keys. What decides is the set of
drivers of all known units, so that units of a kind with different drivers do not tune against each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

from tvmflow.support.errors import StoreError
from tvmflow.support.files import write_atomic
from tvmflow.support.json_values import read_json
from tvmflow.targets.gpu_features import GPU_KINDS

DRIVERS_FILE = "drivers.json"


def known_drivers(root: Path, target: str, kind: str) -> str:
    """Return the drivers of the units of a target of this kind as one text, "" if it has no GPU or none was ever asked.

    Raises StoreError.
    """
    if kind not in GPU_KINDS:
        return ""
    return ", ".join(sorted(set(_read(root).get(target, {}).values())))


def note_driver(root: Path, target: str, unit: str, driver: str) -> None:
    """Store the driver of a unit of a target's device. Raises StoreError."""
    if _read(root).get(target, {}).get(unit) == driver:
        return
    lock = root / "artifacts" / ".locks" / f"{DRIVERS_FILE}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        known = {name: dict(units) for name, units in _read(root).items()}
        known.setdefault(target, {})[unit] = driver
        write_atomic(root / DRIVERS_FILE, json.dumps(known, indent=1, sort_keys=True) + "\n")


def _read(root: Path) -> Mapping[str, Mapping[str, str]]:
    """Return target -> unit -> driver."""
    path = root / DRIVERS_FILE
    try:
        return read_json(dict[str, dict[str, str]], path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} cannot be read: {' '.join(str(error).split())[:120]}",
            "target -> unit -> GPU driver, as written by tvmflow",
            "resolve the conflict of a merge in it; or remove it, then GPU cells are tuned again",
        ) from None
