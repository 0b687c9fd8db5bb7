"""Test that DVC repeats exactly the stages that an edit of params.yaml changes, on simulated outputs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.pipeline import pipeline, render
from tests.conftest import REPOSITORY, small_params


def _dvc(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _paths(entries: list[Any], cell: dict[str, str]) -> list[str]:
    names = [next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries]
    for word, value in cell.items():
        names = [name.replace(f"${{item.{word}}}", value) for name in names]
    return names


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a workspace whose dvc.lock holds one cell."""
    root = tmp_path_factory.mktemp("recorded")
    for folder in ("tasks", "tvmflow"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "dvc.yaml").write_text(render())
    params = small_params()
    params["cells"] = {"digits": params["cells"]["digits"]}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    for stage in pipeline()["stages"].values():
        made = [*stage["do"].get("outs", []), *stage["do"].get("metrics", []), *stage["do"].get("plots", [])]
        for name in _paths(made, params["cells"]["digits"]):
            path = root / name if Path(name).suffix in (".json", ".jsonl", ".csv") else root / name / "made"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    _dvc(root, "init", "--no-scm", "--quiet")
    _dvc(root, "commit", "--force", "--quiet")
    assert json.loads(_dvc(root, "status", "--json")) == {}
    return root


ON_TARGET = {"quantize", "graph_pack", "tune", "build", "deploy", "evaluate"}


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("path", "value", "stages"),
    [
        ("targets/local-cpu/threads", 1, ON_TARGET),  # tune stopped where graph_pack did not run again
        ("targets/local-cpu/mattr", ["+avx2"], ON_TARGET),
        ("build/max_relative_error/float32", 0.5, {"graph_pack", "build", "deploy", "evaluate"}),
        ("build/max_relative_error/int8", 0.5, set()),
        ("graph_pack/channel_block", 16, {"graph_pack"}),
        ("tune/seed", 3, {"tune"}),
        ("tune/build_workers", 7, set()),
        ("fetch/split_seed", 3, {"fetch"}),
        ("fetch/download_attempts", 3, set()),
        (
            "models/digits_torch/labels",
            None,
            {"fetch", "import_model", "graph_pack", "build", "evaluate"},
        ),  # some of its keys are not there: DVC watches the block
        ("release/confidence", 0.9, set()),
    ],
)
def test_dvc_runs_the_stages_that_an_edit_changes(recorded: Path, path: str, value: Any, stages: set[str]) -> None:
    text = (recorded / "params.yaml").read_text()
    params = place = yaml.safe_load(text)
    *parents, last = path.split("/")
    for name in parents:
        place = place[name]
    place[last] = value
    try:
        (recorded / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        assert set(json.loads(_dvc(recorded, "status", "--json"))) == {f"{name}@digits" for name in stages}
    finally:
        (recorded / "params.yaml").write_text(text)
