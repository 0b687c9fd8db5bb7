"""What a target's triple says: architecture, system, API level. Names of processors are checked in
targets/processors.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANDROID_LEVEL = 24  # Android 7, where a triple names none
ARM32 = "armv7a"
# What 32-bit Arm's systems have behind their names: how functions take floats.
_SYSTEM = re.compile(r"(gnu|musl|android)(eabihf|eabi)?(\d*)")


@dataclass(frozen=True)
class Triple:
    """system: gnu, musl or android, else what stands there; level: API level of Android that a library needs at
    least.
    """

    architecture: str
    system: str
    level: int = ANDROID_LEVEL

    @property
    def machine(self) -> str:
        """Return the architecture as compilers of 32-bit Arm name it, whose version is an option."""
        return "arm" if self.architecture == ARM32 else self.architecture

    @property
    def ending(self) -> str:
        """Return the system's name with what the architecture's has behind it, as gnu, gnueabihf, androideabi."""
        if self.architecture != ARM32:
            return self.system
        return self.system + ("eabi" if self.system == "android" else "eabihf")


def triple_of(mtriple: str) -> Triple:
    """Return the parts of a triple that is compiled for."""
    parts = mtriple.split("-")
    found = _SYSTEM.fullmatch(parts[-1])
    if found is None:
        return Triple(parts[0], parts[-1])
    return Triple(parts[0], found[1], int(found[3] or ANDROID_LEVEL))
