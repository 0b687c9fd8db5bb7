"""Test that the cache folder that DVC was told is used, and that of a shared one only the own files are."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tasks.table import STAGES
from tests.conftest import CELL, SLUG
from tvmflow.config.dvc_cache import dvc_cache, object_path
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME
from tvmflow.pipeline.store import Store
from tvmflow.support.errors import StoreError
from tvmflow.tracking.dvc.chains import all_records


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("config", "[cache]\n    dir = ../../shared\n", "shared"),
        ("config", "[cache]\n    dir = {base}/shared\n", "shared"),
        ("config.local", "[cache]\n    dir = ../own\n", "workspace/own"),
        ("config", "[core]\n    remote = local\n", "workspace/.dvc/cache"),
    ],
)
def test_the_folder_is_that_of_dvc(file: str, text: str, place: str, tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (root / ".dvc").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    (root / ".dvc" / "config").touch()
    (root / ".dvc" / file).write_text(text.format(base=tmp_path))
    assert dvc_cache(root) == tmp_path / place
    (root / ".dvc" / "config.local").write_text("[cache]\n    dir = /elsewhere\n")
    assert dvc_cache(root) == Path("/elsewhere"), "a change is seen by the same process"
    (root / ".dvc" / "config.local").write_text("no section\n")
    with pytest.raises(StoreError, match=r"config\.local cannot be read"):
        dvc_cache(root)


def test_a_shared_cache_restores_and_gives_no_records_of_others(copy_of_finished: Path, tmp_path: Path) -> None:
    root, shared = copy_of_finished, tmp_path / "shared"
    shutil.move(root / ".dvc" / "cache", shared)
    shutil.rmtree(root / "dvc_storage")
    (root / ".dvc" / "config.local").write_text("[cache]\n    dir = ../../shared\n")
    told = subprocess.run(["dvc", "cache", "dir"], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(told) == shared == dvc_cache(root)

    workspace = Workspace(root)
    cell = workspace.params.cell(CELL)
    shutil.rmtree(root / "artifacts" / "build")
    assert Store(workspace, STAGES).ensure("build", cell)[1] == "restored"

    shutil.rmtree(root / "artifacts" / ".index")
    before = {name: [one.key for one in records] for name, records in all_records(workspace).items()}
    shutil.rmtree(root / "artifacts")
    assert set(all_records(workspace)) == set(before) == set(STAGES), "dvc.lock names them"
    foreign = json.loads(object_path(shared, _md5_of_record(root, "evaluate")).read_text())
    text = json.dumps({**foreign, "created": "2020-01-01T00:00:00+00:00"}, sort_keys=True, indent=1)
    other = object_path(shared, "0" * 32)
    other.parent.mkdir(exist_ok=True)
    other.write_text(text)
    assert [one.created for one in all_records(workspace)["evaluate"]] == [foreign["created"]]


def _md5_of_record(root: Path, stage: str) -> str:
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    outs = lock["stages"][f"{stage}@digits"]["outs"]
    return str(next(one["md5"] for one in outs if one["path"] == f"artifacts/{stage}/{SLUG}/{RECORD_NAME}"))
