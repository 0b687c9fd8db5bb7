"""Map the core numbers in an Arm device's /proc/cpuinfo to LLVM's names, the values of `mcpu`.

It is independent of the connection to the device.
"""

from __future__ import annotations

import itertools
import re

# Implementer and part of the register MIDR_EL1 -> LLVM's name; Arm's own, then Qualcomm's names for cores of Arm.
_CORES = {
    (0x41, 0xD03): "cortex-a53",
    (0x41, 0xD04): "cortex-a35",
    (0x41, 0xD05): "cortex-a55",
    (0x41, 0xD07): "cortex-a57",
    (0x41, 0xD08): "cortex-a72",
    (0x41, 0xD09): "cortex-a73",
    (0x41, 0xD0A): "cortex-a75",
    (0x41, 0xD0B): "cortex-a76",
    (0x41, 0xD0C): "neoverse-n1",
    (0x41, 0xD0D): "cortex-a77",
    (0x41, 0xD40): "neoverse-v1",
    (0x41, 0xD41): "cortex-a78",
    (0x41, 0xD44): "cortex-x1",
    (0x41, 0xD46): "cortex-a510",
    (0x41, 0xD47): "cortex-a710",
    (0x41, 0xD48): "cortex-x2",
    (0x41, 0xD49): "neoverse-n2",
    (0x41, 0xD4B): "cortex-a78c",
    (0x41, 0xD4C): "cortex-x1c",
    (0x41, 0xD4D): "cortex-a715",
    (0x41, 0xD4E): "cortex-x3",
    (0x41, 0xD4F): "neoverse-v2",
    (0x41, 0xD80): "cortex-a520",
    (0x41, 0xD81): "cortex-a720",
    (0x41, 0xD82): "cortex-x4",
    (0x41, 0xD85): "cortex-x925",
    (0x41, 0xD87): "cortex-a725",
    (0x51, 0x001): "oryon-1",
    (0x51, 0x800): "cortex-a73",
    (0x51, 0x801): "cortex-a53",
    (0x51, 0x802): "cortex-a75",
    (0x51, 0x803): "cortex-a55",
    (0x51, 0x804): "cortex-a76",
    (0x51, 0x805): "cortex-a55",
}
_CORES |= {
    (0x41, 0xC05): "cortex-a5",
    (0x41, 0xC07): "cortex-a7",
    (0x41, 0xC08): "cortex-a8",
    (0x41, 0xC09): "cortex-a9",
    (0x41, 0xC0D): "cortex-a12",
    (0x41, 0xC0E): "cortex-a17",
    (0x41, 0xC0F): "cortex-a15",
    (0x51, 0x04D): "krait",
    (0x51, 0x06F): "krait",
}
_NUMBERS = re.compile(r"^CPU (implementer|part)\s*: (0x[0-9a-fA-F]{1,8})\s*$", re.MULTILINE)


def core_of(midr: str) -> str:
    """Return the name of a core by its register MIDR_EL1 in hexadecimal; numbers if it has no name, "" for invalid
    text.
    """
    try:
        register = int(midr, 16)
    except ValueError:
        return ""
    implementer, part = register >> 24 & 0xFF, register >> 4 & 0xFFF
    return _CORES.get((implementer, part), f"{implementer:#x}/{part:#x}")


def cores_of(cpuinfo: str) -> str:
    """Return the cores in order, as "4 cortex-a55, 4 cortex-a76"; numbers for unnamed cores, "" if none is listed."""
    implementer, names = 0, []
    for what, number in _NUMBERS.findall(cpuinfo):
        if what == "implementer":
            implementer = int(number, 16)
        else:
            names.append(_CORES.get((implementer, int(number, 16)), f"{implementer:#x}/{number}"))
    return ", ".join(f"{len(list(group))} {name}" for name, group in itertools.groupby(names))
