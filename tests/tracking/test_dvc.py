"""Test DVC in a team: merges of dvc.lock, experiments, plots that render offline."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY
from tvmflow.tracking.dvc import merge_lock, offline_plots
from tvmflow.tracking.dvc.merge_lock import merge

ENVIRONMENT = {"PYTHONPATH": str(REPOSITORY)}


def _lock(**cells: str) -> dict[str, Any]:
    """Return a dvc.lock in which two stages of each cell have this md5."""
    stages = {
        f"{stage}@{cell}": {"cmd": stage, "outs": [{"md5": md5}]}
        for cell, md5 in cells.items()
        for stage in ("tune", "build")
    }
    return {"schema": "2.0", "stages": stages}


def test_cells_of_two_branches_come_together() -> None:
    merged, conflicts = merge(_lock(a="1", b="1", c="1"), _lock(a="2", b="1", c="1", d="1"), _lock(a="1", b="3", e="1"))
    assert merged == _lock(a="2", b="3", d="1", e="1") and conflicts == []
    merged, conflicts = merge(_lock(a="1"), _lock(a="2"), _lock(a="2"))
    assert merged == _lock(a="2") and conflicts == [], "both found the same"
    merged, conflicts = merge({}, _lock(a="2"), _lock(a="3", b="1"))
    assert merged == _lock(a="2", b="1") and conflicts == ["a"], "a cell is never made of two sides"
    ours, theirs = ({"stages": {"settings": {"outs": [{"md5": md5}]}}} for md5 in "12")
    assert merge({}, ours, theirs) == (ours, []), "what follows from params.yaml is written anew"


def _git(root: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False, env={**os.environ, **ENVIRONMENT}
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_git_merges_the_lock_of_a_team(tmp_path: Path) -> None:
    def commit(**cells: str) -> None:
        (tmp_path / "dvc.lock").write_text(yaml.safe_dump(_lock(**cells), sort_keys=False))
        _git(tmp_path, "add", "-A")
        _git(tmp_path, "commit", "-qm", "run")

    _git(tmp_path, "init", "-q")
    merge_lock.install(tmp_path)
    merge_lock.install(tmp_path)
    assert (tmp_path / ".gitattributes").read_text() == merge_lock.ATTRIBUTES
    commit(a="1")
    _git(tmp_path, "checkout", "-qb", "theirs")
    commit(a="1", theirs="1")
    _git(tmp_path, "checkout", "-q", "main")
    commit(a="2", ours="1")
    _git(tmp_path, "merge", "-q", "theirs", "-m", "merge")
    assert yaml.safe_load((tmp_path / "dvc.lock").read_text()) == _lock(a="2", ours="1", theirs="1")

    _git(tmp_path, "checkout", "-qb", "other")
    commit(a="3", ours="1", theirs="1")
    _git(tmp_path, "checkout", "-q", "main")
    commit(a="4", ours="1", theirs="1")
    assert "both sides ran a: ours is kept" in _git(tmp_path, "merge", "other", code=1)
    assert yaml.safe_load((tmp_path / "dvc.lock").read_text()) == _lock(a="4", ours="1", theirs="1")
    assert "UU dvc.lock" in _git(tmp_path, "status", "--short")


@pytest.mark.parametrize("text", ["[1]", "a: [", "stages: 3", "\x00"])
def test_what_is_no_lock_is_not_merged(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("base", "ours", "theirs")]
    for path in paths:
        path.write_text(text)
    assert merge_lock.main([str(path) for path in paths]) == 129
    assert "is not merged" in capsys.readouterr().err and paths[1].read_text() == text


def test_the_scripts_of_plots_are_those_of_their_packages() -> None:
    folder = REPOSITORY / "tvmflow/tracking/dvc/vega"
    pinned = json.loads((folder / "vendored.json").read_text())
    assert set(pinned) == set(offline_plots.SCRIPTS)
    for name, row in pinned.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == row["sha256"], name
        assert (folder / row["license_file"]).is_file()


def _dvc(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plots_are_a_page_that_needs_no_network(finished: Path, tmp_path: Path) -> None:
    _dvc(finished, "plots", "show", "--out", str(tmp_path / "plots"))
    page = (tmp_path / "plots" / "index.html").read_text()
    assert page.count("vegaEmbed(") >= 2 and "latency_csv" in page and "{plot_divs}" not in page
    markup = re.sub(r"<script[^>]*>.*?</script>", lambda match: match[0].partition(">")[0], page, flags=re.DOTALL)
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", markup), "nothing is loaded"


@pytest.mark.slow
def test_an_experiment_runs_what_its_parameter_changes(copy_of_finished: Path) -> None:
    root = copy_of_finished
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "lock")
    _dvc(
        root,
        "exp",
        "run",
        "--single-item",
        "--name",
        "warm",
        "--set-param",
        "evaluate.warmup_runs=2",
        "evaluate@digits",
    )
    shown = json.loads(_dvc(root, "exp", "show", "--json", "--no-pager"))
    [experiment] = [e for row in shown if row.get("experiments") for e in row["experiments"]]
    assert experiment["name"] == "warm"
    data = experiment["revs"][0]["data"]
    assert data["params"]["params.yaml"]["data"]["evaluate"]["warmup_runs"] == 2
    assert any("metrics.json" in name for name in data["metrics"])
    assert "evaluate.warmup_runs" in _dvc(root, "params", "diff", "HEAD", "warm")
