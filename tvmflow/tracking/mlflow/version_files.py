"""Fetch the files of a registered version from MLflow: its library and the outputs of its stages.

A version brings everything that a comparison or a bundle reads, so that both work where DVC's cache lacks the bytes.
Every file is checked against the digests of the version and of the records.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import LIBRARIES, RECORD_NAME, Record, read_record
from tvmflow.support.errors import StoreAwayError, StoreError, first_line
from tvmflow.support.files import sha256_of
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking.mlflow.address import mlflow_uri, registry_uri
from tvmflow.tracking.mlflow.registry import STAGES_FOLDER, Version, model_of
from tvmflow.tracking.mlflow.store import clear_errors, open_mlflow


def version_library(workspace: Workspace, version: Version, name: str, target: Path) -> None:
    """Copy library.so or network.so of a version out of MLflow. Raises StoreError if it is missing or altered."""
    expected = {"library.so": version.sha256, "network.so": version.network_sha256}[name]
    with temporary_folder("mlflow") as folder:
        files = _download(workspace, version, Path(folder))
        found = next(files.rglob(name), None)
        if found is None:
            raise _lacks(version, name)
        if sha256_of(found) != expected:
            raise _altered(version, name)
        shutil.copyfile(found, target)


def version_stages(workspace: Workspace, version: Version, target: Path) -> dict[str, Record]:
    """Copy the files of a version's stages out of MLflow, into a folder for each. Returns stage -> record. Raises
    StoreError if they are missing or altered.
    """
    with temporary_folder("mlflow") as folder:
        files = _download(workspace, version, Path(folder))
        stages = files / STAGES_FOLDER
        records = {path.parent.name: read_record(path) for path in sorted(stages.glob(f"*/{RECORD_NAME}"))}
        if "build" not in records:
            raise _lacks(version, "records of its stages")
        outputs = records["build"].outputs
        digests = tuple(outputs[name].sha256 if name in outputs else "" for name in LIBRARIES)
        if digests != (version.sha256, version.network_sha256):
            raise _altered(version, RECORD_NAME)
        for stage, record in records.items():
            for path in sorted((stages / stage).iterdir()):
                if path.name == RECORD_NAME:
                    continue
                if path.name not in record.outputs or sha256_of(path) != record.outputs[path.name].sha256:
                    raise _altered(version, path.name)
                (target / stage).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / stage / path.name)
        return records


def version_records(workspace: Workspace, version: Version, stages: Iterable[str]) -> dict[str, Record]:
    """Read the records of a version's stages out of MLflow, without its libraries. Raises StoreError if it has none."""
    from mlflow import artifacts
    from mlflow.exceptions import MlflowException

    client, records = open_mlflow(workspace), {}
    download = clear_errors(workspace, artifacts.download_artifacts)
    try:
        place = client.get_logged_model(model_of(version)).artifact_location
        with temporary_folder("mlflow") as folder:
            for stage in stages:
                uri = f"{place}/{STAGES_FOLDER}/{stage}/{RECORD_NAME}"
                path = download(artifact_uri=uri, dst_path=f"{folder}/{stage}", tracking_uri=mlflow_uri(workspace))
                records[stage] = read_record(Path(path))
    except MlflowException as error:
        raise _lacks(version, "records of its stages") from error
    return records


def _download(workspace: Workspace, version: Version, folder: Path) -> Path:
    from mlflow import artifacts
    from mlflow.exceptions import MlflowException

    open_mlflow(workspace)
    stores = {"tracking_uri": mlflow_uri(workspace), "registry_uri": registry_uri(workspace)}
    try:
        download = clear_errors(workspace, artifacts.download_artifacts)
        return Path(download(artifact_uri=version.source, dst_path=str(folder), **stores))
    except StoreAwayError:
        raise
    except (StoreError, MlflowException) as error:
        raise StoreError(
            f"the files of {version.name} version {version.version} are missing in MLflow: {first_line(error)}",
            hint="'tvmflow init --rebuild' on a machine that has them records them anew",
        ) from error


def _lacks(version: Version, what: str) -> StoreError:
    return StoreError(
        f"{version.name} version {version.version} in MLflow has no {what}",
        "a version that this tvmflow registered",
        "'dvc fetch --all-commits' brings the files of earlier versions",
    )


def _altered(version: Version, name: str) -> StoreError:
    return StoreError(f"{name} of {version.name} version {version.version} in MLflow was altered")
