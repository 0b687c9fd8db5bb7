"""Note what was recorded: a file for each measurement, with its run in each store and the commit it was made at.

A marker is no evidence: whether a store has a measurement is asked of that store, where the marker saves a search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tvmflow.config.workspace import Workspace
from tvmflow.support.files import write_atomic
from tvmflow.tracking.mlflow.address import identity


@dataclass(frozen=True)
class Marker:
    """runs: store -> run of the measurement. git_commit: empty if unknown."""

    git_commit: str = ""
    runs: Mapping[str, str] = field(default_factory=dict)


def marker_path(workspace: Workspace, digest: str) -> Path:
    return workspace.artifacts / ".recorded" / f"{digest}.json"


def read_marker(workspace: Workspace, digest: str) -> Marker:
    """Return the marker of a measurement, an empty one where it is missing or damaged."""
    try:
        data = json.loads(marker_path(workspace, digest).read_text(encoding="utf-8"))
        runs = {str(store): str(run_id) for store, run_id in data.get("runs", {}).items()}
        return Marker(str(data.get("git_commit", "")), runs)
    except (OSError, ValueError, AttributeError, RecursionError):
        return Marker()


def write_marker(workspace: Workspace, digest: str, cell: str, commit: str, run_id: str) -> None:
    """Note the run of a measurement in the current store, beside those in others."""
    runs = {**read_marker(workspace, digest).runs, identity(workspace): run_id}
    text = json.dumps({"cell": cell, "git_commit": commit, "runs": runs}, sort_keys=True)
    write_atomic(marker_path(workspace, digest), text)
