"""Read and write releases/APP.yaml, the history of an app's releases, which belongs in git.

The file alone defines what is released, and it is replaced atomically: what was written before (the bundle, its
evidence, DVC's files) has no effect until the file refers to it. Bundles are files of DVC; version numbers are never
reused.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import yaml
from filelock import FileLock
from pydantic import Field, ValidationError

from tvmflow.config.stage_params import Frozen
from tvmflow.config.value_types import Line, Name, Sha256
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError, UnknownNameError
from tvmflow.support.files import sha256_of, write_atomic
from tvmflow.support.plain_files import read_plain
from tvmflow.tracking.dvc import repository as dvc
from tvmflow.tracking.dvc.remote import open_remote

FOLDER = "releases"
_HEADER = "# Written by tvmflow: what was released of this app. Belongs into git.\n"
_MAX_BYTES = 16 << 20
Number = Annotated[int, Field(ge=1, le=10_000_000)]


class Bundle(Frozen):
    """A bundle under DVC. md5: its name in DVC's cache; signer: id of the signing key, None for an unsigned one."""

    sha256: Sha256
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    size: Annotated[int, Field(ge=0)]
    signer: Sha256 | None


class ReleasedCell(Frozen):
    """version: in the model registry; library_sha256: of the form for TVM, by which MLflow knows it; network_sha256: of
    what ships.
    """

    cell: Line
    abi: Name
    version: Line | None
    library_sha256: Sha256
    network_sha256: Sha256


class Version(Frozen):
    """A version of an app: its bundle, and the digest of the evidence file."""

    version: Number
    bundle: Bundle
    evidence_sha256: Sha256
    cells: Annotated[tuple[ReleasedCell, ...], Field(strict=False)]


class Change(Frozen):
    """A change of a channel. replaces: its version before."""

    what: Literal["release", "promote", "rollback"]
    channel: Name
    version: Number
    replaces: Number | None
    when: Line


class Signature(Frozen):
    """key: id of the signing key; value: hexadecimal digits."""

    key: Sha256
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class Releases(Frozen):
    """All releases of an app, oldest first. serial: rises with every change; expires: the last day of a signed file."""

    app: Name
    serial: Annotated[int, Field(ge=0)] = 0
    expires: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    versions: Annotated[tuple[Version, ...], Field(strict=False)] = ()
    changes: Annotated[tuple[Change, ...], Field(strict=False)] = ()
    signature: Signature | None = None

    def current(self, channel: str) -> Version | None:
        """Return the current version of a channel."""
        kept = self._versions_of_channel(channel)
        return self.numbered(kept[-1]) if kept else None

    def before(self, channel: str) -> Version | None:
        """Return the version that a rollback restores: the one before the current one."""
        kept = self._versions_of_channel(channel)
        return self.numbered(kept[-2]) if len(kept) > 1 else None

    def numbered(self, number: int) -> Version:
        return next(one for one in self.versions if one.version == number)

    @property
    def channels(self) -> dict[str, int]:
        """Return channel -> current version."""
        latest = {name: self.current(name) for name in dict.fromkeys(one.channel for one in self.changes)}
        return {name: one.version for name, one in latest.items() if one is not None}

    @property
    def next_number(self) -> int:
        return max((one.version for one in self.versions), default=0) + 1

    def _versions_of_channel(self, channel: str) -> list[int]:
        versions: list[int] = []
        for change in self.changes:
            if change.channel == channel:
                if change.what == "rollback":
                    versions.pop()
                else:
                    versions.append(change.version)
        return versions

    def add_change(self, what: Literal["release", "promote", "rollback"], channel: str, version: int) -> Releases:
        """Return the releases with one more change, at the current time."""
        before = self.current(channel)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        change = Change(
            what=what, channel=channel, version=version, replaces=before.version if before else None, when=when
        )
        return self.model_copy(update={"changes": (*self.changes, change)})


def folder_of(workspace: Workspace) -> Path:
    return workspace.root / FOLDER


def bundle_path(workspace: Workspace, app: str, version: int) -> Path:
    return folder_of(workspace) / f"{app}-{version}.zip"


def evidence_path(workspace: Workspace, app: str, version: int) -> Path:
    return folder_of(workspace) / f"{app}-{version}.json"


@contextlib.contextmanager
def releases_lock(workspace: Workspace, app: str) -> Iterator[None]:
    """Let one process at a time release an app; files of a killed process are removed."""
    path = workspace.artifacts / ".locks" / f"release-{app}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path):
        for left in (
            *folder_of(workspace).glob(f".{app}*.tmp"),
            *(workspace.artifacts / ".tmp").glob(f".release-{app}.zip.*"),
        ):
            left.unlink(missing_ok=True)
        yield


