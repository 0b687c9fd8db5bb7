"""Provide fixtures for tests of DVC and MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.tracking.ledger_bench import LedgerBench
from tests.tracking.mlflow_server import MlflowServer
from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.store import open_mlflow


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow store in which nothing is; making one takes seconds, copying it nothing."""
    root = tmp_path_factory.mktemp("empty-store")
    shutil.copyfile(REPOSITORY / "params.yaml", root / "params.yaml")
    open_mlflow(Workspace(root)).search_experiments()
    return root / "mlruns" / "mlflow.db"


@pytest.fixture
def ledger(tmp_path: Path, empty_store: Path) -> LedgerBench:
    """Return a workspace of its own with an empty MLflow store."""
    return LedgerBench(tmp_path / "workspace", empty_store)


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[MlflowServer]:
    """Start one MLflow server for the session."""
    server = MlflowServer(tmp_path_factory.mktemp("mlflow-server"))
    server.lose(empty_store)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(mlflow_server: MlflowServer) -> MlflowServer:
    """Return the server, running, to a test that names it in MLFLOW_TRACKING_URI when it wants it."""
    if mlflow_server.process is None:
        mlflow_server.start()
    return mlflow_server
