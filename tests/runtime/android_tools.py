"""Provide Debian's aapt2, zipalign and apksigner, in the cache folder, without root."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tvmflow.toolchain.debian_packages import Apt, architecture_of_this_machine, make_folder, no_root
from tvmflow.toolchain.environments import cache_folder


@dataclass(frozen=True)
class AndroidTools:
    """folder: of the unpacked packages."""

    folder: Path

    @property
    def framework(self) -> str:
        """Return the resources that an app's refer to as android:..."""
        return str(self.folder / "usr" / "share" / "android-framework-res" / "framework-res.apk")

    def aapt2(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(str(self.folder / "usr" / "bin" / "aapt2"), *arguments)

    def zipalign(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(str(self.folder / "usr" / "bin" / "zipalign"), *arguments)

    def apksigner(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        jar = self.folder / "usr" / "share" / "java" / "apksigner.jar"
        return self._run("java", "-XX:TieredStopAtLevel=1", "-jar", str(jar), *arguments)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        top = self.folder / "usr" / "lib"
        libraries = [path for path in (top, *top.rglob("*")) if path.is_dir() and any(path.glob("*.so*"))]
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        if command[0] != "java":
            environment["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def android_tools() -> AndroidTools:
    """Return the tools, made now if they are not there: some 20 MB to download. Raises DeviceError where they cannot
    be.
    """
    return AndroidTools(make_folder(cache_folder() / "android-tools" / "2", _fill, no_root))


def _fill(folder: Path) -> None:
    host = architecture_of_this_machine(no_root)
    packages = folder / "packages"
    packages.mkdir(parents=True)
    apt = Apt(packages, (host,), no_root)
    without = ("libc6", "libgcc-s1", "gcc-12-base", "gcc-14-base", "libstdc++6")
    apt.unpack([f"aapt:{host}", f"zipalign:{host}"], folder, without)
    apt.unpack_alone(["apksigner", "libapksig-java", "android-framework-res"], folder)
    shutil.rmtree(packages)
