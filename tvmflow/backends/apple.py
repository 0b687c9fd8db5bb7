"""Compile for Apple's systems on arm64: the CPU's kernels as an archive of object files, which Xcode links into an app.

No machine that runs them was at hand: what is made here was inspected, and linked, and never run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.backends.cpu import CpuBackend
from tvmflow.support.errors import StageError, UsageError
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.triples import triple_of

if TYPE_CHECKING:
    from tvmflow.config.params import TargetEntry

_EXPECTED = "aarch64-apple-ios15.0, aarch64-apple-ios15.0-simulator or aarch64-apple-macos12.0"


class AppleBackend(CpuBackend):
    """The backend of iOS, its simulator and macOS. Its libraries are not for TVM's virtual machine."""

    has_machine = False

    @classmethod
    def resolve(cls, entry: TargetEntry) -> ResolvedTarget:
        if not triple_of(entry.mtriple or "").is_apple:
            raise UsageError(
                f"mtriple: {entry.mtriple or 'none'} of a target of kind apple", _EXPECTED, "name it with the version"
            )
        if entry.mcpu == "host":
            raise UsageError("mcpu: host of a target of kind apple", "the oldest processor, as apple-a7 or apple-a14")
        return super().resolve(entry)

    def export(self, executable: Any, path: Path) -> None:
        raise StageError("a library for TVM's virtual machine on Apple's systems", "network.so, an archive without TVM")
