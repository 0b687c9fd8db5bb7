"""Open the MLflow store of a workspace: a server, or sqlite in mlruns/ with artifacts next to it.

Every problem of the store becomes one StoreError with a hint. The file is checked before MLflow opens it, because
MLflow takes minutes with a damaged one, and every call is wrapped, because a lock or a full disk can occur any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import DamagedStoreError, StoreAwayError, StoreError, first_line, from_os_error
from tvmflow.support.files import write_atomic
from tvmflow.support.telemetry import PRIVACY
from tvmflow.tracking.mlflow.address import (
    REGISTRY,
    TRACKING,
    mlflow_uri,
    registry_uri,
    sqlite_path,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

_QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
LOCK_WAIT_S = 20.0  # as long as MLflow waits
_ATTEMPTS = 5
_SERVER_FAILED = 500  # an HTTP status from here on is the trouble of the server or of its database
_ALL_FAILED = r"too many 5\d\d error responses"
_OF_BUCKETS = ("boto", "google.", "azure.")  # modules of errors where artifacts go to a bucket without the server
_SETTING = threading.Lock()
# Error codes that callers handle; all others become StoreErrors.
_EXPECTED = ("RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS")
REBUILD = (
    "run 'tvmflow init --rebuild': the damaged file is kept under another name, and what artifacts/ and "
    "DVC's cache hold "
    "is recorded again"
)


def _set_environment() -> None:
    for name, value in {**PRIVACY, **_QUIET}.items():
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
        "mlflow.store.model_registry.abstract_store",
        "mlflow.pyfunc",
        "mlflow.utils.requirements_utils",
        "urllib3.connectionpool",
    ):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # what they have to say is in the StoreError
    from mlflow import MlflowClient

    runs, models = mlflow_uri(workspace), registry_uri(workspace)
    _set_default(runs, models)
    client = clear_errors(workspace, MlflowClient)(tracking_uri=runs, registry_uri=models)
    return cast("MlflowClient", _Client(workspace, client))


def _set_default(runs: str, models: str) -> None:
    """Set the addresses that MLflow uses without a client, as for models:/; its variables stay the user's own."""
    import mlflow

    with _SETTING:
        before = {name: os.environ.get(name) for name in (TRACKING, REGISTRY)}
        mlflow.set_tracking_uri(runs)  # also sets the variable
        mlflow.set_registry_uri(models)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def make_folder(workspace: Workspace) -> None:
    """Create the folder of a store in the workspace; MLflow creates its database there on first use."""
    if mlflow_uri(workspace) != workspace.mlflow_uri:
        return
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
        return clear_errors(self._workspace, attribute) if callable(attribute) else attribute


def clear_errors(workspace: Workspace, function: Any) -> Any:
    """Return a function of MLflow that raises StoreError, StoreAwayError where the server does not answer."""
    name = getattr(function, "__name__", "")

    def call(*arguments: Any, **named: Any) -> Any:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return function(*arguments, **named)
            except Exception as error:
                if attempt < _ATTEMPTS and name.startswith(("set_", "log_")) and _at_once(error):
                    time.sleep(random.uniform(0, 0.1 * attempt))  # noqa: S311
                    continue
                _raise_clear(workspace, name, error)
        return None

    return call


def _at_once(error: Exception) -> bool:
    """Return whether two machines set the same value at the same time: MLflow then fails for one of them."""
    return "IntegrityError" in str(error) or "UniqueViolation" in str(error)


def _raise_clear(workspace: Workspace, name: str, error: Exception) -> NoReturn:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        # MLflow reports an unknown alias as an invalid parameter.
        asks_for_alias = name == "get_model_version_by_alias"
        if error.error_code in _EXPECTED or (asks_for_alias and error.error_code == "INVALID_PARAMETER_VALUE"):
            raise error
        raise _store_error(workspace, error) from error
    of_bucket = type(error).__module__.startswith(_OF_BUCKETS)
    if isinstance(error, SQLAlchemyError | sqlite3.Error | OSError) or of_bucket:  # OSError: those of requests too
        raise _store_error(workspace, error) from error
    raise error


def check_store(workspace: Workspace) -> None:
    """Raise StoreError if the store's file is damaged, locked or not a database. A missing or empty file is
    valid.
    """
    path = sqlite_path(workspace)
    if path is not None and exists(workspace, path) and path.stat().st_size:
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


def exists(workspace: Workspace, path: Path) -> bool:
    """Return whether there is a file of the store that can be read. Raises StoreError for anything else there."""
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


