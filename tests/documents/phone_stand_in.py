"""Stand in for a phone with a CPU and a GPU: its programs run as arm64 code, its GPU is PoCL and lavapipe.

Android's NDK is a compiler for Linux on arm64 under the NDK's names, since the phone's programs run in a root of Linux.
"""

from __future__ import annotations

import contextlib
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.devices.arm64_gpus import Arm64Gpus, arm64_gpus
from tests.devices.fake_phone import FakePhone
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.toolchain.compilers import compiler_named

PROCESSOR = "cortex-a76"
_CORE = "Features\t: fp asimd asimdhp asimddp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n\n"


@dataclass(frozen=True)
class StandIn:
    phone: FakePhone
    gpus: Arm64Gpus
    ndk: Path


@contextlib.contextmanager
def phone_stand_in(system: EmulatedSystem, adb: str, folder: Path) -> Iterator[StandIn]:
    """Yield a phone that adb reaches, its drivers, and a folder for ANDROID_NDK_HOME. Raises DeviceError,
    ToolchainError.
    """
    gpus, properties = arm64_gpus(system), {"ro.product.cpu.abi": "arm64-v8a", "ro.soc.model": "SM8150"}
    ndk = write_ndk(folder / "ndk")
    with FakePhone(folder / "phone", properties, emulator=gpus.emulator(system, PROCESSOR)) as phone:
        (phone.folder / "cpuinfo").write_text(2 * _CORE)
        yield StandIn(phone, gpus, ndk)
        subprocess.run([adb, "disconnect", phone.serial], capture_output=True, check=False)


def write_ndk(folder: Path, architecture: str = "aarch64") -> Path:
    """Write an NDK whose clang compiles for Linux; return the folder for ANDROID_NDK_HOME. Raises ToolchainError."""
    compiler = compiler_named("zig").command(f"{architecture}-linux-gnu")
    clang = folder / "toolchains" / "llvm" / "prebuilt" / f"linux-{platform.machine()}" / "bin"
    clang.mkdir(parents=True)
    (folder / "source.properties").write_text("Pkg.Revision = 27.2.12479018\n")
    refused = "|".join(compiler.refuses)
    words = " ".join(f"'{word}'" for word in compiler.words)
    (clang / f"{architecture}-linux-android24-clang").write_text(
        f'#!/bin/sh\nfor word do\n  shift\n  case $word in {refused}) continue ;; esac\n  set -- "$@" "$word"\ndone\n'
        f'exec {words} "$@"\n'
    )
    for file in clang.iterdir():
        file.chmod(0o755)
    return folder
