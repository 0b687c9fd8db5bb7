"""Test MLflow in a team: a shared server, moving to it, its loss, its absence, and several machines at once."""

from __future__ import annotations

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tasks.table import STAGES
from tests.tracking.ledger_bench import LedgerBench
from tests.tracking.mlflow_server import MlflowServer
from tests.tracking.test_rebuild import commit_to_dvc, seen
from tvmflow.api.bundles import part_of
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.report.mlflow_page import describe_run
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.tracking.costs import METRICS, NOTES, costs_of
from tvmflow.tracking.mlflow.address import TRACKING, identity
from tvmflow.tracking.mlflow.history import all_measurements, overview, runs_with
from tvmflow.tracking.mlflow.rebuild import fill_new_server, rebuild
from tvmflow.tracking.mlflow.recorded import ensure_recorded, is_recorded, record_kept, record_or_keep
from tvmflow.tracking.mlflow.registry import CHAMPION, model_of, registry_name, version_by_alias, version_by_sha256
from tvmflow.tracking.mlflow.releases import promote, releases
from tvmflow.tracking.mlflow.store import open_mlflow
from tvmflow.tracking.mlflow.trend import EXPERIMENT
from tvmflow.tracking.mlflow.version_files import version_library

pytestmark = pytest.mark.heavy


def _library(ledger: LedgerBench, cell: Cell, library: str) -> str:
    return ledger.measure(cell, library)["build"].outputs["library.so"].sha256


def _promote(ledger: LedgerBench, cell: Cell, sha256: str) -> None:
    version = version_by_sha256(ledger.workspace, cell, sha256)
    assert version is not None
    promote(ledger.workspace, version, "it is good")


def _seen(ledger: LedgerBench, *cells: Cell) -> Any:
    """Return what is in the store of these cells: others of the session use the server too."""
    rows, aliases, changes = seen(ledger, *cells)
    names = {registry_name(cell) for cell in cells}
    shown = {cell: row for cell, row in rows.items() if cell in map(str, cells)}
    return shown, {name: of_name for name, of_name in aliases.items() if name in names}, changes


def _compared(ledger: LedgerBench, model: str) -> tuple[list[Any], Any]:
    """Return what the commands read that compare many cells, without what names a run of one store."""
    rows = overview(ledger.workspace, model, lambda rows: [row for row in rows if row["device"]])
    of_store = {"run_id", "experiment_id", "url"}
    costs = costs_of(runs_with(ledger.workspace, model, NOTES, METRICS))
    return sorted(({k: v for k, v in row.items() if k not in of_store} for row in rows), key=str), costs


