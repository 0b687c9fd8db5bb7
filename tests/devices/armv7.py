"""Set up 32-bit Arm for tests: Debian's armhf and armel C libraries and qemu-arm, in the cache folder, without root.

armhf's functions take floats in registers of vectors, as linux-armv7's libraries do, armel's in those of integers, as
Android's do.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.support.errors import DeviceError
from tvmflow.toolchain.compilers import compiler_named
from tvmflow.toolchain.debian_packages import Apt, architecture_of_this_machine, make_folder, no_root
from tvmflow.toolchain.environments import cache_folder

LINUX, ANDROID = "armv7a-linux-gnueabihf", "armv7a-linux-androideabi"
_FLOATS = {"armhf": "gnueabihf", "armel": "gnueabi"}


@dataclass(frozen=True)
class Armv7System:
    """folder: with the files of each of Debian's architectures below its name, and qemu's below `qemu`."""

    folder: Path

    def command(self, architecture: str, processor: str = "cortex-a7") -> list[str]:
        """Return what goes before a program for armhf or armel."""
        libraries = ":".join(str(path) for path in sorted((self.folder / "qemu").glob("**/*-linux-gnu")))
        emulator = str(self.folder / "qemu" / "usr" / "bin" / "qemu-arm")
        return [
            "/usr/bin/env",
            f"LD_LIBRARY_PATH={libraries}",
            emulator,
            "-U",
            "LD_LIBRARY_PATH",
            "-cpu",
            processor,
            "-L",
            str(self.folder / architecture),
        ]


def armv7_system() -> Armv7System:
    """Return the system, made now if it is not there: some 30 MB to download. Raises DeviceError where it cannot be."""
    return Armv7System(make_folder(cache_folder() / "armv7-tests" / "2", _fill, no_root))


def _fill(folder: Path) -> None:
    host = architecture_of_this_machine(no_root)
    for architecture in _FLOATS:
        packages = folder / f"packages-{architecture}"
        packages.mkdir(parents=True)
        apt = Apt(packages, (host, architecture), no_root)
        apt.unpack([f"libc6:{architecture}"], folder / architecture)
        if not (folder / architecture / "lib").exists():  # releases whose packages hold usr/lib alone
            (folder / architecture / "lib").symlink_to("usr/lib")
    apt.unpack([f"qemu-user:{host}"], folder / "qemu", without=("libc6", "libgcc-s1", "gcc-12-base", "gcc-14-base"))
    for file in (folder / "qemu" / "usr" / "bin").iterdir():
        if file.name != "qemu-arm":
            file.unlink()
    for architecture in _FLOATS:
        shutil.rmtree(folder / f"packages-{architecture}")


def compiler_words(architecture: str) -> list[str]:
    """Return how C is compiled for armhf or armel. Raises ToolchainError where there is no zig."""
    words = compiler_named("zig").command(LINUX).words
    return [word.replace("gnueabihf", _FLOATS[architecture]) for word in words]


def compiled(architecture: str, path: Path, *words: str) -> Path:
    """Compile a program. words: options and sources. Raises DeviceError with what the compiler says."""
    include = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}"]
    command = [*compiler_words(architecture), "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *include, *words]
    done = subprocess.run([*command, "-o", str(path)], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise DeviceError(done.stderr[-2000:])
    return path
