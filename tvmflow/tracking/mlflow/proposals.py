"""Keep what a re-tune decided about a candidate that is not the champion: refused, or proposed to a person.

A proposal is the alias `proposal` of the registered model, so `models:/NAME@proposal` loads it, and a tag of the
version that says why. A refusal is a tag too. Both hold for one recipe, one champion and one set of release rules;
what differs in any of them is judged again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.tracking.mlflow.registry import (
    CHAMPION,
    PROPOSAL,
    SUPERSEDED,
    Version,
    find_alias,
    mlflow_lock,
    registry_name,
)
from tvmflow.tracking.mlflow.releases import promote
from tvmflow.tracking.mlflow.sqlite_reads import aliases_by_name
from tvmflow.tracking.mlflow.store import open_mlflow

REFUSED = "refused"
_LONGEST = 5000  # characters of a tag that every store takes


@dataclass(frozen=True)
class Judgement:
    """What a re-tune decided. champion: the version that it was compared with, "" for none; basis: digest of the
    recipe and of the release rules; text: the verdict; evidence: what it rests on, as JSON.
    """

    champion: str
    basis: str
    text: str
    when: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_tag(self) -> str:
        text = json.dumps({**asdict(self), "text": self.text[:1000]}, sort_keys=True)
        return text if len(text) <= _LONGEST else json.dumps({**asdict(self), "text": self.text[:1000], "evidence": {}})


@dataclass(frozen=True)
class Proposal:
    """A version that waits for a person. name: of the registered model."""

    name: str
    version: str
    judgement: Judgement


def keep_refusal(workspace: Workspace, version: Version, judgement: Judgement) -> None:
    """Note that a candidate was refused; it is no proposal any more."""
    _keep(workspace, version, REFUSED, judgement)


def keep_proposal(workspace: Workspace, version: Version, judgement: Judgement) -> None:
    """Propose a candidate, in place of an earlier proposal of its cell."""
    _keep(workspace, version, PROPOSAL, judgement)


def _keep(workspace: Workspace, version: Version, tag: str, judgement: Judgement) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    kept = Judgement(judgement.champion, judgement.basis, judgement.text, now, judgement.evidence)
    with mlflow_lock(workspace):
        client = open_mlflow(workspace)
        client.set_model_version_tag(version.name, version.version, tag, kept.to_tag())
        if tag == PROPOSAL:
            client.set_registered_model_alias(version.name, PROPOSAL, version.version)
        else:
            withdraw(client, version.name)


def withdraw(client: Any, name: str) -> None:
    """Remove the proposal of a cell, if there is one."""
    if find_alias(client, name, PROPOSAL) is not None:
        client.delete_registered_model_alias(name, PROPOSAL)


def judged_before(version: Version, champion: Version | None, basis: str) -> tuple[str, Judgement] | None:
    """Return REFUSED or PROPOSAL and the judgement that still holds for a candidate, None if it is to be judged."""
    beside = champion.version if champion else ""
    for tag in (PROPOSAL, REFUSED):
        known = _read(version.tags.get(tag, ""))
        if known is not None and (known.champion, known.basis) == (beside, basis):
            return tag, known
    return None


def _read(text: str) -> Judgement | None:
    try:
        return Judgement(**json.loads(text))
    except (ValueError, TypeError):
        return None


def proposals(workspace: Workspace) -> list[Proposal]:
    """Return the proposals that wait for a person, not those that were compared with an earlier champion. Starts
    MLflow only if there is one, or for a server.
    """
    names = {name: one for name, one in sorted(aliases_by_name(workspace).items()) if PROPOSAL in one}
    if not names:
        return []
    client, found = open_mlflow(workspace), []
    for name, aliases in names.items():
        version = find_alias(client, name, PROPOSAL)
        known = _read(version.tags.get(PROPOSAL, "")) if version else None
        if version is not None and known is not None and known.champion == aliases.get(CHAMPION, ""):
            found.append(Proposal(name, version.version, known))
    return found


def reject(workspace: Workspace, cell: Cell, why: str) -> Version:
    """Take back the proposal of a cell, as a refusal that holds until its recipe, its champion or the release rules
    change. Returns the version. Raises StoreError if there is no proposal.
    """
    with mlflow_lock(workspace):
        client = open_mlflow(workspace)
        version, known = _proposed(client, registry_name(cell))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        kept = Judgement(known.champion, known.basis, f"rejected: {why}", now, known.evidence)
        client.set_model_version_tag(version.name, version.version, REFUSED, kept.to_tag())
        client.delete_model_version_tag(version.name, version.version, PROPOSAL)
        withdraw(client, version.name)
    return version


def _proposed(client: Any, name: str) -> tuple[Version, Judgement]:
    version = find_alias(client, name, PROPOSAL)
    known = _read(version.tags.get(PROPOSAL, "")) if version else None
    if version is None or known is None or SUPERSEDED in version.tags:
        raise StoreError(f"{name} has no proposal", "a candidate of a re-tune", "'tvmflow status' lists the proposals")
    return version, known


def accept(workspace: Workspace, cell: Cell) -> tuple[Version, str]:
    """Make the proposal of a cell its champion. Returns the version and the verdict. Raises StoreError if there is
    none, or if another champion was released since.
    """
    name = registry_name(cell)
    with mlflow_lock(workspace):
        client = open_mlflow(workspace)
        (version, known), champion = _proposed(client, name), find_alias(client, name, CHAMPION)
        now = champion.version if champion else ""
        if known.champion != now:
            raise StoreError(
                f"the proposal of {name} was compared with version {known.champion or 'none'}, and the champion is "
                f"{f'version {now}' if now else 'none'} now",
                "a proposal that was compared with the champion",
                f"run 'tvmflow retune {cell}' again",
            )
        text = f"{name} version {version.version} is the champion now, as proposed on {known.when[:10]}: {known.text}"
        promote(workspace, version, text, {**known.evidence, "proposal": {"when": known.when, "text": known.text}})
        withdraw(client, name)
    return version, text
