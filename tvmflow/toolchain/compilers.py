"""List the C compilers that link libraries: programs on PATH, zig, the Android NDK, and bionic stubs.

`cc:` of a target names an entry or a program; without it, a compiler is chosen here and recorded. Recipe keys contain
the name and version of a compiler but not this file: a change here that affects libraries must change a version.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from filelock import FileLock

from tvmflow.config.plugins import Table
from tvmflow.support.errors import ToolchainError
from tvmflow.support.files import digest_of, sha256_of
from tvmflow.support.paths import RUNTIME
from tvmflow.support.temporary import temporary_folder
from tvmflow.toolchain import android_linker
from tvmflow.toolchain.environments import cache_folder
from tvmflow.toolchain.triples import ARM32, WASM, Triple, triple_of

_GLIBC = "2.28"  # of what zig links: Debian 10, and every system since
_NDK = "ANDROID_NDK_HOME"
_BIONIC = RUNTIME / "bionic"


@dataclass(frozen=True)
class Command:
    """The command of a compiler for one target. words: before options and files; refuses: unsupported options;
    makes_wasm: it links modules of WebAssembly, not shared objects; makes_objects: of Mach-O only, for systems whose
    apps are linked elsewhere.
    """

    words: tuple[str, ...]
    refuses: frozenset[str] = frozenset()
    makes_wasm: bool = False
    makes_objects: bool = False

    @property
    def makes_shared_objects(self) -> bool:
        return not (self.makes_wasm or self.makes_objects)

    def line(self, *arguments: str) -> list[str]:
        """Return a command line without the options that the compiler does not support."""
        return [*self.words, *(word for word in arguments if word not in self.refuses)]


class Compiler(ABC):
    """A C11 compiler that links shared objects. has_jni: it includes jni.h."""

    has_jni: ClassVar[bool] = False

    @abstractmethod
    def command(self, mtriple: str) -> Command:
        """Return its command for a target. Raises ToolchainError if it is missing or does not support the target."""

    @abstractmethod
    def version(self) -> str:
        """Return its version, part of recipe keys; 'absent' if it is not installed."""


class Program(Compiler):
    """A program on PATH, such as g++ or aarch64-linux-gnu-g++."""

    def __init__(self, name: str) -> None:
        self.name = name

    def command(self, mtriple: str) -> Command:
        if shutil.which(self.name) is None:
            raise ToolchainError(
                f"no compiler {self.name!r} on PATH",
                f"{self.name} on PATH",
                f"install it (Debian: apt-get install {debian_package(self.name)})" + _instead(mtriple),
            )
        # On 32-bit Arm, divisions and 64-bit operations are functions of libgcc, which a system may lack.
        is_arm32 = triple_of(mtriple).architecture == ARM32
        return Command((self.name, "-static-libgcc") if is_arm32 else (self.name,))

    def version(self) -> str:
        return _first_line(self.name)


class Zig(Compiler):
    """zig, from the package ziglang or PATH, for WebAssembly and all Linux systems on Arm and x86-64; not for
    Android. For Apple's systems it only compiles.
    """

    def command(self, mtriple: str) -> Command:
        triple = triple_of(mtriple)
        if triple.architecture == WASM:
            zig = _require_zig("pip install 'tvmflow[wasm]'")
            return Command(("/usr/bin/env", *_zig_places(), zig, "cc", "-target", mtriple), makes_wasm=True)
        if triple.is_apple:
            return _apple_command(triple)
        if triple.system not in ("gnu", "musl"):
            raise ToolchainError(
                f"zig has no system libraries for {mtriple}",
                "linux-gnu, linux-musl, wasm32-wasi or a system of Apple's",
                f"cc: bionic-stubs of the target, or ndk with {_NDK} set to its folder",
            )
        zig = _require_zig("pip install 'tvmflow[arm64]'")
        abi = f"{triple.ending}.{_GLIBC}" if triple.system == "gnu" else triple.ending
        words = ("/usr/bin/env", *_zig_places(), zig, "cc", "-target", f"{triple.machine}-linux-{abi}")
        return Command(words, frozenset(["-Wl,-z,text"]))  # which is what its linker does anyway

    def version(self) -> str:
        zig = _zig()
        return f"zig {_first_line(zig, 'version')}, glibc {_GLIBC}" if zig else "absent"


def _apple_command(triple: Triple) -> Command:
    """Return the command for objects of a system of Apple's, whose C library has the same declarations on all."""
    zig = _require_zig("pip install 'tvmflow[arm64]'")
    system, _, simulator = triple.system.partition("-")
    name = "-".join(filter(None, (triple.architecture, f"{system}.{triple.version}", simulator)))
    headers = str(Path(_zig_library(zig)) / "libc" / "include" / "any-darwin-any")
    words = ("/usr/bin/env", *_zig_places(), zig, "cc", "-target", name, "-isystem", headers)
    return Command(words, makes_objects=True)


@functools.cache
def _zig_library(zig: str) -> str:
    """Return the folder of zig's headers."""
    done = subprocess.run(
        ["/usr/bin/env", *_zig_places(), zig, "env"], capture_output=True, text=True, timeout=60, check=False
    )
    found = re.search(r'"?lib_dir"?\s*[:=]\s*"([^"]+)"', done.stdout)
    if found is None:
        raise ToolchainError(f"{zig} does not say where its headers are", "the zig of tvmflow[arm64]")
    return str(Path(found[1]).absolute())  # zig names a folder below the current one relative to it


