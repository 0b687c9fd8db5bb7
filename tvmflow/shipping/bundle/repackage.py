"""Make packages of a bundle that was written before, wheels, an AAR and a Swift package, from its own files alone.

The same bundle and key give the same packages, so that a release needs to keep nothing but its bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tvmflow.shipping.bundle import texts
from tvmflow.shipping.bundle.aar import pack_aar
from tvmflow.shipping.bundle.abis import abi_named
from tvmflow.shipping.bundle.archive import Archive
from tvmflow.shipping.bundle.choices import choices
from tvmflow.shipping.bundle.manifest import ENVELOPE, MANIFEST, README, Library, Manifest, read_manifest
from tvmflow.shipping.bundle.maven import VERSIONS_FILE
from tvmflow.shipping.bundle.signing import envelope, open_envelope
from tvmflow.shipping.bundle.statement import restated
from tvmflow.shipping.bundle.wheel import pack_wheel
from tvmflow.shipping.bundle.write import SWIFT, Content, content_of, describe_content
from tvmflow.shipping.bundle.xcframework import pack_xcframework
from tvmflow.support.errors import BundleError

# Kind of package -> the systems of its ABIs.
_SYSTEMS = {"wheel": ("gnu",), "aar": ("android",), "xcframework": ("ios", "ios-simulator", "macos")}


def packages_of(
    bundle: Path, kinds: Sequence[str], folder: Path, key: Ed25519PrivateKey | None, group: str
) -> list[Path]:
    """Write packages of a checked bundle into a folder: wheels, a Swift package, and the Maven repository `maven`.
    Returns the wheels, the AAR and the Swift package. Raises BundleError for a kind that none of its libraries fits.
    """
    if not kinds:
        return []
    files = _unpacked(bundle, folder / ".bundle")
    manifest = read_manifest(content_of(files, MANIFEST))
    found: list[Path] = []
    for kind in kinds:
        abis = [name for name in manifest.abis if abi_named(name).system in _SYSTEMS[kind]]
        if not abis:
            raise BundleError(
                f"no {kind} of cells for {', '.join(manifest.abis)}",
                f"a cell of {' or '.join(_SYSTEMS[kind])}",
                "see 'packages' of the app",
            )
        if kind == "aar":
            found.append(pack_aar(folder / "maven", *_only(manifest, files, abis, key), key, group))
        elif kind == "xcframework":
            found.append(pack_xcframework(folder, *_only(manifest, files, abis, key), key))
        else:
            found += [pack_wheel(folder, *_only(manifest, files, [abi], key), key) for abi in abis]
    return found


def _unpacked(bundle: Path, folder: Path) -> Content:
    with Archive(bundle) as archive:
        for name in archive.entries:
            archive.extract(name, folder / name)
        return {name: folder / name for name in archive.entries}


def _only(
    manifest: Manifest, files: Content, abis: Sequence[str], key: Ed25519PrivateKey | None
) -> tuple[Manifest, Content]:
    """Return the bundle of some ABIs' libraries, signed anew; the bundle itself if it has no others."""
    kept = tuple(one for one in manifest.libraries if one.abi in abis)
    if len(kept) == len(manifest.libraries):
        return manifest, files
    others = {name for one in manifest.libraries if one not in kept for name in _files_of(one)}
    left: Content = {n: data for n, data in files.items() if n not in others and n not in (MANIFEST, ENVELOPE, README)}
    if not any(abi_named(one.abi).is_wasm for one in kept):
        left = {name: data for name, data in left.items() if not name.startswith("javascript/")}
    if not any(abi_named(one.abi).is_apple for one in kept):
        left.pop(SWIFT, None)
    made = manifest.model_copy(update={"libraries": kept, "networks": choices(kept)})
    left[README] = texts.readme(made)
    left["examples/app.c"] = texts.example(kept[0])
    named = {name: describe_content(data) for name, data in sorted(left.items())}
    made = made.model_copy(update={"files": named})
    left[MANIFEST] = made.to_bytes()
    digests = {name: describe_content(data).sha256 for name, data in left.items()}
    left[ENVELOPE] = envelope(restated(open_envelope(content_of(files, ENVELOPE), None), digests), key)
    return made, left


def _files_of(library: Library) -> Iterator[str]:
    yield from filter(None, (library.file, library.scorecard, library.card))
    yield from (one.file for one in (*library.golden.inputs, *library.golden.outputs))


def files_to_publish(folder: Path) -> list[Path]:
    """Return the files of a folder that `packages_of` filled, in the order in which a repository should get them: what
    names others is last.
    """
    files = [path for path in folder.rglob("*") if path.is_file() and ".bundle" not in path.relative_to(folder).parts]
    return sorted(files, key=lambda path: (path.suffix == ".yaml", path.name.startswith(VERSIONS_FILE), str(path)))
