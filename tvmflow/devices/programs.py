"""Compile the C programs that run on devices: the agent and the GPU probe."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from tvmflow.devices.installed_agent import installed_agent
from tvmflow.support.errors import ToolchainError, error_words
from tvmflow.support.files import digest_of, sha256_of
from tvmflow.support.paths import RUNTIME
from tvmflow.support.temporary import temporary_folder
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.environments import cache_folder

_COMPILE = ("-x", "c", "-std=c11", "-O2", "-Wall", "-Wextra", "-fPIE", "-D_FILE_OFFSET_BITS=64")
_LINK = ("-pie", "-Wl,--as-needed", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,max-page-size=16384", "-s")


def probe_sources() -> list[Path]:
    """Return the source files of the GPU probe without its main program."""
    return [RUNTIME / "gpu" / f"{name}.c" for name in ("gpu_probe", "opencl", "probe_opencl", "probe_vulkan", "vulkan")]


def agent_sources() -> list[Path]:
    """Return the source files of the agent: its own, the CPU description, and the GPU probe."""
    return sorted([*(RUNTIME / "agent").glob("*.c"), *(RUNTIME / "measure").glob("*.c"), *probe_sources()])


def build_agent(path: Path, compiler: Sequence[str]) -> Path:
    """Compile the agent. compiler: a C compiler with the flags for the device. Raises ToolchainError."""
    include = [
        *(f"-I{RUNTIME / name}" for name in ("include", "gpu", "measure")),
        f"-ffile-prefix-map={RUNTIME}=runtime",
    ]
    with temporary_folder("agent") as folder:
        objects = []
        for source in agent_sources():
            objects.append(f"{folder}/{source.stem}.o")
            run_compiler([*compiler, *_COMPILE, *include, "-c", str(source), "-o", objects[-1]], "the agent")
        run_compiler([*compiler, *_LINK, "-o", str(path), *objects, "-pthread", "-ldl"], "the agent")
    return path


def run_compiler(command: Sequence[str], what: str, hint: str = "set cc: of the target") -> None:
    """Compile a program for a device. Raises ToolchainError, which names the program, with a hint."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{what} cannot be compiled: {error}", "a C compiler for the device", hint) from None
    if done.returncode:
        raise ToolchainError(
            f"{command[0]} does not compile {what}: {error_words(done.stderr)}", "a C11 compiler for the device"
        )


def digest_of_agent() -> str:
    """Return the digest of the sources that the agent is compiled from."""
    sources = {
        file.name: sha256_of(file)
        for name in ("agent", "gpu", "include", "measure")
        for file in sorted((RUNTIME / name).iterdir())
        if file.is_file()
    }
    return digest_of(sources)


def agent_for(target: ResolvedTarget) -> Path:
    """Return the agent's program for a target: of the package tvmflow-agent, or else compiled if necessary. Raises
    ToolchainError.
    """
    installed = installed_agent(target.mtriple, digest_of_agent())
    words = () if installed else target.compiler.words
    made_of = hashlib.sha256(installed).hexdigest() if installed else digest_of_agent()
    folder = cache_folder() / "agent" / digest_of([made_of, list(words)])[:16]
    program = folder / "tvmflow-agent"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not program.exists():
            unfinished = folder / "unfinished"
            if installed:
                unfinished.write_bytes(installed)
                unfinished.chmod(0o755)
            else:
                build_agent(unfinished, words)
            unfinished.replace(program)
    return program
