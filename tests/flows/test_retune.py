"""What a re-tune decides about one candidate: refused once, taken back, a champion that is gone, a bug in one cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from flows.retune import _by_device
from flows.retune_cell import judge
from tests.conftest import CELL, REPOSITORY, tvmflow
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.shipping.retune_plan import Choice
from tvmflow.tracking.mlflow.registry import CHAMPION, register_version, version_by_alias, version_by_sha256
from tvmflow.tracking.mlflow.releases import promote, releases
from tvmflow.tracking.mlflow.store import open_mlflow


def _set_release(root: Path, **rules: Any) -> tuple[Workspace, Cell]:
    path = root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    params["release"] |= rules
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    workspace = Workspace(root)
    return workspace, workspace.params.cell(CELL)


def _release_elsewhere(workspace: Workspace, cell: Cell, accuracy: float | None = None, **tags: str) -> None:
    """Make a library the champion whose bytes nobody has any more."""
    client = open_mlflow(workspace)
    experiment = client.create_experiment(f"elsewhere {len(tags)}")
    run, model = client.create_run(experiment), client.create_logged_model(experiment, name="library")
    if accuracy is not None:
        client.log_metric(run.info.run_id, "accuracy", accuracy)
    known = {"library_sha256": f"{len(tags):064}", "measured": "2020", **tags}
    register_version(client, cell, model.model_id, run.info.run_id, known)
    version = version_by_sha256(workspace, cell, known["library_sha256"])
    assert version is not None
    promote(workspace, version, "released elsewhere")


def test_what_is_refused_taken_back_or_gone(copy_of_finished: Path, with_prefect_server: str) -> None:
    root = copy_of_finished
    workspace, cell = _set_release(root)
    network = read_record(workspace.folder("build", cell) / RECORD_NAME).outputs["network.so"]
    as_fast = {"network_sha256": network.sha256, "network_dvc_md5": network.md5}
    _release_elsewhere(workspace, cell, accuracy=2.0, library_dvc_md5="0" * 32, **as_fast)
    refused = judge(workspace, cell)
    assert not refused.passed and refused.comparison is not None and "the champion's 200.00%" in refused.text
    again = judge(workspace, cell)
    assert again.text.startswith("refused on 20") and "not judged again until" in again.text
    assert f"'tvmflow promote {CELL}' judges it now" in again.text and again.comparison is None
    workspace, cell = _set_release(root, confidence=0.9999999999)
    few = judge(workspace, cell).text
    assert "give no interval" in few and "--replace-missing" not in few, "other rules: judged again"

    workspace, cell = _set_release(root, confidence=0.95)
    _release_elsewhere(workspace, cell, library_dvc_md5="0" * 32, network_sha256="")
    for _ in range(2):  # its bytes may come back, so this holds for no other time
        gone = judge(workspace, cell)
        assert gone.text.startswith(
            "digits_torch.local-cpu.float32 version 1 is refused, version 3 stays: the champion"
        )
        assert f"'tvmflow promote {CELL} --replace-missing WHY'" in gone.text
    done = tvmflow(root, "promote", CELL, "--replace-missing", "the disk was lost", "--json")
    assert json.loads(done.stdout)["promoted"]
    assert releases(workspace, cell)[-1].why.endswith("(was version 3; the champion is missing: the disk was lost)")
    tvmflow(root, "rollback", CELL)
    taken_back = judge(workspace, cell)
    assert not taken_back.promoted and "was taken back by a rollback, version 3 stays" in taken_back.text
    assert "--proposal or --reject alone" in tvmflow(root, "promote", CELL, "--proposal", "--dry-run", code=2).stderr


def test_a_bug_in_one_cell_is_the_error_of_that_cell(copy_of_finished: Path, with_prefect_server: str) -> None:
    root = copy_of_finished
    workspace, cell = _set_release(root)
    _release_elsewhere(workspace, cell)  # its tags lack what every version has
    done = tvmflow(root, "retune", "--json", code=1)
    [result] = json.loads(done.stdout)
    assert result["verdict"].startswith("failed, the champion stays: ") and "KeyError" in result["error"]["found"]
    assert set(result["outcomes"].values()) == {"hit"} and "Traceback" not in done.stderr
    champion = version_by_alias(workspace, cell, CHAMPION)
    assert champion is not None and champion.version == "2"


def test_cells_of_one_device_follow_each_other_and_other_devices_go_beside() -> None:
    workspace = Workspace(REPOSITORY)
    phones = ("opencl-adreno-android", "opencl-adreno-buffers-android")
    names = [f"digits_torch@{target}" for target in ("local-cpu", "x86-64-v3", "rk3399", *phones)]
    cells = [workspace.params.cell(f"{name}:{precision}") for name in names for precision in ("float32", "int8")]
    idle = Choice("digits_keras@local-cpu:float32", workspace.params.cell("digits_keras@local-cpu:float32"), None, "no")
    groups = _by_device(workspace, [*(Choice(str(cell), cell, None) for cell in cells), idle])
    assert sorted(map(sorted, groups.values())) == sorted(
        sorted(str(cell) for cell in cells if cell.target in targets)
        for targets in (("local-cpu", "x86-64-v3"), ("rk3399",), phones)
    )
