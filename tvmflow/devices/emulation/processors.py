"""List the processors that qemu emulates; LLVM and qemu use the same names."""

from __future__ import annotations

from dataclasses import dataclass

from tvmflow.support.errors import UnknownNameError


@dataclass(frozen=True)
class Processor:
    """features: LLVM features that kernels use and qemu supports; other instructions end a program with SIGILL.

    caches: of usual cores of this kind, the data cache's KiB and ways, then L2's; lines have 64 bytes. Documents of the
    cores leave some sizes to who builds them.
    """

    name: str
    features: tuple[str, ...]
    caches: tuple[int, int, int, int]


PROCESSORS = {
    row.name: row
    for row in (
        Processor("cortex-a53", ("neon",), (32, 4, 512, 16)),
        Processor("cortex-a72", ("neon",), (32, 2, 1024, 16)),
        Processor("cortex-a76", ("neon", "dotprod", "fullfp16"), (64, 4, 256, 8)),
        Processor("max", ("neon", "dotprod", "fullfp16", "fp16fml", "i8mm", "bf16", "sve", "sve2"), (64, 4, 1024, 8)),
    )
}


def processor_named(name: str) -> Processor:
    """Return a processor by name. Raises UnknownNameError with the legal names."""
    if name not in PROCESSORS:
        raise UnknownNameError(f"no emulated processor {name!a}", legal=PROCESSORS, name=name)
    return PROCESSORS[name]
