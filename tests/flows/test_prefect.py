"""What Prefect does for us: schedules that appear, retries that are worth it, processes that are really killed, Dask."""

from __future__ import annotations

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
import yaml

from flows.stage_process import StageRequest, run_stage
from tests.conftest import CELL, free_port, tvmflow
from tvmflow.errors import StageCrashedError, StageTimeoutError, TvmflowError


def _nothing(_text: str, _done: int, _total: int) -> None:
    pass


def test_a_timeout_really_kills_the_work(make_workspace: Callable[..., Path]) -> None:
    root = make_workspace(lambda params: params["models"]["digits_torch"]["weights"]["train"].update(epochs=500))
    started = time.monotonic()
    with pytest.raises(StageTimeoutError, match="killed after 4 s"):
        run_stage(StageRequest("fetch", CELL, str(root), 4.0), _nothing)
    assert time.monotonic() - started < 20
    assert not [p for p in psutil.Process().children(recursive=True) if "tasks fetch" in " ".join(p.cmdline())]


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
    deadline = time.monotonic() + 60
    while not list(root.glob("artifacts/.tmp/fetch.*.new-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in psutil.Process().children():
        if "tasks fetch" in " ".join(child.cmdline()):
            child.send_signal(signal.SIGSEGV)
    thread.join(30)
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
    done = tvmflow(root, "sweep", code=1)
    assert done.stderr.count("digits_torch@gone:float32 tune: failed") == 3  # two retries
    assert done.stderr.count("broken@local-cpu:float32 import_model: failed") == 1
    assert "no RPC tracker" in done.stderr and "damaged" in done.stderr and "Traceback" not in done.stderr
    assert (root / "artifacts" / "graph_pack" / "digits_torch.gone.float32").exists()


def test_a_dask_cluster_runs_the_cells(copy_of_finished: Path, with_prefect_server: str) -> None:
    params = yaml.safe_load((copy_of_finished / "params.yaml").read_text())
    params["flows"]["runner"] = "dask"
    (copy_of_finished / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    before = (copy_of_finished / "artifacts/evaluate/digits_torch.local-cpu.float32/record.json").read_text()
    done = tvmflow(copy_of_finished, "run", "digits", "--again", "--json")
    assert '"evaluate": "made"' in done.stdout
    assert (copy_of_finished / "artifacts/evaluate/digits_torch.local-cpu.float32/record.json").read_text() != before


def test_the_flows_can_be_run_one_by_one(copy_of_finished: Path, with_prefect_server: str) -> None:
    code = (
        "import sys; from pathlib import Path\nfrom tvmflow.workspace import Workspace\n"
        "from flows.settings import configure_prefect\nroot = sys.argv[1]\nconfigure_prefect(Workspace(Path(root)))\n"
        "from flows.compile_model import compile_model\nfrom flows.evaluate_model import evaluate_model\n"
        "print(compile_model('digits', root), evaluate_model('digits', root))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy_of_finished)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "'build': 'hit'" in done.stdout and "'evaluate': 'hit'" in done.stdout and "deploy" not in done.stdout
