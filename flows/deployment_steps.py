"""Steps of prefect.yaml: describe the workspace when it is deployed, enter it where a worker starts a run.

A worker on a machine without that folder works in a clone of the workspace's git repository, which stays there with
what was made.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from tvmflow.config.workspace import find_workspace
from tvmflow.support.errors import SourceError, StoreError, last_words
from tvmflow.support.files import digest_of
from tvmflow.support.secrets import mask
from tvmflow.toolchain.environments import cache_folder

_GIT_S = 600.0


def describe_workspace() -> dict[str, str]:
    """Return the nearest workspace for the other steps: root, repository ('' for none), branch, folder in the
    repository, and flows.retune_cron.
    """
    workspace = find_workspace()
    root = workspace.root.resolve()
    top = _git_answer(root, "rev-parse", "--show-toplevel")
    return {
        "root": str(root),
        "repository": mask(_git_answer(root, "remote", "get-url", "origin")),
        "branch": _git_answer(root, "branch", "--show-current"),
        "folder": str(root.relative_to(Path(top).resolve())) if top else ".",
        "retune_cron": workspace.params.flows.retune_cron,
    }


def enter_workspace(root: str, repository: str = "", branch: str = "", folder: str = ".") -> dict[str, str]:
    """Change to the workspace, or to a clone that is brought up to date. Raises SourceError."""
    here = Path(root)
    if not (here / "params.yaml").is_file():
        if not repository:
            raise SourceError(
                f"the worker on {platform.node()} has no workspace {root}",
                "the folder where 'prefect deploy' ran, or a git repository to clone",
                "start the worker on that machine, or give the workspace a git remote 'origin', push, and deploy again",
            )
        here = _clone(repository, branch) / folder
        if not (here / "params.yaml").is_file():
            raise SourceError(f"{repository} has no params.yaml in {folder}", "a workspace", "push it and deploy again")
    os.chdir(here)
    return {"directory": str(here)}


def _clone(repository: str, branch: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", repository.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git"))
    clone = cache_folder() / "workspaces" / f"{name}-{digest_of([repository, branch])[:8]}"
    if not (clone / ".git").is_dir():
        clone.parent.mkdir(parents=True, exist_ok=True)
        _git(clone.parent, "clone", "--quiet", *(["--branch", branch] if branch else []), "--", repository, clone.name)
    else:
        _git(clone, "pull", "--quiet", "--ff-only")
    return clone


def _git(folder: Path, *arguments: str) -> None:
    done = _run_git(folder, *arguments)
    if done.returncode:
        raise SourceError(
            f"git {arguments[0]} failed in {folder} on {platform.node()}: {last_words((done.stderr or '').encode())}",
            "access to the repository, and no local changes of files that changed there",
            "run the command there by hand; commit or discard what 'git status' shows",
        )


def _git_answer(folder: Path, *arguments: str) -> str:
    """Return git's answer, '' without a repository or an answer."""
    try:
        done = _run_git(folder, *arguments)
    except StoreError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_S,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"git does not run: {error}", "git on this machine") from None
