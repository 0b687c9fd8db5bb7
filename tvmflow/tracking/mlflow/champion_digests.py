"""Read which libraries are champions from the file of a workspace's own registry, without MLflow, in one query."""

from __future__ import annotations

from dataclasses import dataclass

from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.address import path_of, registry_uri, sqlite_path
from tvmflow.tracking.mlflow.store import ask, exists


@dataclass(frozen=True)
class KnownChampion:
    """version: of the registered model; sha256, network_sha256: of its library, None where its tags lack them."""

    version: str
    sha256: str | None
    network_sha256: str | None

    def is_library(self, sha256: str, network_sha256: str) -> bool:
        """Return whether it is the library with these digests."""
        return self.sha256 == sha256 and self.network_sha256 in (None, network_sha256)


def champions_in_file(workspace: Workspace) -> dict[str, KnownChampion]:
    """Return the champions by registry name, read without MLflow: none for a store on a server. Raises StoreError."""
    path = sqlite_path(workspace)
    if path is None or path != path_of(registry_uri(workspace)):
        return {}
    if not exists(workspace, path) or not path.stat().st_size:
        return {}
    if not ask(workspace, "SELECT 1 FROM sqlite_master WHERE name = 'registered_model_aliases'"):
        return {}
    rows = ask(
        workspace,
        "SELECT alias.name, alias.version, tag.key, tag.value FROM registered_model_aliases AS alias LEFT JOIN "
        "model_version_tags AS tag ON tag.name = alias.name AND tag.version = alias.version "
        "AND tag.key IN ('library_sha256', 'network_sha256') WHERE alias.alias = 'champion'",
    )
    tags: dict[tuple[str, str], dict[str, str]] = {}
    for name, version, key, value in rows:
        tags.setdefault((str(name), str(version)), {})[str(key)] = str(value)
    return {
        name: KnownChampion(version, own.get("library_sha256"), own.get("network_sha256"))
        for (name, version), own in tags.items()
    }


def champion_with(workspace: Workspace, name: str, sha256: str, network_sha256: str) -> str | None:
    """Return the champion version of a registry name if it is this library, else None; does not use MLflow.

    Also None for a store on a server, which can only be queried through MLflow. Raises StoreError.
    """
    found = champions_in_file(workspace).get(name)
    return found.version if found and found.is_library(sha256, network_sha256) else None
