"""Release apps: release_app, app_releases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tvmflow.api.bundles import part_of, signer_of
from tvmflow.api.workspace import Where, open_workspace
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.support.temporary import temporary_folder

if TYPE_CHECKING:
    from tvmflow.config.workspace import Workspace
    from tvmflow.shipping.bundle.part import Part
    from tvmflow.shipping.release_app import AppRelease
    from tvmflow.tracking.app_releases import Releases


def release_app(
    app: str,
    workspace: Where = None,
    channel: str | None = None,
    rollback: bool = False,
    key: Path | str | None = None,
    unsigned: bool = False,
    dry_run: bool = False,
    renew: bool = False,
    tell: Callable[[str], None] = lambda _step: None,
) -> AppRelease:
    """Release the champions of an app's cells as a new version on its own channel; see `passed` and `reasons`.

    channel: another channel, which gets the same bundle as the app's own channel; rollback: restore the channel's
    version before the current one; key, unsigned: as for `bundle`; renew: only sign releases/APP.yaml as it is; tell:
    called with each step. Raises UnknownNameError, StoreError, BundleError, SignatureError.
    """
    from tvmflow.shipping.bundle.signing import public_key
    from tvmflow.shipping.release_app import AppRelease, Order, Signer, promote_app, renew_releases, rollback_app
    from tvmflow.shipping.release_app import release_app as release
    from tvmflow.tracking.app_releases import check_app

    where = open_workspace(workspace)
    check_app(where, app)
    entry = where.params.apps[app]
    _check_channel(channel)
    if (rollback or renew or channel not in (None, entry.channel)) and dry_run:
        raise UsageError("--dry-run with a rollback, a promotion or --renew", "--dry-run only with a new release")
    root = public_key(where.root / entry.root_key) if entry.root_key else None
    signer = Signer(signer_of(key, unsigned), root, entry.valid_days)
    if renew:
        serial = renew_releases(where, app, signer).serial
        return AppRelease(app, f"signed, serial {serial}", entry.channel, None, None)
    if rollback:
        done = rollback_app(where, app, channel or entry.channel, tell, signer)
    elif channel is not None and channel != entry.channel:
        done = promote_app(where, app, entry.channel, channel, tell, signer)
    else:
        with temporary_folder("release") as folder:
            parts, missing = _parts(where, entry.cells, folder)
            done = release(where, Order(app, entry, parts, missing, signer.key, dry_run, root), tell)
    _tag(where, app)
    return done


def publish_app(
    app: str,
    to: Path | str,
    workspace: Where = None,
    channel: str | None = None,
    key: Path | str | None = None,
    unsigned: bool = False,
) -> str:
    """Publish the version on a channel, its packages and releases/APP.yaml. Returns where.

    to: a folder, `oci://HOST/NAME`, or an address of DVC's, as `s3://BUCKET/PATH` or `remote://NAME/PATH`; channel: by
    default the app's own; key, unsigned: as for `bundle`. Raises UnknownNameError, StoreError, BundleError,
    SignatureError, UsageError.
    """
    from tvmflow.shipping.bundle.signing import public_key
    from tvmflow.shipping.release_app import Signer
    from tvmflow.shipping.release_app import publish_app as publish
    from tvmflow.tracking.app_releases import check_app

    where = open_workspace(workspace)
    check_app(where, app)
    entry = where.params.apps[app]
    _check_channel(channel)
    root = public_key(where.root / entry.root_key) if entry.root_key else None
    signer = Signer(signer_of(key, unsigned), root, entry.valid_days)
    return publish(where, app, entry, channel or entry.channel, str(to), signer)


def _check_channel(channel: str | None) -> None:
    import re

    from tvmflow.config.value_types import NAME_PATTERN

    if channel is not None and not re.fullmatch(NAME_PATTERN, channel):
        raise UsageError(f"no channel {channel!a}", "a name of letters, digits, '-' and '_', e.g. stable")


def _parts(workspace: Workspace, cells: tuple[str, ...], folder: Path) -> tuple[list[Part], tuple[str, ...]]:
    """Return the parts of the champions of all cells, and the reasons for missing ones."""
    parts, missing = [], []
    for name in cells:
        cell = workspace.params.cell(name)
        try:
            parts.append(part_of(workspace, cell, False, folder / cell.slug))
        except StoreError as error:
            missing.append(error.found)
    return parts, tuple(missing)


def _tag(workspace: Workspace, app: str) -> None:
    """Tag each library in the model registry with its app version and channels; also completes what a crash
    left out.
    """
    from tvmflow.tracking.app_releases import read_releases
    from tvmflow.tracking.mlflow.registry import tag_released

    releases = read_releases(workspace, app)
    tags: dict[tuple[str, str], list[str]] = {}
    for channel, number in releases.channels.items():
        for one in releases.numbered(number).cells:
            if one.version is not None:
                tags.setdefault((one.cell, one.version), []).append(f"{channel} {number}")
    if tags:
        tag_released(workspace, f"app.{app}", {k: ", ".join(v) for k, v in tags.items()})


def app_releases(app: str, workspace: Where = None) -> Releases:
    """Return every version and change of an app's releases, oldest first. Raises UnknownNameError, StoreError."""
    from tvmflow.tracking.app_releases import check_app, folder_of, read_releases

    where = open_workspace(workspace)
    if not (folder_of(where) / f"{app}.yaml").is_file():
        check_app(where, app)
    return read_releases(where, app)
