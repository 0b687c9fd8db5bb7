"""Open the MLflow store of a workspace: sqlite in mlruns/, with artifacts next to it.

Every problem of the store becomes one StoreError with a hint. The file is checked before MLflow opens it, because
MLflow takes minutes with a damaged one, and every call is wrapped, because a lock or a full disk can occur any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import DamagedStoreError, StoreError, first_line, from_os_error
from tvmflow.support.files import write_atomic
from tvmflow.support.telemetry import PRIVACY

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCK_WAIT_S = 20.0  # as long as MLflow waits
# Error codes that callers handle; all others become StoreErrors.
_EXPECTED = ("RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS")
REBUILD = (
    "run 'tvmflow init --rebuild': the damaged file is kept under another name, and what artifacts/ and "
    "DVC's cache hold "
    "is recorded again"
)


def mlflow_uri(workspace: Workspace) -> str:
    """Return the address of the store: TVMFLOW_MLFLOW_URI if set, else the workspace's own."""
    return os.environ.get("TVMFLOW_MLFLOW_URI") or workspace.mlflow_uri


def sqlite_path(workspace: Workspace) -> Path | None:
    """Return the file of the store, or None if it is a server or a folder."""
    uri = mlflow_uri(workspace)
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _set_environment() -> None:
    for name, value in {**PRIVACY, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_UV_AUTO_DETECT": "false"}.items():
        os.environ.setdefault(name, value)


def import_mlflow() -> None:
    """Import in advance the modules for opening a store and recording in it; that takes 2 s."""
    _set_environment()
    import mlflow.pyfunc
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def open_mlflow(workspace: Workspace) -> MlflowClient:
    """Return a client of the workspace's store, which is created if missing. Its calls raise StoreError."""
    _set_environment()
    check_store(workspace)
    make_folder(workspace)
    for noisy in (
        "alembic",
        "mlflow.store.db.utils",
        "mlflow.tracking",
        "mlflow.pyfunc",
        "mlflow.utils.requirements_utils",
        "urllib3.connectionpool",
    ):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # what they have to say is in the StoreError
    import mlflow
    from mlflow import MlflowClient

    uri = mlflow_uri(workspace)
    mlflow.set_tracking_uri(uri)  # the registry resolves models:/ addresses through it, not through the client
    client = _with_clear_errors(workspace, MlflowClient)(tracking_uri=uri, registry_uri=uri)
    return cast("MlflowClient", _Client(workspace, client))


def make_folder(workspace: Workspace) -> None:
    """Create the folder of the store; MLflow creates its database there on first use."""
    try:
        (workspace.root / "mlruns" / "artifacts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, "opening the MLflow store in") from None


class _Client:
    """A proxy of MLflow's client that converts failures to StoreErrors."""

    def __init__(self, workspace: Workspace, client: Any) -> None:
        self._workspace, self._client = workspace, client

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        return _with_clear_errors(self._workspace, attribute) if callable(attribute) else attribute


def _with_clear_errors(workspace: Workspace, function: Any) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return function(*arguments, **named)
        except MlflowException as error:
            # MLflow reports an unknown alias as an invalid parameter.
            asks_for_alias = getattr(function, "__name__", "") == "get_model_version_by_alias"
            if error.error_code in _EXPECTED or (asks_for_alias and error.error_code == "INVALID_PARAMETER_VALUE"):
                raise
            raise _store_error(workspace, error) from error
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise _store_error(workspace, error) from error

    return call


def check_store(workspace: Workspace) -> None:
    """Raise StoreError if the store's file is damaged, locked or not a database. A missing or empty file is
    valid.
    """
    path = sqlite_path(workspace)
    if path is not None and _exists(workspace, path) and path.stat().st_size:
        tables = {name for (name,) in ask(workspace, "SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "alembic_version" not in tables:
            raise _damaged_error(workspace, "a database of another program")
        marker, state = _checked_path(workspace), _state_of(path)
        if marker.is_file() and marker.read_text(encoding="utf-8") == state:
            return  # the check reads the whole file: seconds where a team's history is in it
        [(verdict,)] = ask(workspace, "PRAGMA quick_check(1)")
        [(page_bytes,)] = ask(workspace, "PRAGMA page_size")
        if verdict == "ok" and path.stat().st_size % page_bytes:
            verdict = "truncated within a page"
        if verdict != "ok":
            raise _damaged_error(workspace, f"damaged ({' '.join(str(verdict).split())[:100]})")
        with contextlib.suppress(OSError):  # only saves the next check
            write_atomic(marker, state)


def _checked_path(workspace: Workspace) -> Path:
    return workspace.artifacts / ".recorded" / "checked-store"


def _state_of(path: Path) -> str:
    """Return what differs when a file was written since."""
    known = path.stat()
    return f"{path} {known.st_ino} {known.st_size} {known.st_mtime_ns} {known.st_ctime_ns}"


def _exists(workspace: Workspace, path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise _damaged_error(workspace, "not a file: its parent is not a folder") from None
    except OSError as error:
        raise _store_error(workspace, error) from error
    if not path.is_file():
        raise _damaged_error(workspace, "not a file")
    if not os.access(path, os.R_OK):
        raise _unusable(
            workspace, "not readable", "give this user permission to read it and run the same command again"
        )
    return True


def ask(workspace: Workspace, question: str, *values: str) -> list[tuple[Any, ...]]:
    """Read from the store's file without MLflow, which takes seconds to start. Raises StoreError."""
    path = sqlite_path(workspace)
    assert path is not None
    try:
        # rw: a transaction left by a crash must be rolled back before the file can be read
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=LOCK_WAIT_S) as connection:
            try:
                return connection.execute(question, values).fetchall()
            finally:
                connection.rollback()
    except sqlite3.Error as error:
        raise _store_error(workspace, error) from error


def holds_measurement(workspace: Workspace, run_id: str) -> bool:
    """Return whether the store has this finished measurement, without MLflow; assumed true for a store on a server."""
    path = sqlite_path(workspace)
    if path is None:
        return True
    if not _exists(workspace, path) or not path.stat().st_size:
        return False
    check_store(workspace)
    if not ask(workspace, "SELECT 1 FROM sqlite_master WHERE name = 'runs'"):
        return False
    return bool(
        ask(
            workspace,
            "SELECT 1 FROM runs JOIN tags USING (run_uuid) WHERE run_uuid = ? AND lifecycle_stage = 'active' "
            "AND tags.key = 'tvmflow.complete'",
            run_id,
        )
    )


def experiment_of(workspace: Workspace, run_id: str) -> str:
    """Return the experiment of a run. Only a store on a server is queried through MLflow."""
    if sqlite_path(workspace) is None:
        return str(open_mlflow(workspace).get_run(run_id).info.experiment_id)
    rows = ask(workspace, "SELECT experiment_id FROM runs WHERE run_uuid = ?", run_id)
    if not rows:
        raise StoreError(f"no run {run_id} in the MLflow store of {workspace.root}")
    return str(rows[0][0])


def champion_with(workspace: Workspace, name: str, sha256: str, network_sha256: str) -> str | None:
    """Return the champion version of a registry name if it is this library, else None; does not use MLflow.

    Also None for a store on a server, which can only be queried through MLflow. Raises StoreError.
    """
    path = sqlite_path(workspace)
    if path is None or not _exists(workspace, path) or not path.stat().st_size:
        return None
    if not ask(workspace, "SELECT 1 FROM sqlite_master WHERE name = 'registered_model_aliases'"):
        return None
    rows = ask(
        workspace,
        "SELECT alias.version, tag.key, tag.value FROM registered_model_aliases AS alias JOIN "
        "model_version_tags AS tag "
        "ON tag.name = alias.name AND tag.version = alias.version WHERE alias.name = ? AND alias.alias = 'champion'",
        name,
    )
    tags = {str(key): str(value) for _, key, value in rows}
    same = tags.get("library_sha256") == sha256 and tags.get("network_sha256", network_sha256) == network_sha256
    return str(rows[0][0]) if same else None


def _store_error(workspace: Workspace, error: BaseException) -> StoreError:
    """Return a StoreError with the store, the problem and a hint."""
    said = _cause(error)
    if "database is locked" in said:
        return _unusable(
            workspace,
            f"locked by another process for more than {LOCK_WAIT_S:g} s",
            "stop that process (find it with 'fuser' on the file) and run the same command again; nothing is lost",
        )
    if "readonly database" in said or "Permission denied" in said:
        return _unusable(
            workspace, "read-only", "give its file and folder write permission and run the same command again"
        )
    if "malformed" in said or "not a database" in said or "unable to open" in said or "no such table" in said:
        return _damaged_error(workspace, f"damaged ({said})")
    if "full" in said:
        return _unusable(workspace, f"not writable ({said})", "free some space and run the same command again")
    return _unusable(workspace, f"not usable ({said})", "check the address and that the server responds")


def _cause(error: BaseException) -> str:
    """Return the database's own message, without the SQL and addresses around it."""
    original = getattr(error, "orig", None) or error.__cause__
    if isinstance(original, BaseException) and original is not error:
        return _cause(original)
    return first_line(error, 200)


def _unusable(workspace: Workspace, what: str, hint: str, kind: type[StoreError] = StoreError) -> StoreError:
    where = sqlite_path(workspace) or mlflow_uri(workspace)
    return kind(f"the MLflow store {where} is {what}", "a readable and writable MLflow database", hint)


def _damaged_error(workspace: Workspace, what: str) -> StoreError:
    return _unusable(workspace, what, REBUILD, DamagedStoreError)


def experiment_id(client: MlflowClient, workspace: Workspace, model: str) -> str:
    """Return the experiment of a model; create it if missing."""
    experiment = client.get_experiment_by_name(model)
    if experiment is not None:
        return str(experiment.experiment_id)
    return str(client.create_experiment(model, artifact_location=str(workspace.root / "mlruns" / "artifacts" / model)))
