"""Test that folders which another user can exchange are refused, and those of this user, root and a container not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.conftest import small_params
from tvmflow.config.workspace import find_workspace
from tvmflow.support.errors import StoreError
from tvmflow.support.private_places import check_found, check_private
from tvmflow.support.temporary import make_folder, remove_folder
from tvmflow.toolchain.environments import cache_folder
from tvmflow.tracking.dvc.repository import is_in_git

SOMEBODY, ANOTHER = 54321, 54322
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to other users")


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """Return a folder in one that everybody may write."""
    (tmp_path / "open" / "own").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    return tmp_path / "open" / "own"


@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o777, True), (0o757, True), (0o1777, False), (0o775, False), (0o700, False)]
)
def test_folders_that_everybody_may_write_are_refused(mode: int, is_refused: bool, open_folder: Path) -> None:
    open_folder.parent.chmod(mode)
    for folder in (open_folder, open_folder / "to" / "be" / "made", open_folder.parent):
        if is_refused:
            with pytest.raises(StoreError, match=f"chmod o-w {open_folder.parent}'") as error:
                check_private(folder, "the cache")
            assert "may be written by everybody" in error.value.found
        else:
            check_private(folder, "the cache")


def test_links_are_looked_at_and_followed(open_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(open_folder)
    (open_folder / "out").symlink_to(tmp_path)
    for folder in (tmp_path / "link", open_folder / "out"):
        with pytest.raises(StoreError, match="can be exchanged"):
            check_private(folder, "the cache")


def test_places_that_the_user_trusts_are_taken(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMFLOW_TRUSTED", f"/nowhere:{open_folder.parent}")
    check_private(open_folder, "the cache")
    monkeypatch.setenv("TVMFLOW_TRUSTED", f"{open_folder}:")
    with pytest.raises(StoreError):
        check_private(open_folder, "the cache")


def test_temporary_folders_cache_and_workspace_are_checked(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (open_folder / "params.yaml").write_text(yaml.safe_dump(small_params()))
    with pytest.raises(StoreError, match="the workspace"):
        find_workspace(open_folder)
    monkeypatch.setenv("TVMFLOW_CACHE", str(open_folder / "cache"))
    with pytest.raises(StoreError, match="the cache"):
        cache_folder()
    monkeypatch.setattr("tempfile.tempdir", str(open_folder))
    with pytest.raises(StoreError, match="temporary files"):
        make_folder("test")
    open_folder.parent.chmod(0o755)
    remove_folder(make_folder("test"))
    assert find_workspace(open_folder).root == open_folder


@needs_root
def test_folders_of_another_user_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "theirs" / "own"
    own.mkdir(parents=True)
    os.chown(tmp_path / "theirs", SOMEBODY, SOMEBODY)
    with pytest.raises(StoreError, match=f"{tmp_path / 'theirs'} belongs to the user with number {SOMEBODY}"):
        check_private(own, "the workspace")
    check_private(own, "the workspace", SOMEBODY)
    with pytest.raises(StoreError):
        check_private(own, "the workspace", ANOTHER)


@needs_root
def test_a_workspace_of_another_user_is_taken_only_if_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "theirs"
    (root / "below").mkdir(parents=True)
    (root / "params.yaml").write_text("models: {}\n")
    for path in (root, root / "params.yaml"):
        os.chown(path, SOMEBODY, SOMEBODY)
    for folder in (root, root / "below"):
        monkeypatch.chdir(folder)
        with pytest.raises(StoreError, match="belongs to another user"):
            find_workspace()
    assert find_workspace(root).root == root
    monkeypatch.setenv("TVMFLOW_ROOT", str(root))
    assert find_workspace().root == root
    os.chown(root, 0, 0)
    with pytest.raises(StoreError, match="belongs to another user"):
        check_found(root, "params.yaml")


@needs_root
def test_a_repository_of_another_user_is_none(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    (tmp_path / ".git").mkdir()
    assert is_in_git(root)
    os.chown(tmp_path / ".git", SOMEBODY, SOMEBODY)
    assert not is_in_git(root)
    os.chown(root, SOMEBODY, SOMEBODY)
    assert is_in_git(root), "root works in a user's clone"
