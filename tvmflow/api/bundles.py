"""Write and verify bundles: bundle, verify_bundle, new_keys."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tvmflow.api.workspace import CellName, Where, cell_of, open_workspace
from tvmflow.support.errors import StoreError, UnknownNameError, UsageError
from tvmflow.support.files import sha256_of
from tvmflow.support.temporary import temporary_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from tvmflow.config.params import Cell
    from tvmflow.config.workspace import Workspace
    from tvmflow.pipeline.record import Record
    from tvmflow.shipping.bundle.manifest import Manifest
    from tvmflow.shipping.bundle.part import Part
    from tvmflow.shipping.bundle.run_on_device import DeviceTrial
    from tvmflow.shipping.bundle.signing import KeyPair
    from tvmflow.shipping.bundle.verify import Verified
    from tvmflow.tracking.mlflow.registry import Version


def bundle(
    *cells: CellName,
    output: Path | str | None = None,
    workspace: Where = None,
    abis: Sequence[str] | None = None,
    newest: bool = False,
    unmeasured: bool = False,
    key: Path | str | None = None,
    unsigned: bool = False,
    kind: Literal["zip", "wheel", "aar", "xcframework"] = "zip",
    group: str | None = None,
    kotlin: bool = False,
) -> tuple[Path, Manifest]:
    """Package the champions of cells as one signed archive for an app. Returns its path and its manifest.

    output: default: MODEL.zip in the current folder. abis: the required ABIs; default: those of the cells.
    newest: use the libraries in the cells' folders instead of the champions. unmeasured: use what was built, if need be
    without a device, as the manifest then says; `verify_bundle` refuses that unless told otherwise. key: file of the
    private key; default: the key in TVMFLOW_SIGNING_KEY. unsigned: do not sign. kind: `wheel` writes a Python wheel for
    cells of one ABI into the folder `output`; `aar` writes an Android library into a Maven repository there, under
    `group`, beside the runtime that it depends on; kotlin: and the runtime's functions for coroutines; `xcframework`
    writes a Swift package for Apple's systems into the folder. Raises StoreError if a cell has no champion, BundleError
    if a library cannot be bundled.
    """
    from tvmflow.shipping.bundle.aar import GROUP, write_aar
    from tvmflow.shipping.bundle.wheel import write_wheel
    from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
    from tvmflow.shipping.bundle.xcframework import write_xcframework

    where = open_workspace(workspace)
    wanted = [cell_of(where, cell) for cell in cells]
    if not wanted:
        raise UsageError("no cells for the bundle", "at least one", "name them: tvmflow bundle CELL...")
    if newest and unmeasured:
        raise UsageError("--newest, which was measured, and --unmeasured", "one of them")
    if (group is not None or kotlin) and kind != "aar":
        raise UsageError(f"{'a Maven group' if group else 'Kotlin'} without an AAR", "it only with the format aar")
    signer, is_file = signer_of(key, unsigned), kind == "zip"
    name = "-".join(dict.fromkeys(cell.model for cell in wanted))[:64]
    path, request = (
        Path(output or (f"{name}.zip" if is_file else ".")),
        BundleRequest(name, abis=tuple(abis) if abis else None),
    )
    if not (path.parent if is_file else path).is_dir():
        raise UsageError(f"no folder {path.parent if is_file else path}", "an existing folder for the bundle")
    with parts_of(where, wanted, newest, unmeasured) as parts:
        if kind == "wheel":
            return write_wheel(path, parts, request, signer)
        if kind == "aar":
            return write_aar(path, parts, request, signer, group or GROUP, kotlin)
        if kind == "xcframework":
            return write_xcframework(path, parts, request, signer)
        return path, write_bundle(path, parts, request, signer)


def signer_of(key: Path | str | None, unsigned: bool) -> Ed25519PrivateKey | None:
    """Return the signing key, or None for an unsigned bundle. Raises UsageError if neither is requested."""
    from tvmflow.shipping.bundle.signing import VARIABLE, signing_key

    if unsigned:
        if key is not None:
            raise UsageError("a key together with --unsigned", "either a key or --unsigned")
        return None
    private_key = signing_key(Path(key) if key is not None else None)
    if private_key is None:
        raise UsageError(
            "no key to sign with",
            f"--key FILE, or a key in {VARIABLE}",
            "create a key pair with 'tvmflow keys new FILE', or pass --unsigned for a bundle that nobody has to trust",
        )
    return private_key


@contextlib.contextmanager
def parts_of(workspace: Workspace, cells: Sequence[Cell], newest: bool, unmeasured: bool) -> Iterator[list[Part]]:
    """Yield the bundle part of each cell: its champion, or the library in its folders if `newest`; any library if
    `unmeasured`.
    """
    with temporary_folder("bundle") as name:
        if unmeasured:
            yield [_unmeasured_part(workspace, cell, Path(name) / cell.slug) for cell in cells]
        else:
            yield [part_of(workspace, cell, newest, Path(name) / cell.slug) for cell in cells]


def _unmeasured_part(workspace: Workspace, cell: Cell, folder: Path) -> Part:
    """Copy the files of a cell's up-to-date library into a folder. Raises StoreError if there is none."""
    from tasks.table import STAGES
    from tvmflow.pipeline.unmeasured import library_without_device
    from tvmflow.shipping.bundle.part import FILES, Part

    place, records = library_without_device(workspace, cell, STAGES)
    if not records:
        raise StoreError(
            f"no library of {cell} is built, or it is out of date",
            "one of the current params.yaml",
            f"run 'tvmflow run {cell} --without-device'",
        )
    for stage, files in FILES.items():
        for name in files if stage in records else ():
            target = folder / stage / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place.folder(stage, cell) / name, target)
            if sha256_of(target) != records[stage].outputs[name].sha256:
                raise StoreError(f"{stage}/{name} of {cell} changed meanwhile", hint="run the command again")
    return Part(str(cell), cell.slug, records, folder, is_measured=False)


