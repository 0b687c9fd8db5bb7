"""Write a bundle as a Python wheel for one platform, with numpy as its only dependency.

The package contains the files of the bundle in `bundle/`, and a module that opens its networks. A wheel cannot contain
a signature of itself, so it is beside it: WHEEL.dsse.json, a statement about the whole file.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tvmflow.shipping.bundle.abis import abi_named
from tvmflow.shipping.bundle.archive import Archive, write_archive
from tvmflow.shipping.bundle.manifest import ENVELOPE, README, Manifest
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import envelope, open_envelope
from tvmflow.shipping.bundle.statement import restated
from tvmflow.shipping.bundle.write import BundleRequest, Content, content_of, contents, describe_content
from tvmflow.support.errors import BundleError
from tvmflow.support.files import sha256_of, write_atomic
from tvmflow.toolchain.triples import ARM32

_MACHINES = {ARM32: "armv7l"}  # architecture of a triple -> Python's name
SUFFIX, BESIDE = ".whl", ".dsse.json"
INSIDE = "bundle"  # folder of the package

_MODULE = '''\
"""{name}: networks that tvmflow compiled. `load()` opens one: numpy in, numpy out."""

from pathlib import Path

from .{inside}.python.tvmflow_network import Network, NetworkError, Tensor

__all__ = ["LIBRARIES", "NETWORKS", "Network", "NetworkError", "Tensor", "load"]
__version__ = "{version}"

LIBRARIES = {libraries}
# Cell -> its processor for LLVM, and the flags of /proc/cpuinfo that its code needs.
PROCESSORS = {processors}
# Name -> cells of a network for the CPU and for a GPU; None for none.
NETWORKS = {networks}
# Name -> its cells for CPUs with more instructions, the most demanding first.
FASTER = {faster}


def load(name=None, threads=0, cpu_mask=0):
    """Return a network. With libraries for the CPU and for a GPU the GPU computes while it can be trusted.

    name: which of NETWORKS, the only one by default, or a cell of LIBRARIES; threads: 0 for as many as it was tuned
    for.
    """
    if name is None and len(NETWORKS) == 1:
        name = next(iter(NETWORKS))
    if name not in NETWORKS and name not in LIBRARIES:
        raise ValueError(f"no network {{name!r}}; there are {{', '.join((*NETWORKS, *LIBRARIES))}}")
    folder = Path(__file__).parent / "{inside}"
    cpu, gpu = NETWORKS.get(name, (name, None))
    cpu = next((cell for cell in FASTER.get(name, ()) if not _missing(cell)), cpu)
    _check_processor(cpu or gpu)
    if cpu is None or gpu is None:
        return Network(folder / LIBRARIES[cpu or gpu], threads, cpu_mask)
    return Network(folder / LIBRARIES[cpu], threads, cpu_mask, gpu_library=folder / LIBRARIES[gpu])


def _missing(cell, cpuinfo="/proc/cpuinfo"):
    """Return the instructions of a cell's processor that this one lacks; none where the system does not say."""
    try:
        lines = Path(cpuinfo).read_text(errors="replace").splitlines()
    except OSError:
        return []
    lines = [one.partition(":")[2].split() for one in lines if one.lower().startswith(("flags", "features"))]
    return [one for one in PROCESSORS[cell][1] if lines and one not in lines[0]]


def _check_processor(cell, cpuinfo="/proc/cpuinfo"):
    """Raise NetworkError if the processor lacks instructions: running them would end the process."""
    if missing := _missing(cell, cpuinfo):
        name = PROCESSORS[cell][0]
        raise NetworkError(f"{{cell}} was compiled for {{name}}; this processor has no {{', '.join(missing)}}")