def measurement_in_file(workspace: Workspace, digest: str, likely: str = "") -> str | None:
    """Return the finished run of a measurement in a sqlite store, without MLflow, None where it has none.

    likely: the run that a marker names, which is looked at first.
    """
    path = sqlite_path(workspace)
    if path is None or not exists(workspace, path) or not path.stat().st_size:
        return None
    check_store(workspace)
    if not ask(workspace, "SELECT 1 FROM sqlite_master WHERE name = 'runs'"):
        return None
    question = (
        "SELECT run_uuid FROM tags AS digest JOIN runs USING (run_uuid) JOIN tags AS complete USING (run_uuid) "
        "WHERE digest.key = 'tvmflow.measurement' AND digest.value = ? AND lifecycle_stage = 'active' "
        "AND complete.key = 'tvmflow.complete'"
    )
    rows = ask(workspace, f"{question} AND run_uuid = ?", digest, likely) if likely else []
    rows = rows or ask(workspace, f"{question} LIMIT 1", digest)
    return str(rows[0][0]) if rows else None


def pages(search: Any, *arguments: Any) -> Iterator[Any]:
    """Yield all that a search of MLflow's client finds, page by page."""
    token: str | None = None
    while True:
        page = search(*arguments, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def complete_measurements(client: Any, cell: str | None = None) -> Iterator[Any]:
    """Yield the complete runs of measurements in a store, of all cells or of one."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    where = "tags.`tvmflow.kind` = 'measurement' and tags.`tvmflow.complete` = 'true'"
    if experiments:
        yield from pages(
            client.search_runs, experiments, where if cell is None else f"{where} and tags.cell = '{cell}'"
        )


def recorded_digests(client: Any) -> set[str]:
    """Return the digests of all measurements in a store."""
    return {run.data.tags["tvmflow.measurement"] for run in complete_measurements(client)}


def experiment_of(workspace: Workspace, run_id: str) -> str:
    """Return the experiment of a run. Only a store on a server is queried through MLflow."""
    if sqlite_path(workspace) is None:
        return str(open_mlflow(workspace).get_run(run_id).info.experiment_id)
    rows = ask(workspace, "SELECT experiment_id FROM runs WHERE run_uuid = ?", run_id)
    if not rows:
        raise StoreError(f"no run {run_id} in the MLflow store of {workspace.root}")
    return str(rows[0][0])


def _store_error(workspace: Workspace, error: BaseException) -> StoreError:
    """Return a StoreError with the store, the problem and a hint."""
    said = _cause(error)
    if sqlite_path(workspace) is None or "API request to" in str(error):
        return _server_error(workspace, error, said)
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


def _server_error(workspace: Workspace, error: BaseException, said: str) -> StoreError:
    """Return what to do about a server: wait for it, log in, or read its answer."""
    status = _status(error)
    address = mlflow_uri(workspace) if sqlite_path(workspace) is None else registry_uri(workspace)
    if status is None or status >= _SERVER_FAILED:
        failed = re.search(_ALL_FAILED, said)
        why = f"{failed[0]}: most likely its database is away" if failed else said
        found = f"the MLflow server {address} does not answer ({why})"
        return StoreAwayError(found, "a server that responds", f"start it, or correct {TRACKING}; nothing is lost")
    if status in (401, 403):
        hint = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        return _unusable(workspace, f"not open to this user ({said})", hint)
    return _unusable(workspace, f"not usable ({said})", f"check {TRACKING} and the server's log")


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that a server answered with, None where there was no answer, 400 where it was not
    asked.
    """
    from mlflow.exceptions import MlflowException, RestException

    response = getattr(error, "response", None)
    if response is not None:  # of requests
        return int(response.status_code)
    if isinstance(error, RestException) or (isinstance(error, MlflowException) and "API request to" in str(error)):
        return int(error.get_http_status_code())
    return 400 if isinstance(error, MlflowException) else None


def _cause(error: BaseException) -> str:
    """Return the database's or the network's own message, without the SQL and addresses around it."""
    original = getattr(error, "orig", None) or error.__cause__
    if isinstance(original, BaseException) and original is not error:
        return _cause(original)
    refused = re.search(
        r"\[Errno -?\d+\] [^')\"]+|[Rr]ead timed out|timed out|too many 5\d\d error responses", str(error)
    )
    return refused[0] if refused else first_line(error, 200)


def _unusable(workspace: Workspace, what: str, hint: str, kind: type[StoreError] = StoreError) -> StoreError:
    where = sqlite_path(workspace) or mlflow_uri(workspace)
    return kind(f"the MLflow store {where} is {what}", "a readable and writable MLflow database", hint)


def _damaged_error(workspace: Workspace, what: str) -> StoreError:
    return _unusable(workspace, what, REBUILD, DamagedStoreError)
