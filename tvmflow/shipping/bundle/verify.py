"""Verify a bundle: its signature, the digest of every file, and the properties of every library.

The bundle is untrusted. It is copied once, into a private folder, and only that copy is read: what is checked is what
is used, whatever happens to the file meanwhile. First the archive's structure is checked, then the signature, then
every digest; only then is anything unpacked, and each library is inspected and run in a sandbox of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.sandbox.process import Policy, memory_for, run_in_sandbox
from tvmflow.shipping.bundle import aar, signing, xcframework
from tvmflow.shipping.bundle.abis import abi_named
from tvmflow.shipping.bundle.android_runtime import check_runtime, is_runtime
from tvmflow.shipping.bundle.archive import MAX_BYTES, MAX_TEXT_BYTES, Archive
from tvmflow.shipping.bundle.manifest import ENVELOPE, MANIFEST, Library, Manifest, read_manifest
from tvmflow.shipping.bundle.statement import subjects
from tvmflow.shipping.bundle.wheel import BESIDE, SUFFIX, bundle_in
from tvmflow.support.errors import BundleError, ModelFileError, SignatureError, UsageError
from tvmflow.support.files import sha256_of
from tvmflow.support.plain_files import copy_plain, read_plain
from tvmflow.support.temporary import temporary_folder

if TYPE_CHECKING:
    from tvmflow.shipping.bundle.run_on_device import DeviceTrial

_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Trust:
    """The required trust. key: the public key of the signature; None with unsigned: check everything else only.
    at_least: the lowest accepted release version, against downgrade attacks; sha256: of the one accepted bundle.
    unmeasured: accept libraries that no device has measured.
    """

    key: Ed25519PublicKey | None
    unsigned: bool = False
    at_least: int | None = None
    sha256: str | None = None
    unmeasured: bool = False


@dataclass(frozen=True)
class CheckedLibrary:
    """needed: required system libraries; ran, ran_on_device: the result of the golden inputs, or why they were not run;
    ran_on_device is "" without a device.
    """

    cell: str
    abi: str
    file: str
    needed: tuple[str, ...]
    ran: str
    ran_on_device: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "needed": list(self.needed)}


@dataclass(frozen=True)
class Verified:
    """The result of a valid bundle. signer: the key id, None if no signature was required; sha256: of what was checked,
    to compare with what is used afterwards. manifest: None for Android's runtime, which has no networks.
    """

    name: str
    version: int | None
    signer: str | None
    files: int
    libraries: tuple[CheckedLibrary, ...]
    manifest: Manifest | None
    sha256: str

    def to_json(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("name", "version", "signer", "files", "sha256")}
        return {**own, "libraries": [one.to_json() for one in self.libraries]}


def verify(path: Path, trust: Trust, device: DeviceTrial | None = None) -> Verified:
    """Verify a bundle. Raises SignatureError or BundleError for the first problem, UsageError without a key.

    device: also run its libraries there; raises DeviceError for a device failure.
    """
    if trust.key is None and not trust.unsigned:
        raise UsageError(
            "no key to trust",
            "the public key of your signer",
            "pass it as --key FILE.pub; --unsigned checks everything except who made the bundle",
        )
    if device is not None and trust.key is None:
        raise UsageError(
            f"running a bundle on {device.name} without a required signature",
            "a key: code on a device runs outside the sandbox",
            "pass your signer's public key as --key FILE.pub",
        )
    if is_runtime(path):
        return _verify_runtime(path, trust)
    with temporary_folder("verify") as folder, _checked_copy(path, trust, folder) as (whole, archive, manifest):
        _check_version(manifest, trust.at_least)
        libraries = tuple(_check_library(archive, library, folder, device) for library in manifest.libraries)
        signer = None if trust.key is None else signing.keyid(trust.key)
        return Verified(manifest.name, manifest.version, signer, len(archive.entries), libraries, manifest, whole)


def _verify_runtime(path: Path, trust: Trust) -> Verified:
    """Check the runtime's AAR: the signature beside it, its files, and the texts among them."""
    if trust.at_least is not None or trust.sha256 is not None:
        raise UsageError(f"{path.name} as a release", "the bundle of an app: the runtime has no releases")
    with temporary_folder("verify") as folder:
        own = _copy(path, folder)
        whole = sha256_of(own)
        if trust.key is not None:
            _check_whole(path, whole, trust.key)
        with Archive(own) as archive:
            for name in archive.entries:
                archive.sha256(name)  # as its CRC says
            check_runtime(archive)
            count = len(archive.entries)
    return Verified(path.stem, None, signing.keyid(trust.key) if trust.key else None, count, (), None, whole)


def check_contents(path: Path, trust: Trust) -> tuple[Manifest, str]:
    """Check signature and digests of a bundle without running its libraries. Returns its manifest, and the sha256 of
    the bytes that were checked. Raises SignatureError, BundleError, UsageError.
    """
    with temporary_folder("verify") as folder, _checked_copy(path, trust, folder) as (whole, _, manifest):
        return manifest, whole


