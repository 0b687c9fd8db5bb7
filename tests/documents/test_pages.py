"""Follow the commands of the pages about a first model, releases, stores, Prefect and search, in their order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import CELL, REPOSITORY, free_port, tvmflow, wait_for_port
from tests.documents.walk import Params, walking
from tests.flows.test_team_page import QUICK, VARIABLES, write_model

pytestmark = pytest.mark.slow

FOLLOWED = [
    ("get_started.md", "Install"),
    ("get_started.md", "Your first model"),
    ("get_started.md", "Release and ship"),
    ("shipping.md", "Bundles"),
    ("shipping.md", "Releases of apps"),
    ("storage.md", "DVC"),
    ("storage.md", "MLflow"),
    ("storage.md", "Prefect"),
    ("tuning.md", "Search for goals"),
]
ELSEWHERE = {  # page and section -> the test whose commands do the same
    ("get_started.md", "Without the device"): "tests/flows/test_without_device.py::"
    "test_a_phone_that_is_not_there_does_not_keep_an_app_from_its_library",
    ("devices.md", "The agent"): "tests/devices/test_agent_runs.py::test_it_is_compiled_as_the_documentation_says",
    ("devices.md", "Agents behind a tracker"): "tests/documents/test_mali_tuning.py::"
    "test_three_boards_tune_and_one_is_lost",
    ("devices.md", "Which unit measures"): "tests/flows/test_units.py::"
    "test_a_sweep_measures_on_all_units_and_one_that_dies_costs_its_own_measurements_only",
    ("gpu.md", "Try it without a GPU"): "tests/gpu_codegen/test_cells.py::"
    "test_a_gpu_that_computes_other_values_is_in_quarantine_until_it_agrees",
    ("tuning.md", "Compare two versions of TVM"): "tests/toolchain/test_compare_toolchains.py::"
    "test_libraries_of_two_versions_are_measured_in_turns",
    ("vta.md", "A device"): "tests/devices/test_vta.py::test_a_library_with_a_program_runs_through_the_vta_rpc_server",
}


def own_variables(home: Path) -> dict[str, str]:
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n name = a\n email = a@localhost\n[init]\n defaultBranch = main\n")
    return {"HOME": str(home), "BROWSER": "true", **VARIABLES}


def test_a_first_model_runs(tmp_path: Path) -> None:
    own, place = own_variables(tmp_path / "home"), tmp_path / "place"
    place.mkdir()
    write_model(tmp_path / "cats.onnx")
    installed = {"pip install 'tvmflow[onnx]'": f"pip install --dry-run --no-deps '{REPOSITORY}'"}
    with walking("Install", place, installed, own=own, page="get_started.md") as steps:
        assert "Would install tvmflow" in steps.follow()
    quick = f"cat >> params.yaml <<'END'\n{yaml.safe_dump(QUICK)}END\ntvmflow run cats"
    here = {"../cats.onnx": str(tmp_path / "cats.onnx"), "tvmflow run cats": quick}
    with walking("Your first model", place, here, own=own, page="get_started.md") as steps:
        steps.follow()
    assert "cats@local-cpu:float32" in (place / "cats" / "report.html").read_text()


@pytest.fixture
def root(copy_of_finished: Path) -> Path:
    return copy_of_finished


def _busy_machine(params: Params) -> None:
    for app in params.get("apps", {}).values():
        app["gates"] |= {"min_accuracy": 0.5, "max_cold_start_ms": 1e6}


def test_a_champion_is_bundled_and_verified(root: Path, tmp_path: Path) -> None:
    own = own_variables(tmp_path / "home")
    with walking("Release and ship", root, own=own, page="get_started.md") as steps:
        assert "is the champion now" in steps.follow()
    shutil.rmtree(tmp_path / "home" / ".keys")
    (root / "digits.zip").unlink()
    with walking("Bundles", root, {"--device pixel": "--device local-cpu"}, own=own, page="shipping.md") as steps:
        assert steps.follow().count("digits_torch@local-cpu:float32") >= 2


def test_an_app_is_released_and_rolled_back(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_variables(tmp_path / "home")
    monkeypatch.setenv("HOME", own["HOME"])
    key = str(tmp_path / "home" / ".keys" / "release")
    tvmflow(root, "keys", "new", key)
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["apps"] = {"camera": {"cells": ["digits"]}}  # the version to go back to
    params["cells"]["digits-int8"] = {"model": "digits_torch", "target": "local-cpu", "precision": "int8"}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    tvmflow(root, "promote", "digits")
    tvmflow(root, "release", "camera", "--key", key)
    tvmflow(root, "release", "camera", "--channel", "stable", "--key", key)
    tvmflow(root, "run", "digits-int8")
    tvmflow(root, "promote", "digits-int8")
    with walking("Releases of apps", root, {}, _busy_machine, own, "shipping.md") as steps:
        steps.follow()
    shown = json.loads(tvmflow(root, "releases", "camera", "--json").stdout)
    assert shown["channels"] == {"beta": 2, "stable": 1}, shown


def test_experiments_of_dvc(root: Path, tmp_path: Path) -> None:
    here = {
        "/mnt/shared/tvmflow": str(tmp_path / "remote"),
        "pip install 'tvmflow[ssh]' && ": "",
        "pip install 'tvmflow[s3]'  && ": "",
    }
    with walking("DVC", root, here, own=own_variables(tmp_path / "home"), page="storage.md") as steps:
        steps.follow()
        config = root / ".dvc" / "config"
        assert "url = s3://bucket/tvmflow" in config.read_text()  # the last of the three
        config.with_name("config.local").unlink()
        config.write_text(config.read_text().replace("s3://bucket/tvmflow", here["/mnt/shared/tvmflow"]))
        steps.follow()
    assert yaml.safe_load((root / "params.yaml").read_text())["evaluate"]["warmup_runs"] == 20
    tvmflow(root, "run", CELL)
    assert len(json.loads(tvmflow(root, "history", CELL, "--json").stdout)) == 2


def test_a_history_goes_to_a_server_of_mlflow(root: Path, tmp_path: Path) -> None:
    port = free_port()
    here = {
        "--host 0.0.0.0": f"--host 127.0.0.1 --port {port}",
        "postgresql://...": f"sqlite:///{tmp_path}/mlflow.db",
        "s3://bucket/mlflow\n": f"{tmp_path}/served &\n",
        "https://mlflow.example.com": f"http://127.0.0.1:{port}",
        "export MLFLOW_TRACKING_USERNAME=... MLFLOW_TRACKING_PASSWORD=...": "true",
    }
    with walking("MLflow", root, here, own=own_variables(tmp_path / "home"), page="storage.md") as steps:
        steps.follow()
        wait_for_port(port, 120)
        steps.follow()
    assert list((tmp_path / "served").rglob("library.so"))


def test_a_worker_of_prefect_runs_a_deployed_sweep(root: Path, tmp_path: Path) -> None:
    own, port = own_variables(tmp_path / "home"), free_port()
    address = f"http://127.0.0.1:{port}/api"
    here = {
        "prefect server start  ": f"prefect server start --port {port} &",
        "http://127.0.0.1:4200/api": address,
        "prefect worker start --pool tvmflow": "prefect worker start --pool tvmflow --run-once",
        "pip install 'tvmflow[dask]'": "true",
        "dask scheduler --host 0.0.0.0": f"dask scheduler --host 127.0.0.1 --port {(dask := free_port())} "
        "--dashboard-address 127.0.0.1:0 &",
        "dask worker tcp://team-server:8786": f"timeout 20 dask worker tcp://127.0.0.1:{dask}",
    }
    with walking("Prefect", root, here, own={**own, "PREFECT_API_URL": address}, page="storage.md") as steps:
        steps.follow()
        wait_for_port(port, 120)
        steps.left = [block for block in steps.left if block[0] == "sh"]  # the YAML is that of test_job_templates
        pool, deploy, worker, run = steps.left[0][1].splitlines()
        steps.left[0] = ("sh", "\n".join([pool, deploy, run, worker]))  # it runs what there is, and ends
        assert "Completed" in steps.follow()
        steps.follow(code=124)


def test_goals_are_searched_for(root: Path, tmp_path: Path) -> None:
    here = {"search cats": "search digits_torch", "pixel-8,rk3399": "local-cpu", "8ms": "80ms", "4MB": "40MB"}
    with walking("Search for goals", root, here, own=own_variables(tmp_path / "home"), page="tuning.md") as steps:
        assert "float32" in steps.follow()


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    yield
