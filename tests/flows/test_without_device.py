"""Test a cell whose phone is not there: built with estimated schedules, never measured, and shown as that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import tvmflow
from tvmflow import api
from tvmflow.support.errors import BundleError, StoreError, TvmflowError, UsageError

CELL = "digits_torch@phone:float32"
SLUG = "digits_torch.phone.float32"
PHONE = {
    "kind": "llvm",
    "mcpu": "cortex-a53",
    "mtriple": "aarch64-linux-android",
    "threads": 2,
    "cc": "bionic-stubs",
    "device": {"transport": "adb", "key": "phone", "serials": ["nobody-has-this-one"]},
}


def _add_phone(root: Path) -> None:
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["targets"]["phone"] = PHONE
    params["cells"] = {"phone": {"model": "digits_torch", "target": "phone", "precision": "float32"}}
    params["apps"] = {"camera": {"cells": ["phone"]}}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.mark.heavy
def test_a_phone_that_is_not_there_does_not_keep_an_app_from_its_library(
    copy_of_finished: Path, tmp_path: Path, with_prefect_server: str
) -> None:
    root = copy_of_finished
    _add_phone(root)
    assert not api.status(root).cells[0].built
    with pytest.raises(StoreError, match="no library of digits_torch@phone:float32 is built"):
        api.bundle("phone", workspace=root, output=tmp_path / "none.zip", unmeasured=True, unsigned=True)

    done = tvmflow(root, "sweep", code=4)
    assert f"{CELL}: built, not measured (" in done.stderr and f"tvmflow bundle {CELL} --unmeasured" in done.stderr
    assert "deploy" not in done.stderr and "evaluate" not in done.stderr and "Traceback" not in done.stderr
    assert not [name for name in ("tune", "build", "deploy", "evaluate") if (root / "artifacts" / name / SLUG).exists()]
    [tuned] = (root / "artifacts" / ".search").glob(f"*/tune/{SLUG}")
    settings = json.loads((tuned / "record.json").read_text())["recipe"]["params"]
    assert settings["search"]["without_device"] is True, "the recipe key says that nothing was measured"
    schedules = json.loads((tuned / "best.json").read_text())["records"]
    assert {one["status"] for one in schedules} == {"estimated"}

    locks = "".join(path.read_text() for path in root.rglob("dvc.lock"))
    assert f"artifacts/graph_pack/{SLUG}" in locks and f"artifacts/build/{SLUG}" not in locks, (
        "not what is in a variant"
    )
    assert _of_a_deployment(root)["unmeasured"], "it has a preflight, too"

    [status] = api.status(root).cells
    assert status.built and not status.measured and "tune" in status.todo and status.error is None
    assert {"phone"} == {one["target"] for one in api.report_data(root)["unmeasured"] if one["built"]}
    [again] = api.run("phone", workspace=root, without_device=True)
    assert again.error is None and again.unmeasured and again.scorecard is None

    _check_bundle(root, tmp_path)
    for refused in (
        lambda: api.bundle("phone", workspace=root, unsigned=True),
        lambda: api.bundle("phone", workspace=root, unsigned=True, newest=True),
        lambda: api.promote("phone", workspace=root),
    ):
        with pytest.raises(TvmflowError, match=r"never (built|measured)|no champion|no measurement"):
            refused()
    released = api.release_app("camera", workspace=root, unsigned=True)
    assert released.version is None and "has no champion" in released.reasons[0]
    with pytest.raises(TvmflowError, match=r"nobody-has-this-one|no adb"):
        api.run("phone", workspace=root, units=["nobody-has-this-one"])
    with pytest.raises(UsageError, match="without a device"):
        api.run("phone", workspace=root, again=True, without_device=True)


def _of_a_deployment(root: Path) -> Any:
    """Run the flow as a deployment does, without what 'tvmflow run' finds out before; return the result."""
    code = (
        "import json, sys; from pathlib import Path\nfrom tvmflow.config.workspace import Workspace\n"
        "from flows.settings import configure_prefect\nroot = sys.argv[1]\nconfigure_prefect(Workspace(Path(root)))\n"
        "from flows.sweep import sweep\nprint(json.dumps(sweep(['phone'], root)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout.splitlines()[-1])
    return result


def _check_bundle(root: Path, folder: Path) -> None:
    path, manifest = api.bundle("phone", workspace=root, output=folder / "app.zip", unmeasured=True, unsigned=True)
    [library] = manifest.libraries
    assert (library.measured, library.scorecard, library.abi) == (False, None, "arm64-v8a")
    with pytest.raises(BundleError, match="without a device, and never measured"):
        api.verify_bundle(path, unsigned=True)
    [checked] = api.verify_bundle(path, unsigned=True, unmeasured=True).libraries
    assert "not run here" in checked.ran
    wheel, _ = api.bundle("phone", workspace=root, output=folder, unmeasured=True, unsigned=True, kind="aar")
    with pytest.raises(BundleError, match="never measured"):
        api.verify_bundle(wheel, unsigned=True)


def test_what_is_measured_already_needs_no_device(copy_of_finished: Path) -> None:
    """Of a cell that a device tuned, the library is built in the workspace itself."""
    from tasks.table import STAGES
    from tvmflow.config.workspace import Variant, find_workspace
    from tvmflow.pipeline.unmeasured import library_without_device, place_without_device

    workspace = find_workspace(copy_of_finished)
    cell = workspace.params.cell("digits")
    assert place_without_device(workspace, cell, STAGES) is workspace
    place, records = library_without_device(workspace, cell, STAGES)
    assert place is workspace and list(records)[-1] == "build"
    _add_phone(copy_of_finished)
    phone = workspace.params.cell("phone")
    assert library_without_device(workspace, phone, STAGES) == (workspace, {})
    assert not (copy_of_finished / "artifacts" / ".search").exists(), "looking writes nothing"
    place = place_without_device(workspace, phone, STAGES)
    assert isinstance(place, Variant) and place.params.tune_of(phone).without_device
    assert place.params.tune_of(cell) == workspace.params.tune_of(cell)
    assert place.folder("graph_pack", phone) == workspace.folder("graph_pack", phone)
    assert place.folder("tune", phone) != workspace.folder("tune", phone)


@pytest.mark.parametrize("tune", [{"trials_per_workload": 0}, {"without_device": True}])
def test_a_tuner_that_measures_nothing_needs_no_variant(tune: dict[str, Any], copy_of_finished: Path) -> None:
    from tasks.table import STAGES
    from tvmflow.config.workspace import find_workspace
    from tvmflow.pipeline.unmeasured import place_without_device

    _add_phone(copy_of_finished)
    params = yaml.safe_load((copy_of_finished / "params.yaml").read_text())
    params["tune"] |= tune
    (copy_of_finished / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    workspace = find_workspace(copy_of_finished)
    assert place_without_device(workspace, workspace.params.cell("phone"), STAGES) is workspace