def read_releases(workspace: Workspace, app: str) -> Releases:
    """Return the releases of an app, empty without a file. Raises StoreError for a damaged one."""
    return releases_in(folder_of(workspace) / f"{app}.yaml", app)


def releases_in(path: Path, app: str) -> Releases:
    """Return the releases in a file, as `read_releases`."""
    try:
        releases = Releases.model_validate(yaml.safe_load(read_plain(path, _MAX_BYTES).decode()))
        known = {one.version for one in releases.versions}
        if (
            releases.app != app
            or len(known) < len(releases.versions)
            or {one.version for one in releases.changes} - known
        ):
            raise ValueError("another app, or missing versions")
        releases.channels  # noqa: B018 (every rollback has what it takes back)
        return releases
    except FileNotFoundError:
        return Releases(app=app)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", "the file as written by tvmflow") from None
    except (ValidationError, ValueError, yaml.YAMLError, RecursionError, IndexError, StopIteration):
        raise StoreError(
            f"{path} is damaged",
            "the file as written by tvmflow",
            f"restore it with 'git checkout {FOLDER}/{app}.yaml'",
        ) from None


def write_releases(workspace: Workspace, releases: Releases) -> None:
    """Replace the file of an app atomically."""
    text = yaml.safe_dump(releases.model_dump(mode="json"), sort_keys=False, width=160)
    write_atomic(folder_of(workspace) / f"{releases.app}.yaml", _HEADER + text)


def seen_serial(workspace: Workspace, app: str) -> int:
    """Return the highest serial that this workspace wrote, 0 for none."""
    try:
        return int(_serial_path(workspace, app).read_text())
    except (OSError, ValueError):
        return 0


def note_serial(workspace: Workspace, app: str, serial: int) -> None:
    write_atomic(_serial_path(workspace, app), str(serial))


def _serial_path(workspace: Workspace, app: str) -> Path:
    return workspace.artifacts / ".releases" / f"{app}.serial"


def claim_number(workspace: Workspace, app: str, number: int, sha256: str) -> None:
    """Reserve the number of a version for a bundle in the DVC remote, which all clones share.

    Raises StoreError if another clone has it. A clone that was killed before its releases file named the version takes
    its own number again.
    """
    remote = open_remote(workspace) if dvc.is_initialized(workspace) and workspace.params.flows.push_to_remote else None
    if remote is None or remote.is_own:
        return
    mine = json.dumps({"bundle": sha256, "clone": _clone(workspace)}, sort_keys=True).encode()
    name = f"{FOLDER}/{app}/{number}"
    known = remote.create(name, mine)
    try:
        by = json.loads(known)
        is_own, is_same = by["clone"] == _clone(workspace), by["bundle"] == sha256
    except (ValueError, KeyError, TypeError):
        is_own = is_same = False
    if is_own and not is_same:
        remote.write(name, mine)
    elif not is_same:
        raise StoreError(
            f"version {number} of {app} is the bundle of another clone",
            "a number that no clone has given",
            f"'git pull' brings {FOLDER}/{app}.yaml of that release; then run the command again",
        )


def _clone(workspace: Workspace) -> str:
    """Return the name of this clone in claims."""
    path = workspace.artifacts / ".clone"
    if not path.is_file():
        write_atomic(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8")


def keep_bundle(workspace: Workspace, path: Path) -> None:
    """Add a bundle to DVC, and to its default remote if runs push to it."""
    if not dvc.is_initialized(workspace):
        return
    name = path.relative_to(workspace.root).as_posix()
    dvc.run_dvc(workspace, "add", "--quiet", name)
    if workspace.params.flows.push_to_remote:
        dvc.run_dvc(workspace, "push", "--quiet", f"{name}.dvc")


def restore_bundle(workspace: Workspace, app: str, version: Version) -> Path:
    """Return the path of a version's bundle, restored from DVC's cache if missing. Raises StoreError."""
    path = bundle_path(workspace, app, version.version)
    try:
        if path.is_file() and sha256_of(path) == version.bundle.sha256:
            return path
    except OSError:
        pass
    dvc.file_by_md5(workspace, version.bundle.md5, version.bundle.sha256, path)
    return path


def check_app(workspace: Workspace, app: str) -> None:
    """Raise UnknownNameError for an app that is not in params.yaml."""
    if app not in workspace.params.apps:
        raise UnknownNameError(
            f"no app {app!r}", legal=workspace.params.apps, name=app, hint="add it under apps: in params.yaml"
        )
