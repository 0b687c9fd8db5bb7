"""Unpack Debian packages of this machine's release into a folder, without root and without changing the system.

apt works in a folder of its own with the distribution's sources and keys; it verifies downloads by the signed index.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock

from tvmflow.support.errors import DeviceError
from tvmflow.support.files import sha256_of

TIMEOUT_S = 600.0
_OWN_SOURCES = (
    "debian.sources",
    "ubuntu.sources",
)  # of the distribution; others have no packages for a second architecture
_CONFIGURATION = """\
#clear APT::Architectures;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{sources}/sources.list";
Dir::Etc::sourceparts "{sources}/parts";
APT::Architectures {{ {architectures} }};
APT::Sandbox::User "{user}";
Acquire::Languages "none";
Acquire::Retries "3";
"""
# Dependencies for installation and documentation only.
_UNNEEDED = re.compile(
    r"<|dpkg|install-info|tar\b|perl|libperl|libgdbm|libacl1|libmd0|mime-support|mailcap|media-types"
)


_HOSTS = {"x86_64": "amd64", "aarch64": "arm64"}  # platform.machine() -> Debian's name
Refused = Callable[[str], DeviceError]  # why -> the error


class Apt:
    """apt in a folder of its own. architectures: of packages, this machine's first.

    refused: makes the DeviceError for a machine without apt or without access to a source.
    """

    def __init__(self, folder: Path, architectures: tuple[str, ...], refused: Refused) -> None:
        missing = [name for name in ("apt-get", "apt-cache", "dpkg") if shutil.which(name) is None]
        if missing:
            raise refused(f"no {' and no '.join(missing)} on PATH")
        self.folder, self.native, self.refused = folder, architectures[0], refused
        for name in ("state/lists/partial", "cache/archives/partial", "sources/parts"):
            (folder / name).mkdir(parents=True)
        for name in ("status", "sources/sources.list"):
            (folder / name).touch()
        self._copy_sources(Path("/etc/apt"))
        (folder / "apt.conf").write_text(
            _CONFIGURATION.format(
                folder=folder,
                sources=folder / "sources",
                user="root" if os.geteuid() == 0 else "",
                architectures=" ".join(f'"{name}";' for name in architectures),
            ),
            encoding="utf-8",
        )
        self.said = self._run("apt-get", "update", checked=False)

    def _copy_sources(self, etc: Path) -> None:
        parts = sorted((etc / "sources.list.d").glob("*")) if (etc / "sources.list.d").is_dir() else []
        own = [file for file in parts if file.name in _OWN_SOURCES]
        for file in own or [file for file in parts if file.suffix in (".sources", ".list")]:
            shutil.copy(file, self.folder / "sources" / "parts")
        if (etc / "sources.list").is_file():
            shutil.copy(etc / "sources.list", self.folder / "sources" / "sources.list")

    def unpack_alone(self, names: Iterable[str], into: Path) -> None:
        """Unpack packages without their dependencies."""
        files = self.folder / "files-alone"
        files.mkdir(exist_ok=True)
        self._unpack(names, files, into)

    def _unpack(self, names: Iterable[str], files: Path, into: Path) -> list[Path]:
        """Download packages to a folder and unpack all packages there; return them."""
        self._run("apt-get", "download", *names, folder=files)
        found = sorted(files.iterdir())
        for file in found:
            self._run("dpkg", "-x", str(file), str(into))
        return found

    def unpack(self, names: Iterable[str], into: Path, without: Iterable[str] = ()) -> dict[str, str]:
        """Unpack packages (NAME:ARCHITECTURE) with their dependencies; return file -> sha256.

        without: names of packages that are not needed.
        """
        wanted = list(names)
        options = [f"--no-{what}" for what in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
        found = self._run("apt-cache", "depends", "--recurse", "--important", *options, *wanted)
        architecture = wanted[0].rpartition(":")[2]
        # Packages of this machine's architecture are listed without it, as are architecture-independent ones, which
        # another architecture does not need.
        lines = (f"{line}:{self.native}" if ":" not in line else line for line in found.splitlines() if line[:1] != " ")
        needed = {
            line
            for line in lines
            if line.endswith(f":{architecture}")
            and not _UNNEEDED.match(line)
            and line.rpartition(":")[0] not in without
        }
        files = self.folder / f"files-{architecture}"
        files.mkdir()
        return {file.name: sha256_of(file) for file in self._unpack(sorted(needed), files, into)}

    def _run(self, *command: str, folder: Path | None = None, checked: bool = True) -> str:
        environment = {**os.environ, "APT_CONFIG": str(self.folder / "apt.conf"), "LC_ALL": "C.UTF-8"}
        try:
            done = subprocess.run(
                command,
                cwd=folder or self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self.refused(f"{' '.join(command[:2])} took more than {TIMEOUT_S:g} s") from None
        if done.returncode and checked:
            said = [line for line in (getattr(self, "said", "") + done.stderr).splitlines() if line.startswith("E:")]
            raise self.refused(f"{' '.join(command[:2])}: {(said or [done.stderr.strip() or 'failed'])[-1][:300]}")
        return done.stdout + ("" if checked else done.stderr)


def release_of_this_machine() -> str:
    """Return the code name of the distribution's release, such as `bookworm`."""
    try:
        facts = platform.freedesktop_os_release()
    except OSError:
        facts = {}
    return facts.get("VERSION_CODENAME", "unknown")


def architecture_of_this_machine(refused: Refused) -> str:
    """Return Debian's name of the architecture. Raises DeviceError for another system."""
    host = _HOSTS.get(platform.machine())
    if host is None or sys.platform != "linux":
        raise refused(f"no packages for {sys.platform} on {platform.machine()}")
    return host


def make_folder(folder: Path, make: Callable[[Path], None], refused: Refused) -> Path:
    """Return a folder; fill it by `make(folder)` beside its place and move it there when complete, in one
    process only.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                make(unfinished)
                unfinished.rename(folder)
            except OSError as error:
                raise refused(str(error)) from error
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def no_root(why: str) -> DeviceError:
    """Return the error of a machine that cannot install the emulated system."""
    return DeviceError(
        f"the emulated arm64 system cannot be made here: {why}",
        "Debian or Ubuntu, whose apt sources have arm64 packages and qemu-user, and a network the first time",
        "it is made once in tvmflow's cache folder (TVMFLOW_CACHE); a copy of that folder from another "
        "machine serves too",
    )
