"""Release an app: check the champions of all its cells together, write the bundle, and update releases/APP.yaml.

Every step before the last leaves the former release unchanged; the last replaces one file, which is signed. After a
crash, run the same command again. A promotion checks the file and the bundle that it names before it signs for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tvmflow.config.params import AppEntry
from tvmflow.config.workspace import Workspace
from tvmflow.devices.gpu.quarantine import read_quarantine
from tvmflow.shipping.bundle.manifest import Manifest
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import keyid
from tvmflow.shipping.bundle.verify import Trust, Verified, check_contents, verify
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
from tvmflow.shipping.gates.app import GateResult, judge_bundle, judge_cell, judge_gpu
from tvmflow.shipping.gates.gpu import gpu_reasons
from tvmflow.shipping.publish import Files, publish
from tvmflow.shipping.release_packages import published_files, refused_packages
from tvmflow.shipping.release_trust import VALID_DAYS, check_releases, check_signer, keys_path, sign_releases
from tvmflow.support.errors import BundleError, SignatureError, StoreError
from tvmflow.support.files import describe_file, write_atomic
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking import app_releases as ledger
from tvmflow.tracking.result_tables import held_reasons

Tell = Callable[[str], None]
_Keys = tuple[Ed25519PublicKey, ...]


@dataclass(frozen=True)
class AppRelease:
    """The result of a release command. what: release, promote, rollback, or none if the channel already has it;
    reasons: against it; bundle: its path.
    """

    app: str
    what: str
    channel: str
    version: int | None
    replaces: int | None
    reasons: tuple[str, ...] = ()
    bundle: Path | None = None

    @property
    def passed(self) -> bool:
        return not self.reasons

    @property
    def text(self) -> str:
        """Return what was done, as text."""
        if self.reasons:
            return f"{self.app} is not released: {'; '.join(self.reasons)}"
        if self.version is None:
            return f"{self.app}: {self.what}"
        if self.what == "none":
            return f"{self.app} version {self.version} is already on {self.channel}"
        was = f"version {self.replaces}" if self.replaces else "nothing"
        if self.what == "dry run":
            return f"{self.app}: all gates pass. Version {self.version} would be on {self.channel} (now {was}); " + (
                "nothing was released"
            )
        return f"{self.app} version {self.version} is now on {self.channel} (was {was}): {self.what}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reasons": list(self.reasons), "bundle": str(self.bundle) if self.bundle else None}


@dataclass(frozen=True)
class Order:
    """The requested release. missing: reasons why cells have no part."""

    app: str
    entry: AppEntry
    parts: Sequence[Part]
    missing: tuple[str, ...] = ()
    key: Ed25519PrivateKey | None = None
    dry_run: bool = False
    root: Ed25519PublicKey | None = None

    @property
    def signer(self) -> Signer:
        return Signer(self.key, self.root, self.entry.valid_days)


@dataclass(frozen=True)
class Signer:
    """Who signs the releases. key: None for unsigned ones; root: says which keys may sign, None: the key alone."""

    key: Ed25519PrivateKey | None = None
    root: Ed25519PublicKey | None = None
    valid_days: int = VALID_DAYS


def _open(workspace: Workspace, app: str, signer: Signer, renews: bool = False) -> tuple[ledger.Releases, _Keys]:
    """Return the releases, and the keys that may have signed their bundles. Raises SignatureError where the file is not
    of who may sign it, StoreError for an older one than this workspace wrote. renews: its signature is replaced.
    """
    folder, known, key = ledger.folder_of(workspace), ledger.read_releases(workspace, app), signer.key
    seen = ledger.seen_serial(workspace, app)
    if known.serial < seen:
        raise StoreError(
            f"releases/{app}.yaml has the serial {known.serial}",
            f"at least {seen}, which this workspace wrote: versions would be given out twice",
            "pull or check out the newest file",
        )
    if key is None:
        if known.signature is not None or signer.root is not None:
            raise SignatureError(f"the releases of {app} are signed", "a key that may sign them", "pass --key FILE")
        return known, ()
    if signer.root is not None:
        check_signer(folder, app, signer.root, key.public_key())
    if renews or not known.versions:
        return known, (key.public_key(),)
    is_root = signer.root is not None
    return known, check_releases(known, signer.root or key.public_key(), folder, is_root=is_root)


def _checked_bundle(workspace: Workspace, known: ledger.Releases, version: ledger.Version, keys: _Keys) -> Path:
    """Return the bundle of a version, restored if missing, after its signature and digests were checked."""
    path = ledger.restore_bundle(workspace, known.app, version)
    signer = next((key for key in keys if keyid(key) == version.bundle.signer), None)
    if keys and signer is None:
        whose = f"by the key {version.bundle.signer[:16]}" if version.bundle.signer else "by nobody"
        raise SignatureError(
            f"version {version.version} is signed {whose}", "a key that may sign releases", "release it again"
        )
    manifest, sha256 = check_contents(path, Trust(signer, unsigned=signer is None))
    if (manifest.name, manifest.version, sha256) != (known.app, version.version, version.bundle.sha256):
        raise BundleError(f"{path.name} is {manifest.name} version {manifest.version}", "the bundle that was released")
    return path


def release_app(workspace: Workspace, order: Order, tell: Tell) -> AppRelease:
    """Release a new version on the app's own channel, if every gate passes. Raises BundleError, StoreError."""
    app, channel = order.app, order.entry.channel
    with ledger.releases_lock(workspace, app):
        known, _ = _open(workspace, app, order.signer)
        current, number = known.current(channel), known.next_number
        tell("checking the gates")
        judged = [
            one
            for part in order.parts
            for one in judge_cell(
                part.cell,
                part.card,
                part.manifest.network.size,
                order.entry.gates,
            )
        ]
        held = read_quarantine(workspace.root)
        for part in (part for part in order.parts if part.manifest.network.gpu):
            judged += judge_gpu(part.cell, gpu_reasons(part.card, part.manifest.network.gpu, held))
        kept_back = [reason for part in order.parts for reason in held_reasons(workspace, part.cell)]
        reasons = [*order.missing, *kept_back, *(one.reason for one in judged if not one.passed)]
        if reasons:
            return AppRelease(app, "release", channel, None, current.version if current else None, tuple(reasons))
        tell("writing the bundle")
        draft = workspace.artifacts / ".tmp" / f"release-{app}.zip"
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                manifest = write_bundle(
                    draft, order.parts, BundleRequest(app, number, order.entry.abis or None), order.key
                )
            except BundleError as error:
                return AppRelease(app, "release", channel, None, current.version if current else None, (error.found,))
            cells = _cells(manifest)
            if current is not None and current.cells == cells:
                return AppRelease(
                    app, "none", channel, current.version, None, (), ledger.bundle_path(workspace, app, current.version)
                )
            tell("verifying the bundle")
            refused, verified = _verify(draft, order.key)
            judged += judge_bundle(draft.stat().st_size, order.entry.gates)
            refused += refused_packages(draft, order.entry, order.key)
            reasons = [*refused, *(one.reason for one in judged if not one.passed)]
            if reasons or order.dry_run:
                what = "release" if reasons else "dry run"
                return AppRelease(
                    app,
                    what,
                    channel,
                    None if reasons else number,
                    current.version if current else None,
                    tuple(reasons),
                )
            version = _keep(workspace, order, number, (draft, cells), _evidence(order, judged, verified), tell)
        finally:
            draft.unlink(missing_ok=True)
        known = known.model_copy(update={"versions": (*known.versions, version)})
        return _publish(workspace, known, ("release", channel, number), order.signer, tell)


