"""Set up the emulated arm64 system once for all workspaces, and run commands in it.

    system = emulated_system()
    subprocess.run([*system.command("cortex-a76"), "a-program-for-arm64", "argument"])

Its programs are processes of this machine: they see its files, network and processes. A file of the root hides one of
this machine only if both exist. They cannot start arm64 programs themselves.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tvmflow.devices.emulation.processors import processor_named
from tvmflow.support.errors import DeviceError
from tvmflow.support.files import digest_of, sha256_of
from tvmflow.support.paths import CODE_ROOT
from tvmflow.toolchain.debian_packages import (
    Apt,
    architecture_of_this_machine,
    make_folder,
    no_root,
    release_of_this_machine,
)
from tvmflow.toolchain.environments import cache_folder
from tvmflow.toolchain.versions import installed_version

_MADE_AS = 1  # raised when the layout of the root changes
_IN_ROOT = ("python3-minimal", "libpython3-stdlib", "libgcc-s1", "libstdc++6", "libgomp1")
_WHEELS = (
    "apache-tvm",
    "apache-tvm-ffi",
    "numpy",
    "ml-dtypes",
    "psutil",
    "tornado",
    "cloudpickle",
    "typing-extensions",
)
_PLATFORMS = tuple(f"manylinux{name}_aarch64" for name in ("_2_28", "_2_27", "_2_24", "_2_17", "2014"))
COUNTER = next(  # in a clone or in an installed package
    place / "emulator" / "count.c"
    for place in (CODE_ROOT / "runtime", CODE_ROOT / "tvmflow" / "_runtime")
    if place.is_dir()
)


@dataclass(frozen=True)
class EmulatedSystem:
    """folder: contains the arm64 files below `root` and qemu for this machine below `qemu`."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def command(self, processor: str, counts: bool = False, caches: bool = False) -> list[str]:
        """Return the command prefix that runs an arm64 program on a processor of PROCESSORS.

        counts: count executed instructions. The program's CLOCK_REALTIME then advances by one nanosecond per
        instruction and by nothing else, and the system call of runtime/emulator/count.c returns the counters. caches:
        count what the processor's caches would miss, too, which takes several times as long. Raises UnknownNameError;
        with counts also ToolchainError.
        """
        libraries = ":".join(str(path) for path in sorted((self.folder / "qemu").glob("**/*-linux-gnu")))
        one = processor_named(processor)
        sizes = f",caches={':'.join(map(str, one.caches))}" if caches else ""
        plugin = ["-plugin", f"{counter_plugin()}{sizes}"] if counts or caches else []
        return [
            "/usr/bin/env",
            f"LD_LIBRARY_PATH={libraries}",
            str(self.folder / "qemu" / "usr" / "bin" / "qemu-aarch64"),
            "-U",
            "LD_LIBRARY_PATH",
            "-cpu",
            one.name,
            *plugin,
            "-L",
            str(self.root),
        ]

    @property
    def python(self) -> Path:
        """Return the root's Python, an arm64 program."""
        return next(path for path in sorted((self.root / "usr" / "bin").glob("python3.*")) if path.name[9:].isdecimal())

    def packages(self) -> Path:
        """Return a folder for PYTHONPATH with the arm64 wheels of this environment's TVM, installed if necessary.
        Raises DeviceError.
        """
        pins = [f"{name}=={installed_version(name)}" for name in _WHEELS]
        return self.wheels(pins)

    def wheels(self, pins: list[str]) -> Path:
        """Return a folder for PYTHONPATH with arm64 wheels, installed if necessary. Raises DeviceError."""
        version = self.python.name.removeprefix("python")
        folder = self.folder.parent / f"wheels-{digest_of([*pins, version, _MADE_AS])[:12]}"
        return make_folder(folder, lambda unfinished: _unpack_wheels(pins, version, unfinished), no_root)


def emulated_system() -> EmulatedSystem:
    """Return the emulated system, installed if necessary (a download of about 35 MB). Raises DeviceError."""
    return EmulatedSystem(make_folder(_folder(), _fill, no_root))


def is_made() -> bool:
    """Return whether the emulated system is installed."""
    return _folder().is_dir()


def _folder() -> Path:
    return (
        cache_folder()
        / "arm64"
        / f"{release_of_this_machine()}-{digest_of([*_IN_ROOT, _MADE_AS, platform.machine()])[:12]}"
    )


def counter_plugin() -> Path:
    """Return the plugin that counts instructions, compiled if necessary. Raises DeviceError."""
    folder = cache_folder() / "arm64" / f"count-{sha256_of(COUNTER)[:12]}-{platform.machine()}"
    return make_folder(folder, _compile_counter, no_root) / "count.so"


def _fill(folder: Path) -> None:
    host = architecture_of_this_machine(no_root)
    apt_folder, root = folder / "apt", folder / "root"
    apt_folder.mkdir()
    root.mkdir()
    apt = Apt(apt_folder, (host, "arm64"), no_root)
    files = apt.unpack([f"{name}:arm64" for name in _IN_ROOT], root)
    # qemu uses the C library of this machine; a process cannot have two.
    files |= apt.unpack(
        [f"qemu-user:{host}"], folder / "qemu", without=("libc6", "libgcc-s1", "gcc-12-base", "gcc-14-base")
    )
    for file in (folder / "qemu" / "usr" / "bin").iterdir():
        if file.name != "qemu-aarch64":  # a hundred MB for other processors
            file.unlink()
    if not (root / "lib").exists():  # releases whose packages have usr/lib only
        (root / "lib").symlink_to("usr/lib")
    shutil.rmtree(apt_folder)
    (folder / "packages.json").write_text(json.dumps(files, indent=1, sort_keys=True), encoding="utf-8")
    system = EmulatedSystem(folder)
    done = subprocess.run(
        [*system.command("cortex-a53"), str(system.python), "-P", "-c", "import platform; print(platform.machine())"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.stdout.strip() != "aarch64":
        raise no_root(f"a program in it does not run: {(done.stderr.strip() or done.stdout.strip())[-300:]}")


def _unpack_wheels(pins: list[str], version: str, folder: Path) -> None:
    import zipfile

    downloads = folder / ".downloads"
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    abis = [f"--abi={name}" for name in (f"cp{version.replace('.', '')}", "abi3", "none")]
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(downloads),
            *platforms,
            *abis,
            f"--python-version={version}",
            "--implementation=cp",
            *pins,
        ],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if done.returncode:
        raise DeviceError(
            f"the arm64 wheels cannot be installed: {done.stderr.strip()[-300:]}",
            "pip to reach a package index",
            f"pip download --platform {_PLATFORMS[0]} --only-binary=:all: {pins[0]} shows the cause",
        )
    for wheel in sorted(downloads.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    shutil.rmtree(downloads)


def _compile_counter(folder: Path) -> None:
    compile_plugin(COUNTER, folder / "count.so")


def compile_plugin(source: Path, plugin: Path) -> None:
    """Compile a plugin of qemu's for this machine. Raises DeviceError."""
    command = ["gcc", "-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-o", str(plugin), str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except OSError as error:
        raise no_root(f"no compiler gcc for the plugin {source.name}: {error.strerror}") from None
    if done.returncode:
        raise no_root(f"gcc refuses the plugin {source.name}: {done.stderr.strip()[-300:]}")