@contextlib.contextmanager
def _checked_copy(path: Path, trust: Trust, folder: Path) -> Iterator[tuple[str, Archive, Manifest]]:
    """Copy a bundle and what is beside it, and check signature and digests. Yields sha256 of the whole, the archive,
    which reads the copy, and its manifest.
    """
    kind = xcframework.SUFFIX if path.name.endswith(xcframework.SUFFIX) else path.suffix
    own = _copy(path, folder)
    whole = sha256_of(own)
    if trust.sha256 not in (None, whole):
        raise BundleError(f"{path.name} is another bundle than was released", f"the one with sha256 {trust.sha256}")
    with contextlib.ExitStack() as opened:
        outer = archive = opened.enter_context(Archive(own))
        if kind in (aar.SUFFIX, SUFFIX, xcframework.SUFFIX) and trust.key is not None:
            _check_whole(path, whole, trust.key)
        if kind == SUFFIX:
            archive = bundle_in(archive)
        elif kind == aar.SUFFIX:
            archive = opened.enter_context(Archive(_copy(path.with_name(path.stem + aar.BUNDLE), folder)))
        elif kind == xcframework.SUFFIX:
            beside = path.name.removesuffix(kind) + xcframework.BUNDLE
            archive = opened.enter_context(Archive(_copy(path.with_name(beside), folder)))
        manifest = _check_digests(archive, signing.open_envelope(archive.read(ENVELOPE), trust.key))
        _check_measured(manifest, trust.unmeasured)
        if kind == aar.SUFFIX:
            aar.check_inside(outer, manifest)
        if kind == xcframework.SUFFIX:
            xcframework.check_inside(outer, archive, manifest, folder / "package")
        yield whole, archive, manifest


def _copy(path: Path, folder: Path) -> Path:
    own = folder / "bundle" / path.name
    own.parent.mkdir(exist_ok=True)
    try:
        copy_plain(path, own, MAX_BYTES, links=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "a bundle") from None
    return own


def _check_whole(path: Path, sha256: str, key: Ed25519PublicKey) -> None:
    """Compare a wheel, an AAR or a Swift package with the signed statement beside it."""
    beside = path.with_name(path.name + BESIDE)
    try:
        data = read_plain(beside, MAX_TEXT_BYTES, links=True)
    except FileNotFoundError:
        raise SignatureError(f"no {beside.name} next to {path.name}", "the envelope that was written with it") from None
    except OSError as error:
        raise SignatureError(f"{beside.name} cannot be read: {error.strerror}", "the envelope of the bundle") from None
    _compare("the statement next to it", {path.name: sha256}, subjects(signing.open_envelope(data, key)))


def _check_digests(archive: Archive, statement: bytes) -> Manifest:
    """Compare every file with statement and manifest; none may be missing or additional."""
    digests = {name: archive.sha256(name) for name in archive.entries}
    signed = subjects(statement)
    _compare("the statement", {name: digest for name, digest in digests.items() if name != ENVELOPE}, signed)
    manifest = read_manifest(archive.read(MANIFEST))
    others = {name: digest for name, digest in digests.items() if name not in (ENVELOPE, MANIFEST)}
    _compare("the manifest", others, {name: file.sha256 for name, file in manifest.files.items()})
    for name, file in manifest.files.items():
        if archive.entries[name].size != file.size:
            raise BundleError(f"{name} has {archive.entries[name].size} bytes", f"{file.size}, as the manifest says")
    return manifest


def _compare(where: str, digests: dict[str, str], named: dict[str, str]) -> None:
    for name in sorted(digests.keys() | named.keys()):
        if name not in named:
            raise BundleError(f"{name} has no digest in {where}", "only files that it names")
        if name not in digests:
            raise BundleError(f"{name!a} is missing", f"every file that {where} names")
        if digests[name] != named[name]:
            raise BundleError(f"{name} was altered: its digest differs from {where}", "the bytes that were written")


def _check_measured(manifest: Manifest, unmeasured: bool) -> None:
    others = [library.cell for library in manifest.libraries if not library.measured]
    if others and not unmeasured:
        raise BundleError(
            f"{', '.join(others)} {'was' if len(others) == 1 else 'were'} built without a device, and never measured",
            "measured libraries",
            "bundle it again after 'tvmflow run' with its device; --unmeasured accepts it, as for the CI of an app",
        )


def _check_version(manifest: Manifest, at_least: int | None) -> None:
    if at_least is not None and (manifest.version is None or manifest.version < at_least):
        what = f"version {manifest.version}" if manifest.version else "no release: it has no version"
        raise BundleError(
            f"{manifest.name} is {what}",
            f"at least version {at_least}",
            "a newer bundle may have been replaced by an older one",
        )


def _check_library(archive: Archive, library: Library, folder: Path, device: DeviceTrial | None) -> CheckedLibrary:
    """Unpack a library and its golden arrays, inspect it, and run it if it is for this machine, all in a sandbox."""
    abi, place = abi_named(library.abi), folder / library.soname
    if library.file != f"lib/{abi.name}/{library.soname}":
        raise BundleError(f"{library.cell} is in {library.file}", f"lib/{abi.name}/{library.soname}")
    arrays = library.golden.inputs + library.golden.outputs
    for name in filter(None, (library.file, library.scorecard, library.card, *(one.file for one in arrays))):
        if name not in archive.entries:
            raise BundleError(f"{name} is missing", f"every file that the manifest names for {library.cell}")
    archive.extract(library.file, place)
    for one in arrays:
        archive.extract(one.file, folder / one.file)
    policy = Policy(
        _TIMEOUT_S,
        (folder, RUNTIME / "python"),
        (),
        memory_for(place),
        what=f"{library.soname}, a library of the bundle,",
    )
    arguments = {"library": library.model_dump(mode="json"), "folder": str(folder)}
    try:
        trial: dict[str, Any] = run_in_sandbox("tvmflow.shipping.bundle.run_in_sandbox:try_library", arguments, policy)
    except ModelFileError as error:
        raise BundleError(error.found, "a library that runs its golden inputs") from None
    ran_there = device.run(library, folder) if device else ""
    return CheckedLibrary(library.cell, library.abi, library.file, tuple(trial["needed"]), trial["ran"], ran_there)
