"""Access the model registry: one name per cell, one version per library, aliases for releases.

champion: the released library. challenger: the newest candidate to replace it. previous: the one that `rollback`
restores. proposal: the one that `promote --proposal` makes the champion.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.address import is_server
from tvmflow.tracking.mlflow.store import open_mlflow, pages

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
PROPOSAL = "proposal"  # a candidate that a re-tune proposes to a person
SUPERSEDED = "superseded_by"  # the tag of a version whose library has another one
_MODEL = re.compile(r"\bm-[0-9a-f]{32}\b")
Versions = dict[tuple[str, str, str], str]  # registry name, sha256 of library.so, of network.so -> version
STAGES_FOLDER = "stages"  # of a version's files: what its stages made, with their records


@dataclass(frozen=True)
class Version:
    """A registered library. `tags` contain its cell, digests, toolchain and first measurement.

    It is identified by the sha256 of library.so (requires TVM) and of network.so ("" if it has none).
    """

    name: str
    version: str
    run_id: str
    tags: dict[str, str]
    source: str = ""

    @property
    def sha256(self) -> str:
        return self.tags["library_sha256"]

    @property
    def dvc_md5(self) -> str:
        return self.tags["library_dvc_md5"]

    @property
    def known_network(self) -> str | None:
        """Return the sha256 of network.so: "" if the library has none, None for old versions, which do not record
        it.
        """
        return self.tags.get("network_sha256")

    @property
    def network_sha256(self) -> str:
        return self.known_network or ""

    @property
    def network_dvc_md5(self) -> str:
        return self.tags.get("network_dvc_md5", "")


def registry_name(cell: Cell) -> str:
    """Return the name under which all libraries of a cell are registered."""
    return f"{cell.model}.{cell.target}.{cell.precision}"


@contextlib.contextmanager
def mlflow_lock(workspace: Workspace) -> Iterator[None]:
    """Hold the store's lock between processes; reentrant within a process."""
    path = workspace.artifacts / ".locks" / "mlflow.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path, is_singleton=True):
        yield


def register_version(client: MlflowClient, cell: Cell, model_id: str, run_id: str, tags: dict[str, str]) -> str:
    """Register a library and make it the challenger; an already registered library keeps its version.

    Of two versions that two machines registered at once, both keep the first. A version whose files lie with one user
    is replaced by a new one.
    """
    name = registry_name(cell)
    make_name(client, name)
    digests = (tags["library_sha256"], tags.get("network_sha256", ""))
    known = find_library(client, name, *digests)
    is_known = known is not None and known.known_network is not None
    if known is not None and is_known and _has_files(client, known):
        number = known.version
        for key, value in tags.items():
            client.set_model_version_tag(name, number, key, value)
    else:
        made = _create_version(client, name, model_id, run_id, tags)
        number = str(made.version)
        if known is not None and is_known:
            client.set_model_version_tag(name, known.version, SUPERSEDED, number)
            _move_aliases(client, name, known.version, number)
        first = find_library(client, name, *digests)
        if first is not None and first.version != number:
            client.delete_model_version(name, number)
            number = first.version
    champion, challenger = find_alias(client, name, CHAMPION), find_alias(client, name, CHALLENGER)
    is_newest = challenger is None or challenger.tags.get("measured", "") <= tags["measured"]
    if is_newest and (champion is None or champion.version != number):
        client.set_registered_model_alias(name, CHALLENGER, number)
    return number


def _create_version(client: MlflowClient, name: str, model_id: str, run_id: str, tags: dict[str, str]) -> Any:
    """Create a version of a logged model; a registry apart from the runs does not know that model, only its place."""
    if client._registry_uri == client.tracking_uri:
        return client.create_model_version(name, f"models:/{model_id}", run_id, tags, model_id=model_id)
    return client.create_model_version(name, client.get_logged_model(model_id).artifact_location, run_id, tags)


def _has_files(client: MlflowClient, version: Version) -> bool:
    """Return whether everyone can have the files of a version; an earlier version kept them with the first user."""
    if not is_server(client.tracking_uri):
        return True
    from mlflow.exceptions import MlflowException

    try:
        location = client.get_logged_model(model_of(version)).artifact_location
    except MlflowException:
        return False
    model = version.tags.get("cell", "").partition("@")[0]
    return "://" in location or f"/mlruns/artifacts/{model}/" not in location


