"""Software drivers, for machines without a GPU: PoCL computes OpenCL on the CPU.

Debian's packages, unpacked in the cache folder: no privilege, and nothing of the system is changed.
"""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from tvmflow.artifacts import digest_of
from tvmflow.devices.emulation.packages import Apt, architecture_of_this_machine, made_folder, release_of_this_machine
from tvmflow.errors import DeviceError
from tvmflow.sources.tool_environments import cache_folder

_LOADER = ("ocl-icd-libopencl1",)
# By release of Debian: LLVM's version is in the names of its packages.
_POCL = {
    "bookworm": (
        "pocl-opencl-icd", "libpocl2", "libpocl2-common", "libhwloc15", "libllvm15", "libclang-cpp15", "libz3-4", "libedit2", "libbsd0", "libxml2",
        "libicu72",
    ),
}  # fmt: skip
_MADE_AS = 1  # raised when the same packages are unpacked in another way


@dataclass(frozen=True)
class SoftwareDriver:
    """library: the loader of the API; environment: what makes it find this driver and no other."""

    library: Path
    environment: dict[str, str]


def pocl() -> SoftwareDriver:
    """Return PoCL, made now if it is not there. Raises DeviceError."""
    release = release_of_this_machine()
    if release not in _POCL:
        raise _refused(f"no list of its packages for {release}")
    names = (*_LOADER, *_POCL[release])
    folder = cache_folder() / "gpu-drivers" / f"pocl-{release}-{digest_of([*names, _MADE_AS, platform.machine()])[:12]}"

    def make(unfinished: Path) -> None:
        apt_folder = unfinished / "apt"
        apt_folder.mkdir()
        Apt(apt_folder, (architecture_of_this_machine(_refused),), _refused).unpack_alone(names, unfinished / "root")
        shutil.rmtree(apt_folder)
        vendors = sorted((unfinished / "root").rglob("libpocl.so.2"))
        if not vendors:
            raise _refused("its packages hold no libpocl.so.2")
        (unfinished / "made.json").write_text(json.dumps({"packages": names}), encoding="utf-8")

    root = made_folder(folder, make, _refused) / "root"
    [library] = sorted(root.rglob("libOpenCL.so.1"))
    libraries = library.parent
    vendor = folder / "pocl.icd"
    if not vendor.exists():
        vendor.write_text(f"{libraries / 'libpocl.so.2'}\n", encoding="ascii")
    return SoftwareDriver(
        library,
        {"LD_LIBRARY_PATH": str(libraries), "OCL_ICD_VENDORS": str(vendor), "POCL_CACHE_DIR": str(folder / "kernels")},
    )


def _refused(why: str) -> DeviceError:
    return DeviceError(
        f"PoCL cannot be made here: {why}", "Debian 12, whose apt sources can be reached the first time",
        "it is made once in tvmflow's cache folder (TVMFLOW_CACHE); where the system has a driver of OpenCL, it is not needed",
    )  # fmt: skip
