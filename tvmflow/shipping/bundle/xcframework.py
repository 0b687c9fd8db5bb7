"""Write networks as a Swift package for Xcode: an xcframework of archives, and their facade in Swift.

The package is one archive, NAME-VERSION-swift.zip, as SwiftPM takes it. Everything in it follows from the bundle that
is beside it, which is how `verify` checks it. Beside it is the signature of the whole file, too.
"""

from __future__ import annotations

import plistlib
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tvmflow.codegen.network.macho_objects import archive_of, members_of
from tvmflow.shipping.bundle.abis import abi_named
from tvmflow.shipping.bundle.archive import Archive, write_archive
from tvmflow.shipping.bundle.manifest import Library, Manifest
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.wheel import write_envelope
from tvmflow.shipping.bundle.write import SWIFT, BundleRequest, Content, content_of, contents, describe_content
from tvmflow.support.errors import BundleError, StageError
from tvmflow.toolchain.triples import triple_of

SUFFIX = "-swift.zip"
BUNDLE = "-bundle.zip"  # behind the package's name without its suffix
_HEADER = "include/tvmflow.h"
_PLATFORMS = {"ios": "iOS", "ios-simulator": "iOS", "macos": "macOS"}
_PACKAGE = """\
// swift-tools-version:5.7
// {name}, version {version}: networks that tvmflow {tvmflow} compiled, and that have run on nothing yet.
import PackageDescription

let package = Package(
    name: "{module}",
    platforms: [{platforms}],
    products: [.library(name: "{module}", targets: ["{module}"])],
    targets: [
        .target(name: "{module}", dependencies: ["C{module}"]),
        .binaryTarget(name: "C{module}", path: "C{module}.xcframework"),
    ]
)
"""
_NETWORKS = """\
import C{module}

/// The networks of {name}, version {version}.
public enum Networks {{
{fields}
}}
"""
_FIELD = "    public static var {word}: UnsafePointer<tvmflow_api> {{ c{module}_{word}() }}"
_OF_SLICE = """\
#ifndef C{module}_H
#define C{module}_H

#include "tvmflow.h"

{functions}

#endif
"""
_FUNCTION = """\
const tvmflow_api *_Nonnull {symbol}(void);
/* {cell} */
static inline const tvmflow_api *_Nonnull c{module}_{word}(void) {{ return {symbol}(); }}"""
_MODULE_MAP = """\
module C{module} {{
  header "tvmflow.h"
  header "C{module}.h"
  export *
}}
"""


def write_xcframework(
    folder: Path, parts: Sequence[Part], request: BundleRequest, key: Ed25519PrivateKey | None
) -> tuple[Path, Manifest]:
    """Write a Swift package and its bundle into a folder, and with a key the envelope beside it. Returns where it is.
    Raises BundleError for cells of other systems than Apple's.
    """
    manifest, files = contents(parts, request, key)
    return pack_xcframework(folder, manifest, files, key), manifest


def pack_xcframework(folder: Path, manifest: Manifest, files: Content, key: Ed25519PrivateKey | None) -> Path:
    """Write a Swift package as `write_xcframework` does, of the files of a bundle."""
    inside = _files(manifest, {name: files[name] for name in _needed(manifest)})
    stem = f"{re.sub(r'[^A-Za-z0-9]+', '-', manifest.name).strip('-').lower()}-{manifest.version or 0}"
    path = folder / f"{stem}{SUFFIX}"
    write_archive(path, inside)
    write_archive(path.with_name(stem + BUNDLE), files)
    write_envelope(path, files, key)
    return path


def check_inside(package: Archive, bundle: Archive, manifest: Manifest, folder: Path) -> None:
    """Check that a package is what `write_xcframework` writes of a bundle, which is unpacked into a folder. Raises
    BundleError.
    """
    for name in _needed(manifest):
        if name not in bundle.entries:
            raise BundleError(f"{name} is missing", "every file that a Swift package is made of")
        bundle.extract(name, folder / name)
    wanted = _files(manifest, {name: folder / name for name in _needed(manifest)})
    for name in sorted({*wanted, *package.entries}):
        if name not in wanted:
            raise BundleError(f"{name} is in the Swift package", "the files that tvmflow writes into one")
        if name not in package.entries:
            raise BundleError(f"{name} is not in the Swift package", "every file that tvmflow writes into one")
        if package.sha256(name) != describe_content(wanted[name]).sha256:
            raise BundleError(f"{name} in the Swift package differs from the bundle's", "what its bundle makes")


def _needed(manifest: Manifest) -> tuple[str, ...]:
    for name in manifest.abis:
        if not abi_named(name).is_apple:
            raise BundleError(f"an xcframework for {name}", "systems of Apple's", "bundle cells of Apple's targets")
    return (_HEADER, SWIFT, *(one.file for one in manifest.libraries))


