"""Install software GPU drivers for arm64: PoCL and lavapipe, run under the user-mode emulator as a phone's GPU.

PoCL links each kernel with /usr/bin/ld, which under the emulator is this machine's. In a mount namespace of its own, a
script that runs zig's linker is bound over it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.support.errors import DeviceError
from tvmflow.support.files import digest_of
from tvmflow.toolchain.compilers import _require_zig
from tvmflow.toolchain.debian_packages import Apt, architecture_of_this_machine, make_folder, release_of_this_machine
from tvmflow.toolchain.environments import cache_folder
from tvmflow.toolchain.software_gpus import _PACKAGES

_NOT_HERE = ("glslang-tools",)  # the compiler of shaders runs on this machine
_ALSO = ("libmd0", "libudev1")  # which every machine has, in its own architecture
_ANY_MACHINE = "libpocl2-common"
_LINKER = "/usr/bin/ld"
_MADE_AS = 2  # raised when the unpacked layout changes
# PoCL names libraries as a system with a compiler has them.
_LINK = """\
#!/bin/sh
for word do
  shift
  case $word in
    -lgcc) continue ;;
    -lgcc_s) word={libraries}/libgcc_s.so.1 ;;
    -lm) word={libraries}/libm.so.6 ;;
    -lc) word={libraries}/libc.so.6 ;;
  esac
  set -- "$@" "$word"
done
exec {zig} ld.lld "$@"
"""


@dataclass(frozen=True)
class Arm64Gpus:
    """folder: of the drivers; without_opencl: why OpenCL cannot compute here, "" if it can."""

    folder: Path
    without_opencl: str

    def emulator(self, system: EmulatedSystem, processor: str, *libraries: Path) -> list[str]:
        """Return what goes before a program, which then sees both drivers. libraries: further folders of those."""
        own = self.folder / "root" / "usr" / "lib" / "aarch64-linux-gnu"
        variables = {
            "LD_LIBRARY_PATH": ":".join(map(str, (*libraries, own))),
            "VK_ICD_FILENAMES": self.folder / "lavapipe.json",
            "OCL_ICD_VENDORS": self.folder / "pocl.icd" if not self.without_opencl else self.folder / "none.icd",
            "POCL_DEVICES": "pthread",
            "GALLIVM_PERF": "nopt",
            "MESA_SHADER_CACHE_DIR": self.folder / "kernels",
            "POCL_CACHE_DIR": self.folder / "kernels",
        }
        options = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        return [*([] if self.without_opencl else _namespace(self.folder)), *system.command(processor), *options]


def arm64_gpus(system: EmulatedSystem) -> Arm64Gpus:
    """Return the drivers, installed if necessary. Raises DeviceError."""
    release = release_of_this_machine()
    if release not in _PACKAGES:
        raise _refused(f"no list of its packages for {release}")
    names = [
        name if name == _ANY_MACHINE else f"{name}:arm64"
        for name in (*_PACKAGES[release], *_ALSO)
        if name not in _NOT_HERE
    ]
    kept = cache_folder() / "arm64"
    kept.mkdir(parents=True, exist_ok=True)
    place = kept.resolve() / f"gpu-drivers-{release}-{digest_of([*names, _MADE_AS])[:12]}"

    def make(unfinished: Path) -> None:
        apt = unfinished / "apt"
        apt.mkdir()
        Apt(apt, (architecture_of_this_machine(_refused), "arm64"), _refused).unpack_alone(names, unfinished / "root")
        shutil.rmtree(apt)
        libraries = place / "root" / "usr" / "lib" / "aarch64-linux-gnu"
        icd = {"api_version": "1.1.230", "library_path": str(libraries / "libvulkan_lvp.so")}
        (unfinished / "lavapipe.json").write_text(json.dumps({"ICD": icd, "file_format_version": "1.0.0"}))
        (unfinished / "pocl.icd").write_text(f"{libraries / 'libpocl.so.2'}\n")

    folder = make_folder(place, make, _refused)
    script = folder / "ld"
    text = _LINK.format(
        libraries=shlex.quote(str(system.root.resolve() / "lib" / "aarch64-linux-gnu")),
        zig=shlex.quote(_require_zig("ziglang")),
    )
    if not script.exists() or script.read_text() != text:
        script.write_text(text)
        script.chmod(0o755)
    return Arm64Gpus(folder, _why_no_namespace(folder))


def _namespace(folder: Path) -> list[str]:
    bind = f'mount --bind {shlex.quote(str(folder / "ld"))} {_LINKER} && exec "$@"'
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *as_root, "--mount", "sh", "-c", bind, "sh"]


def _why_no_namespace(folder: Path) -> str:
    try:
        done = subprocess.run([*_namespace(folder), "true"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return f"no unshare: {error.strerror}"
    return f"no mount namespace for PoCL's linker: {done.stderr.strip()[-200:]}" if done.returncode else ""


def _refused(why: str) -> DeviceError:
    return DeviceError(f"GPU drivers for arm64 cannot be made here: {why}", "Debian 12 with its sources of arm64")
