"""Parse a target triple: architecture, system, Android API level.

Processor names are checked in targets/processors.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANDROID_LEVEL = 24  # Android 7, the default
ARM32 = "armv7a"
WASM = "wasm32"
# Suffixes of 32-bit Arm systems: the floating-point calling convention.
_SYSTEM = re.compile(r"(gnu|musl|android)(eabihf|eabi)?(\d*)")
APPLE = re.compile(r"apple-(ios|macos)(\d{1,2}\.\d)(-simulator)?")  # system, oldest version, on a Mac


@dataclass(frozen=True)
class Triple:
    """system: gnu, musl, android, wasi, macos, ios or ios-simulator, else the triple's text; level: minimum Android API
    level; version: of Apple's systems, the oldest.
    """

    architecture: str
    system: str
    level: int = ANDROID_LEVEL
    version: str = ""

    @property
    def is_apple(self) -> bool:
        return bool(self.version)

    @property
    def machine(self) -> str:
        """Return the architecture for compilers; 32-bit Arm's version is a separate option."""
        return "arm" if self.architecture == ARM32 else self.architecture

    @property
    def ending(self) -> str:
        """Return the system with the architecture's suffix, such as gnu, gnueabihf, androideabi."""
        if self.architecture != ARM32:
            return self.system
        return self.system + ("eabi" if self.system == "android" else "eabihf")


def triple_of(mtriple: str) -> Triple:
    """Return the parts of a triple."""
    parts = mtriple.split("-")
    if apple := APPLE.fullmatch("-".join(parts[1:])):
        return Triple(parts[0], apple[1] + (apple[3] or ""), version=apple[2])
    found = _SYSTEM.fullmatch(parts[-1])
    if found is None:
        return Triple(parts[0], parts[-1])
    return Triple(parts[0], found[1], int(found[3] or ANDROID_LEVEL))
