"""Promote and roll back champions, and keep the history of releases.

A change of the champion moves several aliases, one by one. It is recorded before it starts and when it is done; the
next change completes an interrupted one. The history is in the tags of the registered model, and in
artifacts/.recorded/releases.jsonl, from which a lost store's champions are restored. Each change has the sha256 of its
evidence, a file in artifacts/.recorded/evidence/ and in the run of the library's measurement.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.support.files import write_atomic
from tvmflow.tracking.mlflow.registry import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
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
    return _trail(open_mlflow(workspace), registry_name(cell))


def all_releases(workspace: Workspace) -> dict[str, list[Release]]:
    """Return registry name -> all changes of its champion, oldest first."""
    if is_readable(workspace):
        changes = {name: _changes(tags) for name, tags in read_model_tags(workspace).items()}
    else:
        changes = {model.name: _changes(model.tags) for model in all_names(open_mlflow(workspace))}
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
    when = when or datetime.now(UTC).isoformat(timespec="seconds")
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
    number = len(_trail(client, version.name)) + 1
    _write(client, version.name, number, release)
    _apply(client, version.name, number, release)
    _record(client, workspace, version.name, number, release)


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


def restore(client: MlflowClient, workspace: Workspace) -> list[str]:
    """Restore missing champions from releases.jsonl. Returns the names that got one."""
    path = workspace.artifacts / ".recorded" / "releases.jsonl"
    lines: dict[str, list[dict[str, Any]]] = {}
    try:
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            line = _line(text)
            if line is not None:
                lines.setdefault(line["name"], []).append(line)
    except OSError:
        return []
    restored = []
    for name, changes in lines.items():
        if find_alias(client, name, CHAMPION) is None:
            for line in changes:
                version = find_library(client, name, line["sha256"], line.get("network_sha256"))
                if version is not None:
                    before = find_alias(client, name, CHAMPION)
                    release = Release(
                        line["what"],
                        version.version,
                        before.version if before else None,
                        line["when"],
                        line["why"],
                        evidence=line.get("evidence"),
                    )
                    number = len(_trail(client, name)) + 1
                    _write(client, name, number, release)
                    _apply(client, name, number, release)
            if find_alias(client, name, CHAMPION) is not None:
                restored.append(name)
    return restored


def _line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
        return line if all(isinstance(line[key], str) for key in ("name", "what", "sha256", "when", "why")) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _trail(client: MlflowClient, name: str) -> list[Release]:
    from mlflow.exceptions import MlflowException

    try:
        tags = client.get_registered_model(name).tags
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return []
        raise
    return _changes(tags)


def _changes(tags: Mapping[str, str]) -> list[Release]:
    return [Release(**json.loads(tags[key])) for key in sorted(tags) if key.startswith(_TAG)]


def _write(client: MlflowClient, name: str, number: int, release: Release) -> None:
    client.set_registered_model_tag(name, f"{_TAG}{number:06}", json.dumps(asdict(release), sort_keys=True))


def _apply(client: MlflowClient, name: str, number: int, release: Release) -> None:
    if release.before is not None:
        client.set_registered_model_alias(name, PREVIOUS, release.before)
    client.set_registered_model_alias(name, CHAMPION, release.version)
    challenger = find_alias(client, name, CHALLENGER)
    if challenger is not None and challenger.version == release.version:
        client.delete_registered_model_alias(name, CHALLENGER)
    _write(client, name, number, replace(release, done=True))


def finish(client: MlflowClient, workspace: Workspace, name: str) -> str | None:
    """Complete an interrupted change. Returns its kind, or None if there was none."""
    trail = _trail(client, name)
    if not trail or trail[-1].done:
        return None
    _apply(client, name, len(trail), trail[-1])
    _record(client, workspace, name, len(trail), trail[-1])
    return trail[-1].what
