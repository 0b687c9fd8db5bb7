"""Commit changed DVC files to a branch of git, without touching the user's index, working branch or files.

In:  the workspace's DVC files (dvc.yaml and dvc.lock, at the top and below pipelines/ and unlisted/), drivers.json
Out: a commit on top of the branch, or of HEAD where that contains the branch

The commit is made by git's plumbing in an index of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.support.temporary import temporary_folder
from tvmflow.targets.gpu_drivers import DRIVERS_FILE
from tvmflow.tracking.dvc import pipelines, unlisted

_NAMES = ("dvc.yaml", "dvc.lock", pipelines.FOLDER, unlisted.FOLDER, DRIVERS_FILE)
_CHANGED = ("diff", "--name-only", "--relative", "--no-renames", "-z", "HEAD", "--")
_NEW = ("ls-files", "--others", "--exclude-standard", "-z", "--")


def changed_files(workspace: Workspace) -> list[str]:
    """Return the DVC files that differ from HEAD, relative to the workspace; none outside of git."""
    try:
        found = [_git(workspace, *question, *_NAMES) for question in (_CHANGED, _NEW)]
    except StoreError:
        return []
    return sorted(name for text in found for name in text.split("\0") if name)


def state_of_files(workspace: Workspace, branch: str | None) -> str:
    """Return what to do with changed DVC files, or that a branch has them; "" if nothing changed."""
    files = changed_files(workspace)
    if not files:
        return ""
    if branch is None:
        return how_to_commit(files)
    if _has(workspace, branch, files):
        return f"{len(files)} changed DVC files are on branch {branch}: merge it, or 'git restore' them after a merge"
    return f"{len(files)} changed DVC files are not on branch {branch}: 'git add' and 'git commit' them"


def _has(workspace: Workspace, branch: str, files: Sequence[str]) -> bool:
    """Return whether a branch has files as they are in the workspace."""
    listed = _run(workspace, "ls-tree", "-z", f"refs/heads/{branch}", "--", *files).stdout.split("\0")
    on_branch = {entry.partition("\t")[2]: entry.split()[2] for entry in listed if entry}
    here = [name for name in files if (workspace.root / name).is_file()]
    paths = "".join(f"{workspace.root.absolute() / name}\n" for name in here)
    digests = _git(workspace, "hash-object", "--stdin-paths", text=paths).split()
    return on_branch == dict(zip(here, digests, strict=True))


def how_to_commit(files: Sequence[str]) -> str:
    """Return what to do with changed files that nobody commits."""
    names = sorted({name.split("/")[0] for name in files})
    return (
        f"{len(files)} DVC files changed and are not committed: 'git add {' '.join(names)}' and 'git commit', or set "
        "retune.commit_branch"
    )


def commit_to_branch(workspace: Workspace, branch: str, remote: str | None, message: str) -> str:
    """Commit the changed DVC files to a branch and push it. Returns what was done, "" if nothing changed.

    Raises StoreError; the workspace is unchanged then too.
    """
    files = changed_files(workspace)
    if not files:
        return ""
    _refuse_checked_out(workspace, branch)
    reference = f"refs/heads/{branch}"
    tip = _commit_of(workspace, reference)
    base = _base(workspace, tip, _commit_of(workspace, f"refs/remotes/{remote}/{branch}") if remote else "")
    commit = _commit(workspace, base, files, message)
    if commit:
        _git(workspace, "update-ref", "-m", message, reference, commit, tip or "0" * 40)
    made = commit or base
    if remote:
        _git(workspace, "push", "--quiet", remote, f"{made}:{reference}")
    done = f"{len(files)} DVC files are {'committed to' if commit else 'already on'} branch {branch} ({made[:10]})"
    return f"{done}, pushed to {remote}" if remote else done


def _commit(workspace: Workspace, base: str, files: Sequence[str], message: str) -> str:
    """Make a commit of files on top of another one. Returns its name, "" if that one has them all."""
    with temporary_folder("branch") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(workspace, "read-tree", base, environment=index)
        names = "".join(f"{name}\0" for name in files)
        _git(workspace, "update-index", "-z", "--add", "--remove", "--stdin", environment=index, text=names)
        tree = _git(workspace, "write-tree", environment=index).strip()
    if tree == _git(workspace, "rev-parse", f"{base}^{{tree}}").strip():
        return ""
    return _git(workspace, "commit-tree", tree, "-p", base, "-m", message).strip()


def _base(workspace: Workspace, *tips: str) -> str:
    """Return the commit to build on: HEAD if it contains the branch, here and on the remote, else the newer tip."""
    base = _commit_of(workspace, "HEAD")
    if not base:
        raise StoreError("git has no commit yet", "a first commit", "run 'git commit'")
    for tip in filter(None, tips):
        if not _contains(workspace, base, tip):
            if base != _commit_of(workspace, "HEAD") and not _contains(workspace, tip, base):
                raise StoreError(
                    "the branch of re-tunes and that of its remote went apart", hint="merge them with git, once"
                )
            base = tip
    return base


def _contains(workspace: Workspace, commit: str, other: str) -> bool:
    return _run(workspace, "merge-base", "--is-ancestor", other, commit).returncode == 0


def _commit_of(workspace: Workspace, reference: str) -> str:
    return _run(workspace, "rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}").stdout.strip()


def _refuse_checked_out(workspace: Workspace, branch: str) -> None:
    """Raise StoreError if the branch is checked out somewhere, where a new commit would look like a change."""
    used = _git(workspace, "worktree", "list", "--porcelain").splitlines()
    if f"branch refs/heads/{branch}" in used:
        raise StoreError(
            f"retune.commit_branch {branch!r} is checked out",
            "a branch that nobody works on",
            "name another one, such as retune",
        )


def _git(workspace: Workspace, *arguments: str, environment: dict[str, str] | None = None, text: str = "") -> str:
    done = _run(workspace, *arguments, environment=environment, text=text)
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise StoreError(f"'git {arguments[0]}' failed: {said}", hint="run 'git status' in the workspace")
    return done.stdout


def _run(
    workspace: Workspace, *arguments: str, environment: dict[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "GIT_TERMINAL_PROMPT": "0", **(environment or {})}
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=workspace.root,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env=variables,
        )
    except OSError as error:
        raise StoreError(f"git does not start: {error.strerror}", "git on PATH") from error
