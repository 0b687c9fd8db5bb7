"""What a re-tune commits: DVC's files, on a branch of their own, with nothing of the user's touched."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.tracking.dvc.commit_branch import changed_files, commit_to_branch, how_to_commit, state_of_files


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def workspace(make_workspace: Callable[..., Path], tmp_path: Path) -> Workspace:
    """Return a workspace below the top of a repository, with a remote, a change of a user, and changed DVC files."""
    root = make_workspace(name="repository") / "models"
    root.mkdir()
    shutil.move(root.parent / "params.yaml", root / "params.yaml")
    (root / "pipelines" / "digits").mkdir(parents=True)
    for name in ("dvc.lock", "pipelines/digits/dvc.lock", "pipelines/digits/dvc.yaml", "own.txt"):
        (root / name).write_text("before\n")
    _git(tmp_path, "init", "-q", "--bare", "origin.git")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        _git(root.parent, *command)
    _git(root, "remote", "add", "origin", str(tmp_path / "origin.git"))
    _change(root, "one")
    (root / "own.txt").write_text("of the user\n")
    _git(root, "add", "own.txt")
    return Workspace(root)


def _change(root: Path, text: str) -> None:
    for name in ("dvc.lock", "pipelines/digits/dvc.lock"):
        (root / name).write_text(f"{text}\n")


def test_a_commit_on_the_branch_leaves_all_of_the_users(workspace: Workspace) -> None:
    root = workspace.root
    (root / "pipelines" / "new model").mkdir()
    (root / "pipelines" / "new model" / "dvc.lock").write_text("new\n")
    (root / "pipelines" / "digits" / "dvc.yaml").unlink()
    files = changed_files(workspace)
    assert files == [
        "dvc.lock",
        "pipelines/digits/dvc.lock",
        "pipelines/digits/dvc.yaml",
        "pipelines/new model/dvc.lock",
    ]
    assert "'git add dvc.lock pipelines'" in how_to_commit(files)
    before = _git(root, "status", "--porcelain"), _git(root, "rev-parse", "HEAD"), _git(root, "diff", "--cached")
    done = commit_to_branch(workspace, "team/retune", "origin", "Record a re-tune")
    assert "4 DVC files are committed to branch team/retune" in done and "pushed to origin" in done
    assert "are on branch team/retune" in state_of_files(workspace, "team/retune")
    assert before == (
        _git(root, "status", "--porcelain"),
        _git(root, "rev-parse", "HEAD"),
        _git(root, "diff", "--cached"),
    )
    shown = _git(root, "show", "--name-status", "--format=%s %P", "team/retune").splitlines()
    assert shown[0] == f"Record a re-tune {before[1].strip()}"
    assert sorted(shown[2:]) == [
        "A\tmodels/pipelines/new model/dvc.lock",
        "D\tmodels/pipelines/digits/dvc.yaml",
        "M\tmodels/dvc.lock",
        "M\tmodels/pipelines/digits/dvc.lock",
    ]
    assert _git(root, "ls-remote", "origin", "team/retune").split()[0] == _git(root, "rev-parse", "team/retune").strip()


def test_weeks_follow_each_other_and_what_others_merged(workspace: Workspace) -> None:
    root = workspace.root
    commit_to_branch(workspace, "retune", "origin", "week 1")
    assert "already on" in commit_to_branch(workspace, "retune", "origin", "week 1 again")
    _change(root, "two")
    assert "are not on branch retune" in state_of_files(workspace, "retune")
    assert state_of_files(workspace, None) == how_to_commit(["dvc.lock", "pipelines/digits/dvc.lock"])
    commit_to_branch(workspace, "retune", "origin", "week 2")
    assert _git(root, "log", "--format=%s", "retune").split("\n")[:3] == ["week 2", "week 1", "first"]
    _git(root, "branch", "-D", "retune")  # a fresh clone knows that of the remote only
    _change(root, "three")
    commit_to_branch(workspace, "retune", "origin", "week 3")
    assert _git(root, "log", "--format=%s", "retune").split("\n")[:2] == ["week 3", "week 2"]
    _git(root, "commit", "-qm", "of the user")
    _git(root, "stash", "-q")
    _git(root, "merge", "-q", "retune", "-m", "merged")
    assert state_of_files(workspace, "retune") == ""
    assert changed_files(workspace) == [] and commit_to_branch(workspace, "retune", None, "nothing") == ""
    _change(root, "four")
    commit_to_branch(workspace, "retune", "origin", "week 4")
    assert _git(root, "log", "-1", "--format=%s %P", "retune") == f"week 4 {_git(root, 'rev-parse', 'HEAD')}"


def test_a_branch_that_cannot_take_it_is_one_error_and_no_change(workspace: Workspace, tmp_path: Path) -> None:
    root = workspace.root
    with pytest.raises(StoreError, match="'main' is checked out"):
        commit_to_branch(workspace, "main", None, "no")
    commit_to_branch(workspace, "retune", "origin", "week 1")
    other = tmp_path / "other"
    _git(tmp_path, "clone", "-q", "-b", "retune", "origin.git", "other")
    (other / "theirs").write_text("")
    for command in (["add", "-A"], ["commit", "-qm", "theirs"], ["push", "-q"]):
        _git(other, *command)
    _change(root, "two")
    with pytest.raises(StoreError, match="'git push' failed"):
        commit_to_branch(workspace, "retune", "origin", "week 2")
    _git(root, "fetch", "-q")
    _change(root, "three")
    with pytest.raises(StoreError, match="went apart"):
        commit_to_branch(workspace, "retune", "origin", "week 3")
    with pytest.raises(StoreError, match="'git push' failed"):
        commit_to_branch(workspace, "retune-2", "nowhere", "no such remote")
    assert changed_files(Workspace(make_empty(tmp_path))) == []


def make_empty(folder: Path) -> Path:
    """Return a folder outside of git."""
    (folder / "empty").mkdir()
    return folder / "empty"