'''


def write_wheel(
    folder: Path, parts: Sequence[Part], request: BundleRequest, key: Ed25519PrivateKey | None
) -> tuple[Path, Manifest]:
    """Write a wheel, and with a key the envelope beside it. Returns where it is. Raises BundleError for cells of
    several ABIs.
    """
    manifest, files = contents(parts, request, key)
    return pack_wheel(folder, manifest, files, key), manifest


def pack_wheel(folder: Path, manifest: Manifest, files: Content, key: Ed25519PrivateKey | None) -> Path:
    """Write a wheel as `write_wheel` does, of the files of a bundle."""
    package, version = re.sub(r"[^a-z0-9]+", "_", manifest.name.lower()), str(manifest.version or 0)
    info, tag = f"{package}-{version}.dist-info", _tag(manifest)
    inside: Content = {f"{package}/{INSIDE}/{name}": content for name, content in files.items()}
    inside[f"{package}/__init__.py"] = _MODULE.format(
        name=manifest.name,
        version=version,
        inside=INSIDE,
        libraries={one.cell: one.file for one in manifest.libraries},
        processors={one.cell: (one.made.mcpu, one.made.flags) for one in manifest.libraries},
        networks={one.name: (one.cpu, one.gpu) for one in manifest.networks},
        faster={one.name: one.faster for one in manifest.networks},
    ).encode()
    readme = content_of(files, README)
    inside[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nSummary: Networks that tvmflow "
        f"compiled\nRequires-Python: >=3.9\n"
        "Requires-Dist: numpy\nDescription-Content-Type: text/markdown\n\n"
    ).encode() + readme
    inside[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tvmflow {manifest.tvmflow}\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    inside[f"{info}/RECORD"] = _record(inside, f"{info}/RECORD")
    path = folder / f"{package}-{version}-{tag}{SUFFIX}"
    write_archive(path, inside)
    write_envelope(path, files, key)
    return path


def write_envelope(path: Path, files: Content, key: Ed25519PrivateKey | None) -> None:
    """Write the signed statement of a bundle about a file that was made of it, beside that file."""
    beside = path.with_name(path.name + BESIDE)
    beside.unlink(missing_ok=True)
    if key is not None:
        own = open_envelope(content_of(files, ENVELOPE), None)
        write_atomic(beside, envelope(restated(own, {path.name: sha256_of(path)}), key).decode())


def _tag(manifest: Manifest) -> str:
    """Return the platform tag: the oldest C library that provides everything that the libraries need."""
    if len(manifest.abis) != 1:
        raise BundleError(
            f"cells for {', '.join(manifest.abis)}",
            "one ABI: a wheel is for one platform",
            "write one wheel per ABI with --abi",
        )
    abi = abi_named(manifest.abis[0])
    if abi.system != "gnu":
        raise BundleError(f"a wheel for {abi.name}", "a glibc-based Linux ABI")
    versions = [(2, 17), *(_glibc(text) for one in manifest.libraries for text in one.made.system)]
    major, minor = max(versions)
    return f"py3-none-manylinux_{major}_{minor}_{_MACHINES.get(abi.architecture, abi.architecture)}"


def _glibc(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _record(files: Content, own: str) -> bytes:
    lines = []
    for name in sorted(files):
        file = describe_content(files[name])
        digest = base64.urlsafe_b64encode(bytes.fromhex(file.sha256)).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{file.size}")
    return "\n".join([*lines, f"{own},,", ""]).encode()


def bundle_in(archive: Archive) -> Archive:
    """Return a view of a wheel as its bundle. Raises BundleError for none, or more than one, and for a file that
    `write_wheel` does not write: Python runs a .pth file at every start, and pip installs what .data/ holds anywhere.
    """
    names = list(archive.entries)
    packages = {name.split("/")[0] for name in names if name.split("/")[1:2] == [INSIDE]}
    if len(packages) != 1:
        raise BundleError(f"{len(packages)} bundles in a wheel", "exactly one")
    package = packages.pop()
    start = f"{package}/{INSIDE}/"
    own = re.compile(rf"{re.escape(package)}(/__init__\.py|-[0-9]+\.dist-info/(METADATA|WHEEL|RECORD))")
    for name in names:
        if not name.startswith(start) and not own.fullmatch(name):
            raise BundleError(f"{name} is in the wheel", "the files that tvmflow writes into one")
    return archive.below(start)
