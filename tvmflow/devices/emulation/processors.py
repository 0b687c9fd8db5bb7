"""List the processors that qemu emulates; LLVM and qemu use the same names."""

from __future__ import annotations

from dataclasses import dataclass

from tvmflow.support.errors import UnknownNameError


@dataclass(frozen=True)
class Processor:
    """features: LLVM features that kernels use and qemu supports; other instructions end a program with SIGILL."""

    name: str
    features: tuple[str, ...]


PROCESSORS = {
    row.name: row
    for row in (
        Processor("cortex-a53", ("neon",)),
        Processor("cortex-a72", ("neon",)),
        Processor("cortex-a76", ("neon", "dotprod", "fullfp16")),
        Processor("max", ("neon", "dotprod", "fullfp16", "fp16fml", "i8mm", "bf16", "sve", "sve2")),
    )
}


def processor_named(name: str) -> Processor:
    """Return a processor by name. Raises UnknownNameError with the legal names."""
    if name not in PROCESSORS:
        raise UnknownNameError(f"no emulated processor {name!a}", legal=PROCESSORS, name=name)
    return PROCESSORS[name]
