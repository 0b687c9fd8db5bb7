"""Build the wheel `tvmflow-agent`: the agent compiled for boards and phones.

    python -m tvmflow.devices.agent_wheel FOLDER

Agents open libraries with dlopen, so they are linked with the system's C library: for Linux by zig with glibc 2.28, for
Android by zig with stubs of bionic, or by the NDK where ANDROID_NDK_HOME names one. An installed agent counts only if
it was made of these sources.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tvmflow.devices.installed_agent import FACTS, MODULE, PACKAGE
from tvmflow.devices.programs import build_agent, digest_of_agent
from tvmflow.support.temporary import temporary_folder
from tvmflow.support.version import __version__
from tvmflow.toolchain.compilers import compiler_for, compiler_named
from tvmflow.toolchain.triples import triple_of

LINUX = ("x86_64-linux-gnu", "aarch64-linux-gnu", "armv7a-linux-gnueabihf")
ANDROID = ("aarch64-linux-android", "armv7a-linux-androideabi", "x86_64-linux-android")


def write_agent_wheel(folder: Path, triples: Sequence[str] = (*LINUX, *ANDROID)) -> Path:
    """Compile the agent for these triples and write the wheel. Raises ToolchainError."""
    files: dict[str, bytes] = {}
    with temporary_folder("agents") as name:
        for triple in triples:
            named = compiler_for(triple) if triple_of(triple).system == "android" else "zig"
            program = build_agent(Path(name) / triple, compiler_named(named).command(triple).words)
            files[f"{MODULE}/{triple}/tvmflow-agent"] = program.read_bytes()
    digests = {path.split("/")[1]: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    facts = {"sources": digest_of_agent(), "agents": digests}
    info = f"{MODULE}-{__version__}.dist-info"
    files[f"{MODULE}/__init__.py"] = b'"""Agents of tvmflow for boards and phones; tvmflow finds them."""\n'
    files[f"{MODULE}/{FACTS}"] = json.dumps(facts, indent=1, sort_keys=True).encode()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {__version__}\n"
        "Summary: The agent of tvmflow, compiled for boards and phones\nRequires-Python: >=3.9\n"
    ).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tvmflow {__version__}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ).encode()
    lines = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in sorted(files.items())]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{MODULE}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for inside, data in sorted(files.items()):
            out.writestr(zipfile.ZipInfo(inside), data, zipfile.ZIP_DEFLATED)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the wheel of the agents.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{write_agent_wheel(folder)}\n")


if __name__ == "__main__":
    main()