def test_a_history_moves_to_a_server_and_survives_its_loss(
    ledger: LedgerBench, server: MlflowServer, empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and equal. Another machine bundles when the first one is gone; a new server gets what DVC has,
    and what was measured while there was none.
    """
    cell, other = (ledger.cell("digits_keras", "rk3399", precision) for precision in ("float32", "int8"))
    _promote(ledger, cell, _library(ledger, cell, "only the own store has it"))
    champion = _library(ledger, cell, "champion")
    _promote(ledger, cell, champion)
    commit_to_dvc(ledger)
    ledger.measure(other, "in its folders")
    before = _seen(ledger, cell, other)
    rows, costs = _compared(ledger, cell.model)
    assert len(before[0][str(cell)]) == 2 and before[1][registry_name(cell)][CHAMPION] == "2"
    monkeypatch.setenv(TRACKING, server.uri)
    assert _seen(ledger, cell, other)[:2] == ({}, {}) and not is_recorded(ledger.workspace, other)
    filled = fill_new_server(ledger.workspace, STAGES)
    assert filled is not None and (len(filled.recorded), filled.lost) == (3, [])
    assert _seen(ledger, cell, other) == before
    assert _compared(ledger, cell.model) == (rows, costs) and len(rows) == 3
    assert fill_new_server(ledger.workspace, STAGES) is None and rebuild(ledger.workspace, STAGES).recorded == []
    made = [one for one in open_mlflow(ledger.workspace).search_experiments() if one.name != "Default"]
    places = {one.artifact_location.partition(":")[0] for one in made}
    assert places == {"mlflow-artifacts"} and list(server.artifacts.rglob("library.so"))

    clone = tmp_path / "home of another" / "clone"
    clone.mkdir(parents=True)
    shutil.copyfile(ledger.root / "params.yaml", clone / "params.yaml")
    ledger.root.rename(tmp_path / "away")
    _assert_everyone_has_the_champion(Workspace(clone), server, cell, champion)
    (tmp_path / "away").rename(ledger.root)

    server.stop()
    server.lose(empty_store)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    missed = ledger.cell("digits_torch", "rk3399")
    for library in ("one", "two"):  # the cell is measured again meanwhile
        ledger.make(missed, library)
        assert "does not answer" in record_or_keep(ledger.workspace, missed)
    queue = ledger.workspace.artifacts / ".recorded" / "kept"
    whole = next(queue.iterdir())
    shutil.copytree(whole / "evaluate", queue / f".{whole.name}" / "evaluate")  # a copy that a kill interrupted
    kept = record_kept(ledger.workspace)
    assert (kept.done, kept.left) == (0, 2) and server.uri in kept.why and len(kept.why.splitlines()) == 1
    server.start()
    assert record_kept(ledger.workspace).done == 2 and record_kept(ledger.workspace).done == 0
    assert [row["version"] for row in all_measurements(ledger.workspace)[str(missed)]] == ["1", "2 challenger"]

    (ledger.root / "mlruns" / "mlflow.db").unlink()
    shutil.rmtree(ledger.root / "artifacts" / "evaluate" / other.slug)
    filled = fill_new_server(ledger.workspace, STAGES)
    assert filled is not None and len(filled.recorded) == 1, "what DVC has"
    assert [entry.what for entry in releases(ledger.workspace, cell)] == ["promote"]
    now = version_by_alias(ledger.workspace, cell, CHAMPION)
    assert now is not None and now.sha256 == champion


def _assert_everyone_has_the_champion(clone: Workspace, server: MlflowServer, cell: Cell, sha256: str) -> None:
    version = version_by_alias(clone, cell, CHAMPION)
    assert version is not None and version.sha256 == sha256
    version_library(clone, version, "library.so", clone.root / "library.so")
    assert (clone.root / "library.so").read_text() == "champion"
    part = part_of(clone, cell, False, clone.root / "part")
    assert part.records["build"].outputs["library.so"].sha256 == sha256
    assert json.loads(part.path("evaluate", "scorecard.json").read_text())["cell"] == str(cell)
    [model] = (path for path in server.artifacts.rglob("*") if path.name == model_of(version))
    [altered] = model.rglob("scorecard.json")
    text = altered.read_text()
    altered.write_text("{}")
    with pytest.raises(StoreError, match=r"scorecard.json of .* was altered"):
        part_of(clone, cell, False, clone.root / "part")
    altered.write_text(text)


def test_several_machines_record_and_promote_at_once(
    ledger: LedgerBench, server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACKING, server.uri)
    cell = ledger.cell("digits_keras")
    one = ledger.make(cell, "one")["build"].outputs["library.so"].sha256
    machines = [ledger.workspace]
    for name in ("second", "third"):
        shutil.copytree(ledger.root, tmp_path / name)
        machines.append(Workspace(tmp_path / name))
    with ThreadPoolExecutor(len(machines)) as pool:
        list(pool.map(lambda machine: ensure_recorded(machine, cell), machines))
    client, name = open_mlflow(ledger.workspace), registry_name(cell)
    [row] = all_measurements(ledger.workspace)[str(cell)]
    [version] = client.search_model_versions(f"name = '{name}'")
    assert row["version"] == f"{version.version} challenger" and version.run_id == row["run_id"]
    history = client.get_experiment_by_name(EXPERIMENT).experiment_id
    [run] = client.search_runs([history], f"tags.cell = '{cell}'")
    assert len(client.get_metric_history(run.info.run_id, "latency_ms.median")) == 1

    two = _library(ledger, cell, "two")
    wanted = [version_by_sha256(ledger.workspace, cell, sha256) for sha256 in (one, two)]
    jobs = [(machine, wanted[number % 2]) for number in range(7) for machine in machines][:20]
    with ThreadPoolExecutor(len(machines)) as pool:
        list(pool.map(lambda job: promote(job[0], job[1], "asked for"), jobs))  # type: ignore[arg-type]
    trail = releases(ledger.workspace, cell)
    versions = [entry.version for entry in trail]
    assert all(entry.done for entry in trail) and set(versions) == {v.version for v in wanted if v}
    assert all(a != b for a, b in itertools.pairwise(versions)), "none is there twice"
    aliases = {str(k): str(v) for k, v in client.get_registered_model(name).aliases.items()}
    assert (aliases[CHAMPION], aliases["previous"]) == (versions[-1], versions[-2])


def test_artifacts_are_never_written_into_the_folder_of_another_user(
    ledger: LedgerBench, server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACKING, server.uri)
    place = tmp_path / "colleague" / "mlruns" / "artifacts" / "digits_mx"
    open_mlflow(ledger.workspace).create_experiment("digits_mx", artifact_location=str(place))
    with pytest.raises(StoreError, match="in a folder of one user") as caught:
        ledger.measure(ledger.cell("digits_mx"), "any")
    assert "mlflow experiments rename" in caught.value.hint and not place.exists()


def test_the_address_of_an_earlier_version_is_refused(ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMFLOW_MLFLOW_URI", "http://127.0.0.1:1")
    with pytest.raises(UsageError, match="no longer names") as caught:
        open_mlflow(ledger.workspace)
    assert TRACKING in caught.value.hint


def test_credentials_are_in_no_name_of_a_store(ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert identity(ledger.workspace) == "mlruns/mlflow.db"
    monkeypatch.setenv(TRACKING, "https://me:secret@host:5000/mlflow/")
    assert identity(ledger.workspace) == "https://host:5000/mlflow"


def test_a_server_whose_database_is_away_is_told_in_one_line(
    ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.services import answers

    ledger.make(cell := ledger.cell("digits_torch"), "first")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    with answers(lambda _path: (500, b"psycopg2.OperationalError")) as address:
        monkeypatch.setenv(TRACKING, address)
        why = record_or_keep(ledger.workspace, cell)
    assert why == (
        f"the MLflow server {address} does not answer (too many 500 error responses: most likely its database is away)"
    )


def test_a_server_shows_what_a_model_and_its_versions_are(
    ledger: LedgerBench, server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACKING, server.uri)
    cell = ledger.cell("digits_keras", "raspberry-pi-4")
    sha256 = _library(ledger, cell, "described")
    describe_run(ledger.workspace, cell)
    answer = requests.get(f"{server.uri}/api/2.0/mlflow/registered-models/search", timeout=60).json()
    [model] = [one for one in answer["registered_models"] if one["name"] == registry_name(cell)]
    assert model["description"].startswith("digits_keras compiled for raspberry-pi-4 in float32")
    assert f"`tvmflow history {cell}`" in model["description"]
    [version] = model["latest_versions"]
    assert {"key": "library_sha256", "value": sha256} in version["tags"]
    assert version["description"].startswith("1 ms (0.99 to 1.01); on cpu-test-t2\n\n**")