def _cells(manifest: Manifest) -> tuple[ledger.ReleasedCell, ...]:
    return tuple(
        ledger.ReleasedCell(
            cell=one.cell,
            abi=one.abi,
            version=one.made.version,
            library_sha256=one.made.library_sha256,
            network_sha256=manifest.files[one.file].sha256,
        )
        for one in manifest.libraries
    )


def _verify(draft: Path, key: Ed25519PrivateKey | None) -> tuple[list[str], Verified | None]:
    try:
        return [], verify(draft, Trust(key.public_key() if key else None, unsigned=key is None))
    except BundleError as error:
        return [f"the bundle is refused: {error.found}"], None


def _evidence(order: Order, judged: Sequence[GateResult], verified: Verified | None) -> dict[str, Any]:
    return {
        "app": order.app,
        "gates": [one.to_json() for one in judged],
        "cells": {
            part.cell: {
                "version": part.version,
                "recipe": {stage: record.key for stage, record in part.records.items()},
                "scorecard_sha256": part.records["evaluate"].outputs["scorecard.json"].sha256,
                "measured": part.records["evaluate"].created,
            }
            for part in order.parts
        },
        "verified": [one.to_json() for one in verified.libraries] if verified else [],
    }


def _keep(
    workspace: Workspace,
    order: Order,
    number: int,
    made: tuple[Path, tuple[ledger.ReleasedCell, ...]],
    evidence: dict[str, Any],
    tell: Tell,
) -> ledger.Version:
    """Store bundle and evidence in their final places, before anything refers to them."""
    draft, cells = made
    file = describe_file(draft)
    ledger.claim_number(workspace, order.app, number, file.sha256)
    tell("storing the evidence")
    path, text = (
        ledger.evidence_path(workspace, order.app, number),
        json.dumps(evidence, sort_keys=True, indent=1) + "\n",
    )
    write_atomic(path, text)
    tell("storing the bundle")
    place = ledger.bundle_path(workspace, order.app, number)
    os.replace(draft, place)
    tell("adding the bundle to DVC")
    ledger.keep_bundle(workspace, place)
    signer = keyid(order.key.public_key()) if order.key else None
    bundle = ledger.Bundle(sha256=file.sha256, md5=file.md5, size=file.size, signer=signer)
    return ledger.Version(version=number, bundle=bundle, evidence_sha256=describe_file(path).sha256, cells=cells)


