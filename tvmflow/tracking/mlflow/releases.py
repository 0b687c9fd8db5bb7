"""Promote and roll back champions, and keep the history of releases.

The list of changes decides: each is a tag of the registered model under a name of its own, so that changes from several
machines are all kept, and the aliases follow from the list. A change moves several aliases, one by one; the next one
completes an interrupted one. A lost store's champions are restored from artifacts/.recorded/releases.jsonl. Each change
has the sha256 of its evidence, a file in artifacts/.recorded/evidence/ and in the run of the library's measurement.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.support.files import digest_of, write_atomic
from tvmflow.tracking.mlflow.registry import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    PROPOSAL,
    SUPERSEDED,
    Version,
    all_names,
    find_alias,
    find_library,
    mlflow_lock,
    registry_name,
)
from tvmflow.tracking.mlflow.sqlite_reads import is_readable, read_model_tags
from tvmflow.tracking.mlflow.store import open_mlflow

if TYPE_CHECKING:
    from mlflow import MlflowClient

_TAG = "release."


@dataclass(frozen=True)
class Release:
    """One change of the champion. what: promote or rollback.

    evidence: sha256 of the evidence file; None for old changes without one.
    """

    what: str
    version: str
    before: str | None
    when: str
    why: str
    done: bool = False
    evidence: str | None = None


def promote(workspace: Workspace, version: Version, why: str, evidence: Mapping[str, Any] | None = None) -> None:
    """Make a version the champion of its cell; the former champion becomes `previous`. evidence: the reasons, as
    JSON.
    """
    with mlflow_lock(workspace):
        client = open_mlflow(workspace)
        finish(client, workspace, version.name)
        before = find_alias(client, version.name, CHAMPION)
        if before is None or before.version != version.version:
            change(client, workspace, "promote", version, before, why, evidence=evidence)
        client.set_model_version_tag(version.name, version.version, "promoted_because", why[:500])


def rollback(workspace: Workspace, cell: Cell) -> tuple[Version, Version]:
    """Restore the previous champion of a cell. Returns (new champion, former champion). Raises StoreError."""
    name = registry_name(cell)
    with mlflow_lock(workspace):
        client = open_mlflow(workspace)
        unfinished = finish(client, workspace, name)
        champion, previous = find_alias(client, name, CHAMPION), find_alias(client, name, PREVIOUS)
        if champion is None or previous is None or champion.version == previous.version:
            raise StoreError(
                f"{name} has no previous champion",
                "a champion that replaced an earlier one",
                "see 'tvmflow history' for what was released",
            )
        if unfinished == "rollback":  # the one that was cut off is the one that is asked for again
            return champion, previous
        change(client, workspace, "rollback", previous, champion, f"taken back: version {champion.version}")
    return previous, champion


def releases(workspace: Workspace, cell: Cell) -> list[Release]:
    """Return all changes of a cell's champion, oldest first."""
    if is_readable(workspace):
        return all_releases(workspace).get(registry_name(cell), [])
    return trail(open_mlflow(workspace), registry_name(cell))


def all_releases(workspace: Workspace) -> dict[str, list[Release]]:
    """Return registry name -> all changes of its champion, oldest first."""
    if is_readable(workspace):
        tags = read_model_tags(workspace)
    else:
        tags = {model.name: model.tags for model in all_names(open_mlflow(workspace))}
    changes = {name: _trail(of_name, {}).releases for name, of_name in tags.items()}
    return {name: of_name for name, of_name in changes.items() if of_name}


def change(
    client: MlflowClient,
    workspace: Workspace,
    what: str,
    version: Version,
    before: Version | None,
    why: str,
    when: str = "",
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Record a change of the champion and apply it."""
    earlier = trail(client, version.name)
    when = when or datetime.now(UTC).isoformat(timespec="seconds")
    when = max(when, earlier[-1].when) if earlier else when  # the clock of another machine may be ahead
    known: dict[str, Any] = {
        "what": what,
        "name": version.name,
        "version": version.version,
        "sha256": version.sha256,
        "network_sha256": version.known_network,
        "when": when,
        "why": why,
    }
    known |= {"before": before.version if before else None, "before_sha256": before.sha256 if before else None}
    proof = _keep(client, workspace, version, {**known, "evidence": dict(evidence or {})})
    release = Release(what, version.version, before.version if before else None, when, why[:500], evidence=proof)
    _write(client, version.name, _key(len(earlier) + 1, proof), release)
    settle(client, version.name)
    _record(client, workspace, version.name, len(earlier) + 1, release)


def evidence_path(workspace: Workspace, sha256: str) -> Path:
    """Return the path of a change's evidence."""
    return workspace.artifacts / ".recorded" / "evidence" / f"{sha256}.json"


def _keep(client: MlflowClient, workspace: Workspace, version: Version, evidence: Mapping[str, Any]) -> str:
    """Write the evidence of a change to artifacts/ and to the run of the library's measurement. Returns its sha256."""
    from mlflow.exceptions import MlflowException

    text = json.dumps(evidence, sort_keys=True, indent=1) + "\n"
    proof = hashlib.sha256(text.encode()).hexdigest()
    path = evidence_path(workspace, proof)
    write_atomic(path, text)
    with contextlib.suppress(MlflowException):  # the run may have been deleted
        client.log_artifact(version.run_id, str(path), "releases")
    return proof


def _record(client: MlflowClient, workspace: Workspace, name: str, number: int, release: Release) -> None:
    """Append a change to releases.jsonl if it is not there yet."""
    path = workspace.artifacts / ".recorded" / "releases.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = [
        None if number is None else client.get_model_version(name, number)
        for number in (release.version, release.before)
    ]
    line: dict[str, Any] = {**asdict(release), "done": False, "name": name, "number": number}
    line["sha256"], line["before_sha256"] = (
        version.tags["library_sha256"] if version else None for version in versions
    )
    line["network_sha256"] = versions[0].tags.get("network_sha256") if versions[0] else None
    text = json.dumps(line, sort_keys=True)
    known = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    if text not in known:
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def kept_changes(workspace: Workspace) -> list[dict[str, Any]]:
    """Return the changes in releases.jsonl, oldest first."""
    path = workspace.artifacts / ".recorded" / "releases.jsonl"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line for text in lines if (line := _line(text)) is not None]


