"""Cache objects compiled from our own C sources, since the libraries of a run link the same runtime.

A kept file is found by the sha256 of everything that decides its bytes: the command line, the sources, and what the
compiler says of its version. Its name holds the sha256 of its own bytes too, so a damaged file is compiled again.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tvmflow.support.files import digest_of, sha256_of
from tvmflow.support.temporary import make_folder, remove_folder, temporary_folder
from tvmflow.toolchain.compilers import Command, digest_of_stubs
from tvmflow.toolchain.environments import cache_folder


def compile_once(
    compiler: Command, arguments: Sequence[str], sources: str, suffix: str, build: Callable[[Path], None]
) -> Path:
    """Return the file that `build(path)` writes, or wrote before. Whatever `build` raises, and OSError, come through.

    arguments: of the compiler, without the names of outputs. sources: digest of all files that it may read. suffix: of
    the file's name.
    """
    key = digest_of([compiler.line(*arguments), sources, _version(compiler.words), digest_of_stubs(), suffix])
    folder = _writable(cache_folder() / "compiled", os.getpid())
    for kept in folder.glob(f"{key}-*{suffix}"):
        if kept.name == f"{key}-{sha256_of(kept)}{suffix}":
            return kept
        kept.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with temporary_folder("compiling", folder) as scratch:
        made = Path(scratch) / f"made{suffix}"
        build(made)
        kept = folder / f"{key}-{sha256_of(made)}{suffix}"
        os.replace(made, kept)
    return kept


@functools.cache
def _writable(folder: Path, _process: int) -> Path:
    """Return a folder, or a temporary one of this process if the folder cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        temporary = make_folder("compiled")
        atexit.register(remove_folder, temporary)
        return temporary


@functools.cache
def _version(words: tuple[str, ...]) -> str:
    """Return the output of a compiler's --version, "absent" if it cannot be started; the compilation then fails."""
    try:
        with temporary_folder("version") as folder:  # zig leaves an object where it is asked for Apple's systems
            done = subprocess.run(
                [*words, "--version"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
            )
    except OSError:
        return "absent"
    return done.stdout
