"""Make environments that differ from this one in the version of TVM, each in a folder of the cache.

Only TVM is installed there, and its foreign function interface where this environment's does not fit. Every other
package is this environment's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from filelock import FileLock

from tvmflow.support.errors import ToolchainError, UsageError, last_words
from tvmflow.support.files import digest_of
from tvmflow.toolchain.environments import INSTALL_TIMEOUT_S, environments_folder

_PACKAGE = "apache-tvm"
_VERSION = r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}((rc|dev|\.post|\.dev)[0-9]{1,4})?"
_ASK = """
import importlib.metadata as m, json
needs = [one.split(";")[0].replace(" ", "") for one in m.requires("apache-tvm") or ()]
needs = [one for one in needs if one.startswith("apache-tvm-ffi")]
print(json.dumps({"version": m.version("apache-tvm"), "ffi": needs[:1]}))
"""


def python_with_tvm(wanted: str) -> tuple[Path, str]:
    """Return the interpreter of an environment with a version of TVM, made if necessary, and the whole version.

    wanted: as 0.26 or 0.27.0.post1; this environment's own where it is that. Raises UsageError, ToolchainError.
    """
    if not re.fullmatch(_VERSION, wanted):
        raise UsageError(f"the version of TVM {wanted!r}", "a version, e.g. 0.26 or 0.27.0.post1")
    own = own_tvm()
    if own == wanted or own.startswith(f"{wanted}."):
        return Path(sys.executable), own
    here = [sys.version_info[:2], sysconfig.get_path("purelib")]
    folder = environments_folder() / f"tvm-{wanted}-{digest_of([wanted, *here])[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if not (folder / "tvm.json").is_file():
            _make(wanted, folder)
    known = json.loads((folder / "tvm.json").read_text(encoding="utf-8"))
    return folder / "bin" / "python", str(known["version"])


def own_tvm() -> str:
    """Return the version of TVM of this environment, "" without one."""
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return ""


def _make(wanted: str, folder: Path) -> None:
    """Install in the final place, since scripts have absolute paths; tvm.json is written last."""
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    try:
        _run(wanted, [sys.executable, "-P", "-m", "venv", str(folder)])
        exact = wanted if re.search("[a-z]", wanted) else f"{wanted}.*"  # with its post-releases
        _install(wanted, python, f"{_PACKAGE}=={exact}")
        found = json.loads(_run(wanted, [str(python), "-P", "-c", _ASK]))
        [place] = (folder / "lib").glob("python3*/site-packages")
        shared = sysconfig.get_path("purelib")
        (place / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n", encoding="utf-8")
        if not _starts(python):  # with the foreign function interface of this environment
            for package in found["ffi"]:
                _install(wanted, python, package)
            _run(wanted, [str(python), "-P", "-c", "import tvm"])
        (folder / "tvm.json").write_text(json.dumps(found), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _not_made(wanted, str(error)) from error


def _starts(python: Path) -> bool:
    try:
        _run("", [str(python), "-P", "-c", "import tvm"])
    except ToolchainError:
        return False
    return True


def _install(wanted: str, python: Path, package: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    _run(wanted, [str(python), "-P", "-m", "pip", "install", *options, package])


def _run(wanted: str, command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=INSTALL_TIMEOUT_S, check=False, env=environment, text=True
        )
    except subprocess.TimeoutExpired as error:
        raise _not_made(wanted, str(error)) from error
    if done.returncode:
        raise _not_made(wanted, last_words(done.stderr.encode()))
    return done.stdout


def _not_made(wanted: str, why: str) -> ToolchainError:
    return ToolchainError(
        f"no environment with TVM {wanted} could be made: {why}",
        f"'pip install {_PACKAGE}=={wanted}' to work in a fresh environment",
        f"check the version, and pip's access to a package index; environments are in {environments_folder()}",
    )