def part_of(workspace: Workspace, cell: Cell, newest: bool, folder: Path) -> Part:
    """Copy a cell's files for a bundle into a folder. Raises StoreError if it has no champion or files are missing."""
    from tvmflow.shipping.bundle.part import Part

    version = None if newest else _champion(workspace, cell)
    number = version.version if version else None
    return Part(str(cell), cell.slug, _copy_files(workspace, cell, version, folder), folder, number)


def _copy_files(workspace: Workspace, cell: Cell, version: Version | None, folder: Path) -> Mapping[str, Record]:
    """Copy the files of a version from artifacts/ or DVC's cache, or from the model registry where those lack them."""
    from tasks.table import STAGES
    from tvmflow.shipping.bundle.part import FILES
    from tvmflow.tracking.dvc.chains import chain_of, restore_output
    from tvmflow.tracking.mlflow.version_files import version_stages

    try:
        records = chain_of(workspace, STAGES, cell, (version.sha256, version.network_sha256) if version else None)
        for stage, files in FILES.items():
            for file in files:
                if file == "network.so" and file not in records[stage].outputs:
                    continue  # an old version without it, which its manifest tells
                restore_output(workspace, records[stage], file, folder / stage / file)
        return records
    except StoreError as missing:
        if version is None:
            raise
        try:
            found = version_stages(workspace, version, folder)
        except StoreError as error:
            raise StoreError(f"{missing.found}; {error.found}", missing.expected, missing.hint) from error
        return {stage: found[stage] for stage in STAGES if stage in found}


def _champion(workspace: Workspace, cell: Cell) -> Version:
    """Return a cell's champion. Raises StoreError if there is none."""
    from tvmflow.tracking.mlflow.registry import CHAMPION, version_by_alias

    version = version_by_alias(workspace, cell, CHAMPION)
    if version is None:
        raise StoreError(
            f"{cell} has no champion",
            "a library that passed the release gate",
            f"run 'tvmflow run {cell}' and 'tvmflow promote {cell}'; --newest uses the newest build instead",
        )
    return version


