"""Test that a Dask cluster compiles for cells, on workers that share no path with the client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tasks import dask_cluster
from tasks.dask_cluster import DaskCluster
from tasks.dask_worker import take_files
from tasks.stage_elsewhere import read_request, request_of
from tasks.table import STAGES
from tasks.worker_tools import check_recipe, check_tools, tools_of_builds
from tests.conftest import CELL, REPOSITORY, SLUG, free_port, stage
from tests.dask_workers import DaskWorkers, dask_workers, ran, works_at
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.stage import StageContext
from tvmflow.support.errors import ClusterAwayError, ToolchainError
from tvmflow.toolchain.versions import versions

COMPILED = ("import_model", "quantize", "graph_pack", "build")


@pytest.fixture
def client_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of all that the client has: workspace, home, temporary files. No worker sees it."""
    folder = tmp_path / "client"
    for name, variable in (("home", "HOME"), ("tmp", "TMPDIR")):
        (folder / name).mkdir(parents=True)
        monkeypatch.setenv(variable, str(folder / name))
    return folder


@pytest.fixture
def cluster(client_folder: Path, tmp_path: Path) -> Iterator[DaskWorkers]:
    with dask_workers(client_folder, tmp_path / "workers", "first", "second") as found:
        yield found


@pytest.fixture
def fetched(finished: Path, client_folder: Path) -> Path:
    """Return a workspace in which only `fetch` ran."""
    root = client_folder / "workspace"
    left = shutil.ignore_patterns(".prefect", "*.lock", "tmp", "mlruns", "cache", "dvc_storage", ".index", ".recorded")
    shutil.copytree(finished, root, symlinks=True, ignore=left)
    for name in (*COMPILED, "tune", "tuning_log", "deploy", "evaluate"):
        shutil.rmtree(root / "artifacts" / name)
    return root


def use_dask(root: Path, address: str | None) -> None:
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["flows"] |= {"runner": "dask" if address else "threads", "dask_address": address}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def record(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "artifacts" / name / SLUG / "record.json").read_text())
    return found


def start_stage(root: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tasks", name, CELL, "--root", str(root), "--events", "1"]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_stage_goes_to_another_worker_when_its_worker_is_killed(
    finished: Path, fetched: Path, cluster: DaskWorkers
) -> None:
    for name in ("import_model", "quantize", "graph_pack", "tune"):
        shutil.copytree(finished / "artifacts" / name, fetched / "artifacts" / name)
    use_dask(fetched, cluster.address)
    with cluster.client() as client:
        client.wait_for_workers(2, timeout=60)
        builds = start_stage(fetched, "build")
        cluster.kill_worker(works_at(client, "run_stage"))
        told, error = builds.communicate(timeout=300)
    assert builds.returncode == 0, error
    assert record(fetched, "build")["outputs"] == record(finished, "build")["outputs"]
    assert '{"progress": ["building: network.so"' in told, "progress of the worker"


@pytest.mark.slow
def test_a_stage_that_is_given_up_ends_on_its_worker(fetched: Path, cluster: DaskWorkers) -> None:
    def is_running() -> bool:
        return any("tasks.stage_elsewhere" in (one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))

    use_dask(fetched, cluster.address)
    with cluster.client() as client:
        client.wait_for_workers(2, timeout=60)
        imports = start_stage(fetched, "import_model")
        works_at(client, "run_stage")
        assert wait_until(is_running, 30)
        imports.kill()
        imports.wait()
        assert wait_until(lambda: not is_running(), 60)


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)
    return is_so()


def test_a_cluster_that_is_away_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "_CONNECT_S", 0.2)
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(ClusterAwayError, match=f"{address} does not answer") as away:
        DaskCluster(address).count(2)
    assert away.value.retryable and "\n" not in away.value.found


def test_a_worker_with_other_tools_or_other_code_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    build = STAGES["build"]
    recipe = {"toolchain": versions(("tvm", "llvm")), "code": build.code(None)}
    check_recipe(build, None, recipe)
    with pytest.raises(ToolchainError, match=r"toolchain\.tvm: 0\.1 -> "):
        check_recipe(build, None, {**recipe, "toolchain": {**recipe["toolchain"], "tvm": "0.1"}})
    with pytest.raises(ToolchainError, match=r"code\.tasks/build\.py: changed"):
        check_recipe(build, None, {**recipe, "code": {**recipe["code"], "tasks/build.py": "0" * 64}})
    with pytest.raises(ToolchainError, match=r"plugin:no-such-package: 1\.0 -> absent"):
        check_recipe(build, None, {**recipe, "toolchain": {"plugin:no-such-package": "1.0"}})
    tools = tools_of_builds({"cc": "gcc"})
    check_tools(tools, {"cc": "gcc"})
    with pytest.raises(ToolchainError, match="would make something else: code: "):
        check_tools({**tools, "code": "0"}, {"cc": "gcc"})


@pytest.mark.parametrize(
    "cell", ["digits_torch@local-cpu:float32", "digits_keras@local-cpu:int8", "resnet18@vta-sim:vta_int8"]
)
@pytest.mark.parametrize("name", COMPILED)
def test_what_a_stage_is_asked_for_arrives_as_it_was(name: str, cell: str) -> None:
    workspace, row = Workspace(REPOSITORY), STAGES[name]
    wanted = workspace.params.cell(cell)
    settings, limits = row.settings(workspace, wanted), row.limits(workspace, wanted)
    inputs = {source: Path("in") / source for source in row.inputs}
    sent: StageContext[Any, Any] = StageContext(wanted, settings, limits, inputs, Path(), Path(), Path())
    stage, arrived, recipe = read_request(request_of(row, sent, {"code": {}}), Path("/place"), lambda _event: None)
    assert (stage, arrived.cell, arrived.settings, arrived.limits) == (row, wanted, settings, limits)
    assert list(arrived.inputs) == list(row.inputs) and recipe == {"code": {}}


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../x"])
def test_files_from_elsewhere_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leaves its folder"):
        take_files({name: b""}, tmp_path / "in")


@pytest.mark.slow
def test_workers_without_a_shared_path_make_the_same_and_one_that_is_killed_loses_nothing(
    finished: Path, fetched: Path, cluster: DaskWorkers, with_prefect_server: str
) -> None:
    use_dask(fetched, cluster.address)
    with cluster.client() as client:
        client.wait_for_workers(2, timeout=60)
        run = subprocess.Popen(
            [sys.executable, "-m", "tvmflow", "--root", str(fetched), "run", "digits", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for prefix in ("run_stage", "build_kernel"):
                name = works_at(client, prefix)
                cluster.kill_worker(name)
                cluster.start_worker(f"{name} again")
            out, err = run.communicate(timeout=400)
        finally:
            run.kill()
        assert run.returncode == 0, f"{out}\n{err}"
        assert {"run_stage", "build_kernel"} <= set(ran(client))
    [result] = json.loads(out)["results"]
    assert {name: result["outcomes"][name] for name in COMPILED} == dict.fromkeys(COMPILED, "made"), out
    for name in COMPILED[:3]:
        assert record(fetched, name)["outputs"] == record(finished, name)["outputs"], name
    there = record(fetched, "build")
    shutil.rmtree(fetched / "artifacts" / "build")
    shutil.rmtree(fetched / "artifacts" / ".index" / "build")
    shutil.rmtree(fetched / ".dvc" / "cache")
    use_dask(fetched, None)
    stage(fetched, "build")
    here = record(fetched, "build")
    assert (here["key"], here["outputs"]) == (there["key"], there["outputs"])
    assert os.environ["HOME"] not in cluster.log("first") + cluster.log("second")
