"""Compile GLSL shaders to SPIR-V by glslang."""

from __future__ import annotations

import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from tvmflow.support.errors import DeviceError, StageError, ToolchainError
from tvmflow.support.temporary import temporary_folder
from tvmflow.toolchain.software_gpus import software_drivers

_PROGRAM = "glslangValidator"
_TIMEOUT_S = 120
_MAGIC = b"\x03\x02\x23\x07"


def glslang() -> Path:
    """Return the compiler of shaders: the system's, else that of the software drivers. Raises ToolchainError."""
    found = shutil.which(_PROGRAM)
    if found:
        return Path(found)
    try:
        return software_drivers().glslang
    except DeviceError as error:
        raise ToolchainError(
            f"no {_PROGRAM} on PATH, and {error.found}",
            "the compiler of Vulkan's shaders",
            "install it (Debian: apt-get install glslang-tools)",
        ) from None


@lru_cache(maxsize=4096)
def spirv_of(glsl: str, compiler: Path | None = None) -> bytes:
    """Compile a compute shader for Vulkan 1.1. compiler: glslang, located if None.

    Raises ToolchainError; StageError for an invalid shader.
    """
    program = compiler or glslang()
    with temporary_folder("glsl") as folder:
        source, made = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
        source.write_text(glsl, encoding="ascii")
        command = [str(program), "--target-env", "vulkan1.1", "-o", str(made), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{program.name} does not run: {error}", "the compiler of Vulkan's shaders") from None
        code = made.read_bytes() if made.exists() else b""
    if done.returncode or not code.startswith(_MAGIC):
        raise StageError(
            f"{program.name} does not compile a kernel: {_first_error(done.stdout)}", "GLSL that tvmflow wrote"
        )
    return code


def _first_error(output: bytes) -> str:
    lines = [line.strip() for line in output.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "it says nothing")[:300]