def promote_app(
    workspace: Workspace, app: str, source: str, channel: str, tell: Tell, signer: Signer = Signer()
) -> AppRelease:
    """Put the version of one channel on another: the same bytes. Raises StoreError if there is none, BundleError if its
    bundle is not what was signed.
    """
    with ledger.releases_lock(workspace, app):
        known, keys = _open(workspace, app, signer)
        version = known.current(source)
        if version is None:
            raise StoreError(
                f"{app} has no release on {source}", "a release on that channel", f"run 'tvmflow release {app}'"
            )
        path = _checked_bundle(workspace, known, version, keys)
        current = known.current(channel)
        if current is not None and current.version == version.version:
            return AppRelease(app, "none", channel, version.version, None, (), path)
        return _publish(workspace, known, ("promote", channel, version.version), signer, tell)


def rollback_app(workspace: Workspace, app: str, channel: str, tell: Tell, signer: Signer = Signer()) -> AppRelease:
    """Restore the version that a channel had before its current one. Raises as `promote_app`."""
    with ledger.releases_lock(workspace, app):
        known, keys = _open(workspace, app, signer)
        version = known.before(channel)
        if version is None:
            raise StoreError(
                f"{app} has no earlier release on {channel}",
                "one that replaced another",
                f"see 'tvmflow releases {app}' for what was released",
            )
        _checked_bundle(workspace, known, version, keys)
        return _publish(workspace, known, ("rollback", channel, version.version), signer, tell)


def publish_app(workspace: Workspace, app: str, entry: AppEntry, channel: str, to: str, signer: Signer) -> str:
    """Publish the version of a channel with its packages and the signed file of releases. Returns where. Raises as
    `promote_app`.
    """
    with ledger.releases_lock(workspace, app), temporary_folder("publish") as name:
        known, keys = _open(workspace, app, signer)
        version = known.current(channel)
        if version is None:
            raise StoreError(f"{app} has no release on {channel}", "a release", f"run 'tvmflow release {app}'")
        bundle = _checked_bundle(workspace, known, version, keys)
        folder = Path(name)
        lists = [ledger.folder_of(workspace) / f"{app}.yaml", keys_path(ledger.folder_of(workspace), app)]
        files = published_files(bundle, lists, entry, signer.key, folder)
        tags = (str(version.version), channel)
        return publish(Files(folder, files, tags), to, workspace.root / ".dvc")


def renew_releases(workspace: Workspace, app: str, signer: Signer) -> ledger.Releases:
    """Sign the file of releases as it is: with a new key, or before it expires."""
    with ledger.releases_lock(workspace, app):
        known, _ = _open(workspace, app, signer, renews=True)
        return _write(workspace, known, signer)


def _write(workspace: Workspace, releases: ledger.Releases, signer: Signer) -> ledger.Releases:
    signed = sign_releases(releases, signer.key, signer.valid_days)
    ledger.write_releases(workspace, signed)
    ledger.note_serial(workspace, signed.app, signed.serial)
    return signed


def _publish(
    workspace: Workspace, known: ledger.Releases, change: tuple[Any, str, int], signer: Signer, tell: Tell
) -> AppRelease:
    what, channel, number = change
    current = known.current(channel)
    tell("writing the entry")
    _write(workspace, known.add_change(what, channel, number), signer)
    tell("released")
    path = ledger.bundle_path(workspace, known.app, number)
    return AppRelease(known.app, what, channel, number, current.version if current else None, (), path)
