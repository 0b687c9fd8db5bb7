"""The C compilers that libraries are linked with: programs on PATH, and those that are found in other ways, a row each.

`cc:` of a target names a row or a program. What a target names nothing for is chosen here, and recorded. Recipe keys have the name and
the version of a compiler and not this file: what changes libraries here has to change a version.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tvmflow.errors import ToolchainError
from tvmflow.plugins import Table
from tvmflow.sources.tool_environments import cache_folder

_GLIBC = "2.28"  # of what zig links: Debian 10, and every system since
_API_LEVEL = "24"  # Android 7, where a triple names none
_NDK = "ANDROID_NDK_HOME"


@dataclass(frozen=True)
class Command:
    """How a compiler is called for one target. words: what goes before options and files; refuses: options that it does not know."""

    words: tuple[str, ...]
    refuses: frozenset[str] = frozenset()

    def line(self, *arguments: str) -> list[str]:
        """Return a command line, without the options that the compiler refuses."""
        return [*self.words, *(word for word in arguments if word not in self.refuses)]


class Compiler(ABC):
    """A compiler of C11 that links shared objects too."""

    @abstractmethod
    def command(self, mtriple: str) -> Command:
        """Return how it is called for a target. Raises ToolchainError where it is absent or cannot serve it."""

    @abstractmethod
    def version(self) -> str:
        """Return its version, a part of recipe keys; 'absent' where it is not installed."""


class Program(Compiler):
    """A program on PATH, as g++ or aarch64-linux-gnu-g++."""

    def __init__(self, name: str) -> None:
        self.name = name

    def command(self, mtriple: str) -> Command:
        if shutil.which(self.name) is None:
            raise ToolchainError(
                f"no compiler {self.name!r} on PATH", f"{self.name} on PATH",
                f"install it (Debian: apt-get install {debian_package(self.name)})" + _instead(mtriple),
            )  # fmt: skip
        return Command((self.name,))

    def version(self) -> str:
        return _first_line(self.name)


class Zig(Compiler):
    """zig, of the package ziglang or on PATH: every Linux of arm64 and x86-64 with no further files; no Android."""

    def command(self, mtriple: str) -> Command:
        architecture, system = mtriple.split("-")[0], mtriple.split("-")[-1]
        if system not in ("gnu", "musl"):
            raise ToolchainError(
                f"zig has no system libraries for {mtriple}", "linux-gnu or linux-musl",
                f"Android needs its NDK: set {_NDK} to its folder and cc: ndk of the target",
            )  # fmt: skip
        zig = _zig()
        if zig is None:
            raise ToolchainError(
                "no zig: neither the package ziglang nor a program", "zig", "pip install 'tvmflow[arm64]'"
            )
        cache = cache_folder() / "zig"
        places = (
            f"ZIG_GLOBAL_CACHE_DIR={cache}",
            f"ZIG_LOCAL_CACHE_DIR={cache}",
        )  # else it writes to the current folder
        abi = f"gnu.{_GLIBC}" if system == "gnu" else system
        words = ("/usr/bin/env", *places, zig, "cc", "-target", f"{architecture}-linux-{abi}")
        return Command(words, frozenset(["-Wl,-z,text"]))  # which is what its linker does anyway

    def version(self) -> str:
        zig = _zig()
        return f"zig {_first_line(zig, 'version')}, glibc {_GLIBC}" if zig else "absent"


class Ndk(Compiler):
    """clang of Android's NDK, in the folder that ANDROID_NDK_HOME names."""

    def command(self, mtriple: str) -> Command:
        architecture, system = mtriple.split("-")[0], mtriple.split("-")[-1]
        if not system.startswith("android"):
            raise ToolchainError(
                f"the NDK has no libraries for {mtriple}",
                f"{architecture}-linux-android",
                "cc: of the target: g++ or zig",
            )
        clang = f"{architecture}-linux-android{system.removeprefix('android') or _API_LEVEL}-clang"
        folder = os.environ.get(_NDK)
        if not folder:
            raise ToolchainError(
                f"{_NDK} is not set, and {mtriple} is linked with Android's NDK", f"{_NDK}=the folder of an NDK",
                "install the NDK with Android's command line tools (sdkmanager 'ndk;27.2.12479018') and set it",
            )  # fmt: skip
        found = Path(folder) / "toolchains" / "llvm" / "prebuilt" / f"linux-{platform.machine()}" / "bin" / clang
        if not found.is_file():
            raise ToolchainError(
                f"no {clang} in the NDK {folder}", f"{found}", f"set {_NDK} to the folder that has source.properties"
            )
        return Command((str(found),))

    def version(self) -> str:
        folder = os.environ.get(_NDK)
        try:
            text = Path(folder or "/nonexistent", "source.properties").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return "absent"
        facts = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in text.splitlines())}
        return f"NDK {facts.get('Pkg.Revision', 'unknown')}"


COMPILERS: Table[Compiler] = Table("compilers", {"zig": Zig(), "ndk": Ndk()})


def compiler_named(name: str) -> Compiler:
    """Return the compiler that `cc:` names: a row, or else a program."""
    return COMPILERS[name] if name in COMPILERS else Program(name)


def compiler_for(mtriple: str) -> str:
    """Return the name of the compiler of a target that names none: g++ for this machine's own, the NDK for Android.

    For another Linux that of Debian's cross packages where it is there, else zig where that is.
    """
    architecture, system = mtriple.split("-")[0], mtriple.split("-")[-1]
    if system.startswith("android"):
        return "ndk"
    if architecture == platform.machine() and system == "gnu":
        return "g++"
    cross = f"{architecture}-linux-{system}-g++"
    return "zig" if shutil.which(cross) is None and _zig() is not None else cross


def debian_package(program: str) -> str:
    """Return the Debian package of a program."""
    return f"g++-{program.removesuffix('-g++')}" if program.endswith("-linux-gnu-g++") else program


def _instead(mtriple: str) -> str:
    serves = mtriple.split("-")[-1] in ("gnu", "musl") and not mtriple.startswith(platform.machine())
    return ", or pip install 'tvmflow[arm64]' and name cc: zig of the target" if serves else ""


def _zig() -> str | None:
    try:
        package = metadata.distribution("ziglang")
    except metadata.PackageNotFoundError:
        return shutil.which("zig")
    return str(package.locate_file("ziglang/zig"))


@functools.cache
def _first_line(program: str, question: str = "--version") -> str:
    try:
        done = subprocess.run([program, question], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return "absent"
    return done.stdout.splitlines()[0] if done.stdout else "absent"
