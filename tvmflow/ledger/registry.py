"""The model registry: one name per model and target, one version per library, aliases say what is released.

champion: what is released now. challenger: the newest library that asks to replace it. previous: what `rollback` brings back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.errors import StoreError
from tvmflow.ledger.store_paths import open_mlflow
from tvmflow.params import Cell
from tvmflow.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"


@dataclass(frozen=True)
class Version:
    """A registered library. `tags` carry cell, digests, toolchain and the measurement that it was registered with."""

    name: str
    version: str
    run_id: str
    tags: dict[str, str]

    @property
    def sha256(self) -> str:
        return self.tags["library_sha256"]

    @property
    def dvc_md5(self) -> str:
        return self.tags["library_dvc_md5"]


def registry_name(cell: Cell) -> str:
    return f"{cell.model}.{cell.target}"


def register_version(client: MlflowClient, cell: Cell, model_id: str, run_id: str, tags: dict[str, str]) -> str:
    """Register a library and make it the challenger; a library that is registered already keeps its version."""
    from mlflow.exceptions import MlflowException

    name = registry_name(cell)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    known = client.search_model_versions(f"name = '{name}' and tags.library_sha256 = '{tags['library_sha256']}'")
    if known:
        version = max(known, key=lambda v: int(v.version))
        for key, value in tags.items():
            client.set_model_version_tag(name, version.version, key, value)
    else:
        version = client.create_model_version(name, source=f"models:/{model_id}", run_id=run_id, tags=tags)
    number = str(version.version)
    champion = _alias(client, name, CHAMPION)
    if champion is None or champion.version != number:
        client.set_registered_model_alias(name, CHALLENGER, number)
    return number


def version_by_alias(workspace: Workspace, cell: Cell, alias: str) -> Version | None:
    """Return the version that an alias names, None when there is none."""
    return _alias(open_mlflow(workspace), registry_name(cell), alias)


def version_by_sha256(workspace: Workspace, cell: Cell, sha256: str) -> Version | None:
    """Return the version of a library, None when it was never registered."""
    client = open_mlflow(workspace)
    name = registry_name(cell)
    found = client.search_model_versions(f"name = '{name}' and tags.library_sha256 = '{sha256}'")
    return _version(max(found, key=lambda v: int(v.version))) if found else None


def promote(workspace: Workspace, version: Version, why: str) -> None:
    """Make a version the champion; the champion before becomes `previous`."""
    client = open_mlflow(workspace)
    before = _alias(client, version.name, CHAMPION)
    if before is not None and before.version != version.version:
        client.set_registered_model_alias(version.name, PREVIOUS, before.version)
    client.set_registered_model_alias(version.name, CHAMPION, version.version)
    challenger = _alias(client, version.name, CHALLENGER)
    if challenger is not None and challenger.version == version.version:
        client.delete_registered_model_alias(version.name, CHALLENGER)
    client.set_model_version_tag(version.name, version.version, "promoted_because", why[:500])


def rollback(workspace: Workspace, cell: Cell) -> tuple[Version, Version]:
    """Make the previous champion the champion again. Returns (champion now, champion before). Raises StoreError."""
    client = open_mlflow(workspace)
    name = registry_name(cell)
    champion, previous = _alias(client, name, CHAMPION), _alias(client, name, PREVIOUS)
    if champion is None or previous is None:
        raise StoreError(
            f"{name} has no previous champion",
            "a champion that replaced another",
            "see 'tvmflow history' for what was released",
        )
    client.set_registered_model_alias(name, CHAMPION, previous.version)
    client.set_registered_model_alias(name, PREVIOUS, champion.version)
    return previous, champion


def all_aliases(workspace: Workspace) -> dict[str, dict[str, str]]:
    """Return registry name -> alias -> version number."""
    client = open_mlflow(workspace)
    return {
        model.name: {str(k): str(v) for k, v in model.aliases.items()} for model in client.search_registered_models()
    }


def _alias(client: MlflowClient, name: str, alias: str) -> Version | None:
    from mlflow.exceptions import MlflowException

    try:
        return _version(client.get_model_version_by_alias(name, alias))
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def _version(found: Any) -> Version:
    return Version(found.name, str(found.version), str(found.run_id), dict(found.tags))


def logged_library(workspace: Workspace, version: Version, target: Path) -> None:
    """Copy a registered library out of MLflow. Raises StoreError when it is not there."""
    import shutil

    from mlflow import artifacts
    from mlflow.exceptions import MlflowException

    client = open_mlflow(workspace)
    source = client.get_model_version(version.name, version.version).source
    try:
        folder = artifacts.download_artifacts(artifact_uri=source)
    except (MlflowException, OSError) as error:
        raise StoreError(
            f"the library of {version.name} version {version.version} is gone from MLflow: {error}"
        ) from error
    shutil.copyfile(Path(folder) / "library.so", target)