def changes_in(client: MlflowClient) -> list[dict[str, Any]]:
    """Return the changes in a store, as the lines of releases.jsonl."""
    lines = []
    for model in all_names(client):
        digests = {str(v.version): v.tags for v in client.search_model_versions(f"name = '{model.name}'")}
        for entry in trail(client, model.name):
            tags = digests.get(entry.version, {})
            if "library_sha256" in tags:
                line = {**asdict(entry), "name": model.name, "sha256": tags["library_sha256"]}
                lines.append({**line, "network_sha256": tags.get("network_sha256")})
    return lines


def restore(client: MlflowClient, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Add the changes that the store lacks, of libraries that it has. Returns the names that got one."""
    restored = []
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_name.setdefault(line["name"], []).append(line)
    for name, changes in by_name.items():
        entries = trail(client, name)
        known = {(entry.what, entry.version, entry.when) for entry in entries}
        before, count = None, len(entries)
        for line in sorted(changes, key=lambda line: line["when"]):
            version = find_library(client, name, line["sha256"], line.get("network_sha256"))
            if version is None:
                continue
            release = Release(
                line["what"], version.version, before, line["when"], line["why"], evidence=line.get("evidence")
            )
            before = version.version
            if (release.what, release.version, release.when) not in known:
                known.add((release.what, release.version, release.when))
                count += 1
                _write(client, name, _key(count, release.evidence or digest_of(asdict(release))), release)
        if count > len(entries):
            settle(client, name)
            restored.append(name)
    return restored


def _line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
        return line if all(isinstance(line[key], str) for key in ("name", "what", "sha256", "when", "why")) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def trail(client: MlflowClient, name: str) -> list[Release]:
    """Return the changes of a name's champion, oldest first."""
    return _read(client, name).releases


@dataclass(frozen=True)
class _Trail:
    """The changes under their tags, oldest first; repeated: tags of changes to what was the champion already."""

    kept: tuple[tuple[str, Release], ...] = ()
    repeated: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def releases(self) -> list[Release]:
        return [release for _, release in self.kept]

    @property
    def keys(self) -> set[str]:
        return {key for key, _ in self.kept}


def _read(client: MlflowClient, name: str) -> _Trail:
    from mlflow.exceptions import MlflowException

    try:
        model = client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return _Trail()
        raise
    return _trail(model.tags, model.aliases)


def _trail(tags: Mapping[str, str], aliases: Mapping[str, Any]) -> _Trail:
    found = [(key, Release(**json.loads(text))) for key, text in tags.items() if key.startswith(_TAG)]
    kept: list[tuple[str, Release]] = []
    repeated = []
    for key, release in sorted(found, key=lambda entry: (entry[1].when, entry[0])):
        if kept and kept[-1][1].version == release.version:
            repeated.append(key)
        else:
            kept.append((key, release))
    return _Trail(tuple(kept), tuple(repeated), {str(k): str(v) for k, v in aliases.items()})


def _key(number: int, proof: str) -> str:
    return f"{_TAG}{number:06}.{proof[:12]}"


def _write(client: MlflowClient, name: str, key: str, release: Release) -> None:
    client.set_registered_model_tag(name, key, json.dumps(asdict(release), sort_keys=True))


def settle(client: MlflowClient, name: str) -> None:
    """Set the aliases that follow from the changes, until no other machine added one meanwhile."""
    now = _read(client, name)
    while True:
        before = now
        _set_aliases(client, name, now)
        for key in now.repeated:
            client.delete_registered_model_tag(name, key)
        for key, release in now.kept:
            if not release.done:
                _write(client, name, key, replace(release, done=True))
        now = _read(client, name)
        if now.keys == before.keys and not now.repeated:
            return


def _set_aliases(client: MlflowClient, name: str, now: _Trail) -> None:
    if not now.kept:
        return
    last = now.kept[-1][1]
    previous = now.kept[-2][1].version if len(now.kept) > 1 else last.before
    wanted = {CHAMPION: _successor(client, name, last.version)}
    if previous is not None:
        wanted = {PREVIOUS: _successor(client, name, previous), **wanted}
    for alias, number in wanted.items():
        if now.aliases.get(alias) != number:
            client.set_registered_model_alias(name, alias, number)
    for alias in (CHALLENGER, PROPOSAL):
        if now.aliases.get(alias) == wanted[CHAMPION]:
            client.delete_registered_model_alias(name, alias)


def _successor(client: MlflowClient, name: str, number: str) -> str:
    """Return the version that replaced a version, or that version."""
    return str(client.get_model_version(name, number).tags.get(SUPERSEDED, number))


def finish(client: MlflowClient, workspace: Workspace, name: str) -> str | None:
    """Complete interrupted changes. Returns the kind of the last one, or None if there was none."""
    now = _read(client, name)
    unfinished = [(at + 1, release) for at, (_, release) in enumerate(now.kept) if not release.done]
    if not unfinished:
        return None
    settle(client, name)
    for number, release in unfinished:
        _record(client, workspace, name, number, release)
    return unfinished[-1][1].what
