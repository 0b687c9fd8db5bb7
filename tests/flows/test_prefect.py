"""Test flows under Prefect: schedules, retries of transient errors, killed processes, Dask."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from flows.stage_process import StageRequest, run_stage
from tests.conftest import CELL, free_port, tvmflow
from tvmflow.support.errors import StageCrashedError, StageTimeoutError, TvmflowError


def _nothing(_text: str, _done: int, _total: int) -> None:
    pass


def _runs_a_stage(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # processes that have nothing to do with it come and go
        parent = process.parent()
        return parent is not None and all("tasks.server" in " ".join(one.cmdline()) for one in (process, parent))
    return False


def test_a_timeout_really_kills_the_work(make_workspace: Callable[..., Path]) -> None:
    root = make_workspace(lambda params: params["models"]["digits_torch"]["weights"]["train"].update(epochs=500))
    with pytest.raises(StageTimeoutError, match="killed after 4 s"):
        run_stage(StageRequest("fetch", CELL, str(root), 4.0), _nothing)
    assert not [p for p in psutil.Process().children(recursive=True) if _runs_a_stage(p)]


def test_a_crash_is_a_clear_failed_stage(make_workspace: Callable[..., Path]) -> None:
    """What a compiler's segmentation fault looks like from outside."""
    root = make_workspace(lambda params: params["models"]["digits_torch"]["weights"]["train"].update(epochs=500))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_stage(StageRequest("fetch", CELL, str(root), 120.0), _nothing)
        except TvmflowError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not list(root.glob("artifacts/.tmp/fetch.*.new-*")):  # it may wait for another measurement of this host
        assert thread.is_alive(), failures
        time.sleep(0.05)
    for child in psutil.Process().children(recursive=True):
        if _runs_a_stage(child):
            child.send_signal(signal.SIGSEGV)
    thread.join()
    assert isinstance(failures[0], StageCrashedError) and "SIGSEGV" in str(failures[0])


def test_only_device_failures_are_tried_again_and_one_bad_cell_does_not_stop_the_other(
    make_workspace: Callable[..., Path], with_prefect_server: str
) -> None:
    port = free_port()

    def change(params: dict[str, Any]) -> None:
        params["targets"]["gone"] = params["targets"]["local-cpu"] | {
            "device": {"transport": "tracker", "key": "phone", "host": "127.0.0.1", "port": port}
        }
        params["models"]["broken"] = params["models"]["digits_torch"] | {"weights": {"file": "broken.pt"}}
        params["cells"] = {
            "away": {"model": "digits_torch", "target": "gone", "precision": "float32"},
            "broken": {"model": "broken", "target": "local-cpu", "precision": "float32"},
        }

    root = make_workspace(change)
    (root / "broken.pt").write_bytes(b"no model")
    done = tvmflow(root, "sweep", "--again", code=1)  # a measurement is asked for
    assert done.stderr.count("digits_torch@gone:float32 tune: failed") == 3  # two retries
    assert done.stderr.count("broken@local-cpu:float32 import_model: failed") == 1
    assert "no RPC tracker" in done.stderr and "damaged" in done.stderr and "Traceback" not in done.stderr
    assert (root / "artifacts" / "graph_pack" / "digits_torch.gone.float32").exists()