def _files(manifest: Manifest, given: Content) -> Content:
    """Return the files of the package. given: those of the bundle that it has."""
    module = "".join(word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", manifest.name)) or "Models"
    module = f"N{module}" if module[0].isdigit() else module
    slices = {abi: _networks(manifest, abi) for abi in manifest.abis}
    words = {abi: sorted(networks) for abi, networks in slices.items()}
    first = words[manifest.abis[0]]
    if odd := [abi for abi, found in words.items() if found != first]:
        raise BundleError(
            f"{', '.join(first)} on {manifest.abis[0]} and {', '.join(words[odd[0]])} on {odd[0]}",
            "the same networks for each system: cells of each model",
        )
    facts = {"module": module, "name": manifest.name, "version": manifest.version or 0, "tvmflow": manifest.tvmflow}
    fields = "\n".join(_FIELD.format(word=word, module=module) for word in first)
    root = f"C{module}.xcframework"
    swift = content_of(given, SWIFT).replace(b"import CNETWORKS\n", f"import C{module}\n".encode())
    files: Content = {
        "Package.swift": _PACKAGE.format(**facts, platforms=_platforms(manifest)).encode(),
        f"Sources/{module}/Network.swift": swift,
        f"Sources/{module}/Networks.swift": _NETWORKS.format(**facts, fields=fields).encode(),
        f"{root}/Info.plist": _plist(module, manifest.abis),
    }
    for abi, networks in slices.items():
        place = f"{root}/{abi}"
        files[f"{place}/libC{module}.a"] = _merged([given[one.file] for one in networks.values()])
        functions = [
            _FUNCTION.format(symbol=one.symbol, cell=one.cell, module=module, word=word)
            for word, one in networks.items()
        ]
        header = _OF_SLICE.format(module=module, functions="\n".join(functions))
        # In a folder of its own: Xcode puts the headers of all packages of an app into one.
        files[f"{place}/Headers/C{module}/C{module}.h"] = header.encode()
        files[f"{place}/Headers/C{module}/module.modulemap"] = _MODULE_MAP.format(module=module).encode()
        files[f"{place}/Headers/C{module}/tvmflow.h"] = given[_HEADER]
    return files


def _networks(manifest: Manifest, abi: str) -> dict[str, Library]:
    """Return the networks of a system by the names that they have in C and Swift, sorted."""
    found: dict[str, Library] = {}
    for one in manifest.networks:
        if one.abi != abi or one.cpu is None:
            continue
        if one.faster:
            raise BundleError(f"{len(one.faster) + 1} libraries of {one.name} for {abi}", "one for each system")
        word = re.sub(r"[^A-Za-z0-9]+", "_", one.name)
        word = f"_{word}" if word[:1].isdigit() else word
        if word in found:
            raise BundleError(f"two networks {word} in one package", "names that differ in letters")
        found[word] = manifest.library(one.cpu)
    return dict(sorted(found.items()))


def _platforms(manifest: Manifest) -> str:
    """Return the oldest systems that all libraries work with, in Swift."""
    oldest: dict[str, tuple[int, ...]] = {}
    for one in manifest.libraries:
        triple = triple_of(one.made.mtriple)
        version = tuple(int(part) for part in triple.version.split("."))
        name = _PLATFORMS[triple.system]
        oldest[name] = max(version, oldest.get(name, version))
    return ", ".join(f'.{name}("{".".join(map(str, version))}")' for name, version in sorted(oldest.items()))


def _plist(module: str, abis: Sequence[str]) -> bytes:
    libraries = []
    for abi in abis:
        system, _, variant = abi_named(abi).system.partition("-")
        entry = {
            "HeadersPath": "Headers",
            "LibraryIdentifier": abi,
            "LibraryPath": f"libC{module}.a",
            "SupportedArchitectures": ["arm64"],
            "SupportedPlatform": system,
        }
        libraries.append(entry | ({"SupportedPlatformVariant": variant} if variant else {}))
    content = {"AvailableLibraries": libraries, "CFBundlePackageType": "XFWK", "XCFrameworkFormatVersion": "1.0"}
    return plistlib.dumps(content)


def _merged(archives: Sequence[bytes | Path]) -> bytes | Path:
    """Return one archive with the objects of several, whose names differ. Raises BundleError for one of others."""
    if len(archives) == 1:
        return archives[0]
    members: dict[str, bytes] = {}
    try:
        for at, one in enumerate(archives):
            found = members_of(one if isinstance(one, bytes) else one.read_bytes())
            members |= {f"{at}-{name}": data for name, data in found.items()}
        return archive_of(members)
    except (StageError, struct.error, ValueError, IndexError):
        raise BundleError("an archive without whole objects", "archives that tvmflow wrote") from None