class Ndk(Compiler):
    """clang of Android's NDK in ANDROID_NDK_HOME."""

    has_jni = True

    def command(self, mtriple: str) -> Command:
        triple = triple_of(mtriple)
        if triple.system != "android":
            raise ToolchainError(
                f"the NDK has no libraries for {mtriple}",
                f"{triple.architecture}-linux-android",
                "cc: of the target: g++ or zig",
            )
        clang = f"{triple.architecture}-linux-{triple.ending}{triple.level}-clang"
        folder = os.environ.get(_NDK)
        if not folder:
            raise ToolchainError(
                f"{_NDK} is not set, and {mtriple} is linked with Android's NDK",
                f"{_NDK}=the folder of an NDK",
                "pip install 'tvmflow[arm64]': zig links libraries without the NDK (cc: bionic-stubs); or install "
                "the NDK with Android's command line tools (sdkmanager 'ndk;27.2.12479018') and set it",
            )
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


class BionicStubs(Compiler):
    """zig's clang and lld with headers and stubs of bionic, without the NDK; for model libraries and the agent."""

    def command(self, mtriple: str) -> Command:
        wanted = triple_of(mtriple)
        if wanted.system != "android":
            raise ToolchainError(
                f"there are no stubs for {mtriple}",
                "a triple of Android, as aarch64-linux-android",
                "cc: of the target",
            )
        zig = _require_zig("pip install 'tvmflow[arm64]', or set ANDROID_NDK_HOME")
        api = str(wanted.level)
        triple = f"{wanted.machine}-linux-android.{api}"
        folder = cache_folder() / "bionic" / digest_of([self.version(), triple])[:16]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                _make_stubs(folder, zig, triple, api)
        return Command((*_android_linker(), zig, str(folder), str(_BIONIC / "include"), triple))

    def version(self) -> str:
        zig = _zig()
        return f"zig {_first_line(zig, 'version')}, stubs {digest_of_stubs()[:12]}" if zig else "absent"


@functools.cache
def digest_of_stubs() -> str:
    """Return the digest of the files that link libraries for Android without its NDK."""
    files = sorted(path for path in _BIONIC.rglob("*") if path.is_file())
    return digest_of([[path.name, sha256_of(path)] for path in (*files, Path(android_linker.__file__))])


def _make_stubs(folder: Path, zig: str, triple: str, api: str) -> None:
    with temporary_folder("stubs", folder.parent) as name:
        made = Path(name) / "made"
        made.mkdir()
        done = subprocess.run(
            [*_android_linker(), "--stubs", str(made), zig, str(_BIONIC), triple, api],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ToolchainError(
                f"zig does not make stubs for {triple}: {done.stderr.strip()[-300:]}", "the zig of tvmflow[arm64]"
            )
        made.rename(folder)


def _android_linker() -> tuple[str, ...]:
    """Return the command of our linker for Android, which runs zig."""
    return ("/usr/bin/env", *_zig_places(), sys.executable, "-I", "-S", str(Path(android_linker.__file__)))


def _zig_places() -> tuple[str, str]:
    cache = cache_folder() / "zig"  # else it writes to the current folder
    return f"ZIG_GLOBAL_CACHE_DIR={cache}", f"ZIG_LOCAL_CACHE_DIR={cache}"


COMPILERS: Table[Compiler] = Table("compilers", {"zig": Zig(), "ndk": Ndk(), "bionic-stubs": BionicStubs()})


def compiler_named(name: str) -> Compiler:
    """Return the compiler of `cc:`: an entry, or else a program."""
    return COMPILERS[name] if name in COMPILERS else Program(name)


def compiler_for(mtriple: str) -> str:
    """Return the default compiler of a target: g++ for this machine.

    For Android the NDK, or the bionic stubs if only zig is installed. For another Linux the compiler of Debian's cross
    packages, else zig.
    """
    triple = triple_of(mtriple)
    if triple.architecture == WASM or triple.is_apple:
        return "zig"
    if triple.system == "android":
        return "bionic-stubs" if not os.environ.get(_NDK) and _zig() is not None else "ndk"
    if triple.architecture == platform.machine() and triple.system == "gnu":
        return "g++"
    cross = f"{triple.machine}-linux-{triple.ending}-g++"
    return "zig" if shutil.which(cross) is None and _zig() is not None else cross


def debian_package(program: str) -> str:
    """Return the Debian package of a program."""
    return f"g++-{program.removesuffix('-g++')}" if "-linux-gnu" in program else program


def _instead(mtriple: str) -> str:
    triple = triple_of(mtriple)
    serves = triple.system in ("gnu", "musl") and triple.architecture != platform.machine()
    return ", or pip install 'tvmflow[arm64]' and name cc: zig of the target" if serves else ""


def _zig() -> str | None:
    try:
        package = metadata.distribution("ziglang")
    except metadata.PackageNotFoundError:
        return shutil.which("zig")
    return str(package.locate_file("ziglang/zig"))


def _require_zig(hint: str) -> str:
    zig = _zig()
    if zig is None:
        raise ToolchainError("no zig: neither the package ziglang nor a program", "zig", hint)
    return zig


@functools.cache
def _first_line(program: str, question: str = "--version") -> str:
    try:
        done = subprocess.run([program, question], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return "absent"
    return done.stdout.splitlines()[0] if done.stdout else "absent"
