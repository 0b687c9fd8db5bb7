"""Put the precision into the names of a registry that was made without it.

`<model>.<target>` held the libraries of all precisions, so the champion of one took the place of another's. Every version
goes to `<model>.<target>.<precision>`, as its tags tell; each precision gets back what was its own champion. A registry
that was left in the middle is finished by the next process; the old name is deleted only when all of it is elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmflow.config.params import PRECISIONS
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.tracking.mlflow import registry, releases
from tvmflow.tracking.mlflow.registry import CHALLENGER, CHAMPION, PREVIOUS, Version, find_alias

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SEEN = "tvmflow.migrated"


def add_precisions(client: MlflowClient, workspace: Workspace) -> None:
    """Move what is registered under names without a precision. Nothing is done where there are none."""
    if any(_is_old(model) for model in registry.all_names(client)):
        with registry.mlflow_lock(workspace):
            for model in [model for model in registry.all_names(client) if _is_old(model)]:
                _move(client, workspace, model)


def _is_old(model: Any) -> bool:
    return model.name.count(".") == 1 and _SEEN not in model.tags


def _move(client: MlflowClient, workspace: Workspace, model: Any) -> None:
    versions_of_model = list(client.search_model_versions(f"name = '{model.name}'", max_results=10_000))
    by_precision: dict[str, list[Any]] = {}
    for version in sorted(versions_of_model, key=lambda v: int(v.version)):
        by_precision.setdefault(_precision(client, version), []).append(version)
    unknown = by_precision.pop("", [])
    aliases = {str(alias): str(number) for alias, number in model.aliases.items()}
    for precision, versions in by_precision.items():
        _move_precision(client, workspace, f"{model.name}.{precision}", versions, aliases)
    if unknown or not versions_of_model:  # not ours to delete
        client.set_registered_model_tag(model.name, _SEEN, "what tvmflow knows the precision of")
    else:
        client.delete_registered_model(model.name)


def _precision(client: MlflowClient, version: Any) -> str:
    """Return the precision of a version, empty where nothing tells it."""
    from mlflow.exceptions import MlflowException

    precision = version.tags.get("precision")
    if precision is None and version.run_id:
        try:
            precision = client.get_run(version.run_id).data.tags.get("precision")
        except MlflowException:
            precision = None
    return precision if precision in PRECISIONS and "library_sha256" in version.tags else ""


def _move_precision(
    client: MlflowClient, workspace: Workspace, name: str, versions: list[Any], aliases: dict[str, str]
) -> None:
    registry.make_name(client, name)
    moved = {str(version.version): _copy(client, version, name) for version in versions}
    releases.finish(client, workspace, name)
    champion, previous = _released(versions, aliases)
    if champion is not None and find_alias(client, name, CHAMPION) is None:
        before = moved[previous] if previous is not None else None
        why = f"the champion of this precision under the name {versions[0].name}"
        releases.change(client, workspace, "migrate", moved[champion], before, why)
    newest = str(versions[-1].version)
    asks = aliases.get(CHALLENGER) if aliases.get(CHALLENGER) in moved else newest
    if asks is not None and asks != champion and (champion is None or int(asks) > int(champion)):
        client.set_registered_model_alias(name, CHALLENGER, moved[asks].version)


def _released(versions: list[Any], aliases: dict[str, str]) -> tuple[str | None, str | None]:
    """Return which of one precision's versions was its champion, and which one before that.

    An alias that names one of them tells; else it was pushed aside by another precision, and the last that was promoted is meant.
    """
    own = {str(version.version) for version in versions}
    promoted = [str(version.version) for version in versions if "promoted_because" in version.tags]
    named = [aliases[alias] for alias in (CHAMPION, PREVIOUS) if aliases.get(alias) in own]
    order = list(dict.fromkeys([*named, *reversed(promoted)]))
    return (order[0] if order else None), (order[1] if len(order) > 1 else None)


def _copy(client: MlflowClient, version: Any, name: str) -> Version:
    """Register a version under another name, once."""
    mark = f"{version.name} version {version.version}"
    copies = client.search_model_versions(f"name = '{name}' and tags.migrated_from = '{mark}'")
    if not copies:
        tags = {**version.tags, "migrated_from": mark}
        tags.setdefault("measured", "")
        attributes = dict(run_id=version.run_id, tags=tags, description=version.description)
        try:
            client.create_model_version(name, source=version.source, **attributes)
        except StoreError:  # the model that it was logged as is gone; where its files were is still known
            place = client.get_model_version_download_uri(version.name, version.version)
            client.create_model_version(name, source=place, **attributes)
        copies = client.search_model_versions(f"name = '{name}' and tags.migrated_from = '{mark}'")
    return Version(name, str(copies[0].version), str(copies[0].run_id), dict(copies[0].tags))
