"""Quarantine GPUs on which kernels compute wrong values, until the same network agrees with the CPU there.

One file per workspace. A device includes its driver's version: another version is another device.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from tvmflow.devices.gpu_facts import GpuFacts
from tvmflow.support.errors import StoreError
from tvmflow.support.files import write_atomic
from tvmflow.support.json_values import read_json, to_json


@dataclass(frozen=True)
class DifferingKernel:
    """A kernel whose outputs differ from the CPU's. error: None if not finite."""

    kernel: str
    error: float | None


@dataclass(frozen=True)
class Quarantined:
    """cell: whose kernels were compared; kernel: the first that differs; error: of the comparison, None if not finite;
    when: UTC.
    """

    gpu: GpuFacts
    cell: str
    kernel: str
    error: float | None
    when: str

    @property
    def reason(self) -> str:
        """Return the reason of the quarantine."""
        size = "no number" if self.error is None else f"error {self.error:.2g}"
        return f"kernel {self.kernel} of {self.cell} computes other values than the CPU ({size}, {self.when})"

    def to_json(self) -> dict[str, Any]:
        return {**to_json(self), "reason": self.reason}


def read_quarantine(root: Path) -> tuple[Quarantined, ...]:
    """Return the quarantined GPUs of a workspace. Raises StoreError for a damaged file."""
    path = _path(root)
    try:
        return read_json(tuple[Quarantined, ...], path)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}",
            "the GPUs in quarantine, as tvmflow wrote them",
            "delete it, then run 'tvmflow device agree' for the cells of your GPUs",
        ) from None


def note_agreement(root: Path, gpu: GpuFacts, cell: str, first: DifferingKernel | None) -> None:
    """Quarantine a GPU for a cell, or lift the quarantine. first: the first kernel that differs."""
    path, lock = _path(root), root / "artifacts" / ".locks" / "quarantine.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        before = read_quarantine(root)
        after = [one for one in before if (one.gpu, one.cell) != (gpu, cell)]
        if first is not None:
            when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
            after.append(Quarantined(gpu, cell, first.kernel, first.error, when))
        if after != list(before):
            write_atomic(path, json.dumps(to_json(after), indent=1) + "\n")


def _path(root: Path) -> Path:
    return root / "artifacts" / ".quarantine.json"