def _move_aliases(client: MlflowClient, name: str, old: str, new: str) -> None:
    for alias, number in client.get_registered_model(name).aliases.items():
        if str(number) == old:
            client.set_registered_model_alias(name, alias, new)


def make_name(client: MlflowClient, name: str) -> None:
    """Create a registered model if it does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def version_by_alias(workspace: Workspace, cell: Cell, alias: str) -> Version | None:
    """Return the version with an alias, or None."""
    return find_alias(open_mlflow(workspace), registry_name(cell), alias)


def version_by_sha256(
    workspace: Workspace, cell: Cell, sha256: str, network_sha256: str | None = None
) -> Version | None:
    """Return the version of a library, or None if it was never registered; see find_library."""
    return find_library(open_mlflow(workspace), registry_name(cell), sha256, network_sha256)


def all_aliases(workspace: Workspace) -> dict[str, dict[str, str]]:
    """Return registry name -> alias -> version number."""
    return {
        model.name: {str(k): str(v) for k, v in model.aliases.items()} for model in all_names(open_mlflow(workspace))
    }


def all_names(client: MlflowClient) -> Iterator[Any]:
    """Return all registered models."""
    return pages(client.search_registered_models)


def find_alias(client: MlflowClient, name: str, alias: str) -> Version | None:
    """Return the version with an alias, or None."""
    from mlflow.exceptions import MlflowException

    try:
        return _version(client.get_model_version_by_alias(name, alias))
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def find_library(client: MlflowClient, name: str, sha256: str, network_sha256: str | None = None) -> Version | None:
    """Return the version of a library, or None if it was never registered under this name.

    network_sha256: digest of network.so; "": no network.so; None: any, the newest. Old versions do not record it and
    are used only if no other version matches.
    """
    found = client.search_model_versions(f"name = '{name}' and tags.library_sha256 = '{sha256}'")
    matches = [version for version in map(_version, found) if SUPERSEDED not in version.tags]
    if network_sha256 is None:
        return max(matches, key=_number, default=None)
    same = [version for version in matches if version.known_network == network_sha256]
    old = [version for version in matches if version.known_network is None]
    return min(same, key=_number) if same else max(old, key=_number, default=None)


def versions_by_digests(registered: Iterable[tuple[str, int, Mapping[str, str]]]) -> Versions:
    """Return the version of each library, as find_library does, from name, number and tags of all versions."""
    versions: Versions = {}
    decided = set()
    for name, number, tags in sorted(registered, key=lambda one: one[1]):
        library = (name, tags.get("library_sha256", ""), tags.get("network_sha256", ""))
        if SUPERSEDED not in tags and library not in decided:
            versions[library] = str(number)
            if "network_sha256" in tags:
                decided.add(library)
    return versions


def _number(version: Version) -> int:
    return int(version.version)


def _version(version: Any) -> Version:
    return Version(version.name, str(version.version), str(version.run_id), dict(version.tags), str(version.source))


def model_of(version: Version) -> str:
    """Return the id of a version's logged model."""
    found = _MODEL.search(version.source)
    return found[0] if found else ""


def tag_released(workspace: Workspace, tag: str, values: Mapping[tuple[str, str], str]) -> None:
    """Set a tag on versions of cells, and remove it from all other versions of these cells. values: (cell, version)
    -> text.
    """
    names: dict[str, dict[str, str]] = {}
    for (cell, version), text in values.items():
        names.setdefault(registry_name(workspace.params.cell(cell)), {})[version] = text
    with mlflow_lock(workspace):
        client = open_mlflow(workspace)
        for name, texts in names.items():
            for registered in client.search_model_versions(f"name = '{name}'"):
                number, has = str(registered.version), registered.tags.get(tag)
                if number in texts and has != texts[number]:
                    client.set_model_version_tag(name, number, tag, texts[number])
                elif number not in texts and has is not None:
                    client.delete_model_version_tag(name, number, tag)
