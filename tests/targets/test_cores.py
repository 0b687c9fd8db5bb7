"""Test the table of Arm cores: every name is a legal `mcpu`."""

from __future__ import annotations

from tvmflow.targets.cores import _CORES, cores_of
from tvmflow.toolchain.versions import known_processors


def test_every_core_has_a_name_of_llvms() -> None:
    assert set(_CORES.values()) <= known_processors("aarch64")[0] | known_processors("armv7a")[0]


def test_cores_are_counted_in_their_order() -> None:
    one = (
        "processor\t: {}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x2\nCPU part\t: "
        "{}\nCPU revision\t: 0\n\n"
    )
    phone = "".join(one.format(at, part) for at, part in enumerate(["0xd05"] * 4 + ["0xd41"] * 3 + ["0xd44"]))
    assert cores_of(phone) == "4 cortex-a55, 3 cortex-a78, 1 cortex-x1"
    assert cores_of(one.format(0, "0xd05").replace("0x41", "0x61")) == "1 0x61/0xd05"
    assert cores_of("model name : a processor\nflags : fpu") == "" and cores_of("CPU part : 0xzz") == ""
