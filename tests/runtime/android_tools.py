"""Android's aapt2, zipalign and apksigner of Debian, and its framework's resources; made once in the cache folder, without root."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tvmflow.devices.emulation.packages import Apt, no_root
from tvmflow.sources.tool_environments import cache_folder

_HOSTS = {"x86_64": ("amd64", "arm64"), "aarch64": ("arm64", "amd64")}


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
    """Return the tools, made now if they are not there: some 20 MB to download. Raises DeviceError where they cannot be."""
    folder = cache_folder() / "android-tools" / "1"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _fill(folder)
            (folder / "made").touch()
    return AndroidTools(folder)


def _fill(folder: Path) -> None:
    if platform.machine() not in _HOSTS:
        raise no_root(f"no packages of Android's tools for {platform.machine()}")
    host, other = _HOSTS[platform.machine()]
    packages = folder / "packages"
    packages.mkdir(parents=True)
    apt = Apt(packages, (host, other), no_root)
    without = ("libc6", "libgcc-s1", "gcc-12-base", "gcc-14-base", "libstdc++6")
    apt.unpack([f"aapt:{host}", f"zipalign:{host}"], folder, without)
    apt.unpack_alone(["apksigner", "libapksig-java", "android-framework-res"], folder)
    shutil.rmtree(packages)