def verify_bundle(
    path: Path | str,
    key: Path | str | None = None,
    unsigned: bool = False,
    at_least: int | None = None,
    device: str | None = None,
    workspace: Where = None,
    releases: Path | str | None = None,
    channel: str | None = None,
    root: Path | str | None = None,
    unmeasured: bool = False,
) -> Verified:
    """Verify an untrusted bundle: signature, digests, libraries; run the golden inputs of libraries for this machine.

    key: file of the required signer's public key; unsigned: accept any signature or none; at_least: reject an older
    release; releases: an untrusted releases/APP.yaml, whose version on `channel` the bundle has to be, at_least is then
    its serial; root: in place of key, the public root key, which says beside that file which keys may sign; device: a
    target of the workspace or the key of its device; also run the libraries there, which requires a signature.
    unmeasured: accept libraries that no device has measured. Raises BundleError.
    """
    from tvmflow.shipping.bundle.signing import public_key
    from tvmflow.shipping.bundle.verify import Trust, verify
    from tvmflow.shipping.release_trust import shipped

    trial = _device_trial(open_workspace(workspace), device) if device is not None else None
    if releases is None:
        if root is not None or channel is not None:
            raise UsageError("--root or --channel without --releases", "the file that they are about")
        signer = public_key(Path(key)) if key is not None else None
        return verify(Path(path), Trust(signer, unsigned, at_least, unmeasured=unmeasured), trial)
    trusted = root if key is None else key
    if unmeasured:
        raise UsageError("--unmeasured with --releases", "a release, of which every library was measured")
    if trusted is None or (key is not None and root is not None) or channel is None or unsigned:
        raise UsageError(
            "--releases without one key or without a channel", "--channel NAME, and --key FILE.pub or --root FILE.pub"
        )
    now = shipped(Path(releases), channel, public_key(Path(trusted)), root is not None, at_least)
    return verify(Path(path), Trust(now.key, at_least=now.version.version, sha256=now.version.bundle.sha256), trial)


def allow_keys(
    app: str, root: Path | str, keys: Sequence[Path | str], valid_days: int = 365, workspace: Where = None
) -> Path:
    """Write releases/APP.keys.json: the public keys that may sign an app's releases; others are revoked.

    root: file of the private root key, which is kept offline. Raises UnknownNameError, UsageError, SignatureError.
    """
    from tvmflow.shipping.bundle.signing import public_key, signing_key
    from tvmflow.shipping.release_trust import keys_path, sign_keys
    from tvmflow.support.files import write_atomic
    from tvmflow.tracking.app_releases import check_app, folder_of

    where = open_workspace(workspace)
    check_app(where, app)
    owner = signing_key(Path(root))
    assert owner is not None
    folder = folder_of(where)
    path = keys_path(folder, app)
    write_atomic(path, sign_keys(folder, app, owner, [public_key(Path(key)) for key in keys], valid_days).decode())
    return path


def _device_trial(workspace: Workspace, name: str) -> DeviceTrial:
    """Return the device with this target name or key. Raises UnknownNameError."""
    from tvmflow.devices.session import SessionLimits
    from tvmflow.shipping.bundle.run_on_device import DeviceTrial

    targets, rules = workspace.params.targets, workspace.params.deploy
    chosen = name if name in targets else next((key for key in targets if targets[key].device.key == name), None)
    if chosen is None:
        keys = {entry.device.key for entry in targets.values()}
        raise UnknownNameError(f"no device {name!a}", legal=keys | set(targets), name=name)
    return DeviceTrial(chosen, targets[chosen], SessionLimits(rules.session_timeout_s, rules.device_wait_s))


def new_keys(path: Path | str) -> KeyPair:
    """Generate a key pair: FILE (mode 0600) and FILE.pub. Raises UsageError if either exists."""
    from tvmflow.shipping.bundle.signing import new_keys as make

    return make(Path(path))
