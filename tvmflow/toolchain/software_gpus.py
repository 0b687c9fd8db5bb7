"""Install software GPU drivers: PoCL for OpenCL on the CPU, lavapipe for Vulkan.

Debian's packages are unpacked in the cache folder, without root and without changing the system.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tvmflow.support.errors import DeviceError
from tvmflow.support.files import digest_of
from tvmflow.toolchain.debian_packages import Apt, architecture_of_this_machine, make_folder, release_of_this_machine
from tvmflow.toolchain.environments import cache_folder

# By release of Debian: versions are in the names of packages.
_PACKAGES = {
    "bookworm": (
        # loaders, and drivers: PoCL, and lavapipe of Mesa
        *"ocl-icd-libopencl1 pocl-opencl-icd libpocl2 libpocl2-common libvulkan1 mesa-vulkan-drivers".split(),
        # LLVM libraries of both
        *"libllvm15 libclang-cpp15 libz3-4 libedit2 libbsd0 libxml2 libicu72 libhwloc15".split(),
        # window system libraries of Mesa
        *"libdrm2 libdrm-amdgpu1 libelf1 libwayland-client0 libx11-xcb1 libxau6 libxcb1 libxcb-dri3-0".split(),
        *"libxcb-present0 libxcb-randr0 libxcb-shm0 libxcb-sync1 libxcb-xfixes0 libxdmcp6 libxshmfence1".split(),
        # the shader compiler
        "glslang-tools",
    ),
}
_MADE_AS = 1  # raised when the unpacked layout changes


@dataclass(frozen=True)
class SoftwareDriver:
    """option: of the probe, which names the loader `library`; environment: makes the loader find this driver only."""

    option: str
    library: Path
    environment: Mapping[str, str]


@dataclass(frozen=True)
class SoftwareDrivers:
    """The drivers in a folder. glslang: the shader compiler."""

    folder: Path

    @property
    def _libraries(self) -> Path:
        return next(self.folder.glob("root/usr/lib/*/libpocl.so.2")).parent

    @property
    def glslang(self) -> Path:
        return self.folder / "root" / "usr" / "bin" / "glslangValidator"

    @property
    def pocl(self) -> SoftwareDriver:
        environment = {"OCL_ICD_VENDORS": str(self.folder / "pocl.icd"), "POCL_CACHE_DIR": str(self.folder / "kernels")}
        return self._driver("--opencl", "libOpenCL.so.1", environment)

    @property
    def lavapipe(self) -> SoftwareDriver:
        return self._driver("--vulkan", "libvulkan.so.1", {"VK_ICD_FILENAMES": str(self.folder / "lavapipe.json")})

    def named(self, name: str) -> SoftwareDriver:
        """Return a driver by name: pocl, lavapipe."""
        return {"pocl": self.pocl, "lavapipe": self.lavapipe}[name]

    def _driver(self, option: str, name: str, environment: dict[str, str]) -> SoftwareDriver:
        libraries = self._libraries
        return SoftwareDriver(option, libraries / name, {"LD_LIBRARY_PATH": str(libraries), **environment})

    def name_libraries(self, at: Path) -> None:
        """Write the files of the loaders, with the location of the drivers when this folder is at `at`."""
        there = at / self._libraries.relative_to(self.folder)
        (self.folder / "pocl.icd").write_text(f"{there / 'libpocl.so.2'}\n", encoding="utf-8")
        icd = {"api_version": "1.1.230", "library_path": str(there / "libvulkan_lvp.so")}
        text = json.dumps({"ICD": icd, "file_format_version": "1.0.0"})
        (self.folder / "lavapipe.json").write_text(text, encoding="utf-8")


def software_drivers() -> SoftwareDrivers:
    """Return PoCL and lavapipe, installed if necessary. Raises DeviceError."""
    release = release_of_this_machine()
    if release not in _PACKAGES:
        raise _install_error(f"no list of its packages for {release}")
    names = _PACKAGES[release]
    folder = cache_folder() / "gpu-drivers" / f"{release}-{digest_of([*names, _MADE_AS, platform.machine()])[:12]}"

    def make(unfinished: Path) -> None:
        apt_folder = unfinished / "apt"
        apt_folder.mkdir()
        Apt(apt_folder, (architecture_of_this_machine(_install_error),), _install_error).unpack_alone(
            names, unfinished / "root"
        )
        shutil.rmtree(apt_folder)
        SoftwareDrivers(unfinished).name_libraries(folder)

    return SoftwareDrivers(make_folder(folder, make, _install_error))


def _install_error(why: str) -> DeviceError:
    return DeviceError(
        f"drivers in software cannot be made here: {why}",
        "Debian 12, whose apt sources can be reached the first time",
        "they are made once in tvmflow's cache folder (TVMFLOW_CACHE); where the system has a driver, they "
        "are not needed",
    )