@pytest.mark.slow
def test_a_dask_cluster_runs_the_cells(copy_of_finished: Path, with_prefect_server: str) -> None:
    params = yaml.safe_load((copy_of_finished / "params.yaml").read_text())
    params["flows"]["runner"] = "dask"
    (copy_of_finished / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    before = (copy_of_finished / "artifacts/evaluate/digits_torch.local-cpu.float32/record.json").read_text()
    done = tvmflow(copy_of_finished, "run", "digits", "--again", "--json")
    assert '"evaluate": "made"' in done.stdout
    assert (copy_of_finished / "artifacts/evaluate/digits_torch.local-cpu.float32/record.json").read_text() != before


@pytest.mark.slow
def test_the_flows_can_be_run_one_by_one(copy_of_finished: Path, with_prefect_server: str) -> None:
    code = (
        "import sys; from pathlib import Path\nfrom tvmflow.config.workspace import Workspace\n"
        "from flows.settings import configure_prefect\nroot = sys.argv[1]\nconfigure_prefect(Workspace(Path(root)))\n"
        "from flows.compile_model import compile_model\nfrom flows.evaluate_model import evaluate_model\n"
        "print(compile_model('digits', root), evaluate_model('digits', root))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy_of_finished)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "'build': 'hit'" in done.stdout and "'evaluate': 'hit'" in done.stdout and "deploy" not in done.stdout
    assert done.stderr == "", "what stages say is on the page of the run, not on the terminal"
    root = str(copy_of_finished)
    [compiled], [evaluated] = (runs_of(with_prefect_server, name, root) for name in ("compile_model", "evaluate_model"))
    assert compiled["name"] == "compile_model digits" and compiled["tags"] == [CELL] == evaluated["tags"]
    tasks = ask(with_prefect_server, "task_runs", compiled)
    assert f"build {CELL}" in [run["name"] for run in tasks] and {run["state_type"] for run in tasks} == {"COMPLETED"}
    lines = [line["message"] for line in ask(with_prefect_server, "logs", compiled)]
    said = [line for line in lines if line.startswith(("fetch", "import", "quantize", "graph", "tune", "build"))]
    assert len(said) == 6 and all(f"{CELL}: hit, made 20" in line and " s" in line for line in said), lines
    assert "library" in next(line for line in said if line.startswith("build")), said
    link, card = sorted(ask(with_prefect_server, "artifacts", evaluated), key=lambda found: str(found["key"]))
    assert card["key"] == "scorecard-digits-torch-local-cpu-float32" and "accuracy, built" in card["data"]
    assert "/#/experiments/" in link["data"] and "127.0.0.1:5000" in link["data"]


def runs_of(address: str, flow: str, root: str) -> list[dict[str, Any]]:
    """Return the runs of a flow in a workspace, the newest first."""
    body = {"flows": {"name": {"any_": [flow]}}, "sort": "START_TIME_DESC"}
    found: list[dict[str, Any]] = requests.post(f"{address}/flow_runs/filter", json=body, timeout=120).json()
    return [run for run in found if run["parameters"].get("root") == root]


def ask(address: str, what: str, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return task_runs, logs or artifacts of a flow run."""
    key = {"task_runs": "flow_runs", "logs": "logs", "artifacts": "artifacts"}[what]
    where = {"id": {"any_": [run["id"]]}} if what == "task_runs" else {"flow_run_id": {"any_": [run["id"]]}}
    found: list[dict[str, Any]] = requests.post(f"{address}/{what}/filter", json={key: where}, timeout=120).json()
    return found


def test_progress_and_log_lines_of_a_stage_are_on_its_page(tmp_path: Path, with_prefect_server: str) -> None:
    """A flow of its own in a process of its own: Prefect reads its settings when it is imported."""
    code = """
import sys
from pathlib import Path
from flows.settings import configure_prefect
from tvmflow.config.workspace import Workspace
configure_prefect(Workspace(Path(sys.argv[1])))
from prefect import flow, task
from flows.run_page import StageLog, begin_run
@task
def nothing():
    pass
@flow(name="says")
def says(root: str):
    begin_run(Workspace(Path(root)), [])
    nothing()
    path = Path(root) / "stage.log"
    log = StageLog(path, "tune a@b:c")
    path.write_text("first\\nhalf a li")
    log.progress("measuring kernel 1", 1, 40)
    log.progress("measuring kernel 2", 2, 40)
    with path.open("a") as file:
        file.write("ne\\n" + "x" * 5000 + "\\n" + "many\\n" * 600)
    log.end("done")
says(sys.argv[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    [run] = runs_of(with_prefect_server, "says", str(tmp_path))
    body = {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
    lines = [
        line["message"] for line in requests.post(f"{with_prefect_server}/logs/filter", json=body, timeout=120).json()
    ]
    assert not any("Finished in state Completed(" in line for line in lines[:-1]), "each stage says how it ended"
    start = lines.index("tune a@b:c: measuring kernel 1 (1 of 40)")
    assert lines[start + 1 : start + 3] == ["first", "half a line"], (
        "a line is told when it is whole, progress at intervals"
    )
    assert len(lines[start + 3]) == 2000 and lines[start + 4] == "many"
