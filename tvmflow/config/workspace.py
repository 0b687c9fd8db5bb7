"""Locate the files of a workspace: a folder with params.yaml, such as a clone of tvmflow."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path

from tvmflow.config.params import Cell, Params, load_params
from tvmflow.support.digests import Digests
from tvmflow.support.errors import UsageError


@dataclass(frozen=True)
class Workspace:
    """digests: file digests known to this process, shared by all users of the workspace."""

    root: Path
    digests: Digests = field(default_factory=Digests, compare=False, repr=False)

    @property
    def params_path(self) -> Path:
        return self.root / "params.yaml"

    @property
    def params(self) -> Params:
        return load_params(self.params_path)

    def at_once(self) -> Workspace:
        """Return the workspace with the params.yaml of this moment, for plans of many cells that agree."""
        return _AtOnce(self.root, self.digests)

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    def folder(self, stage: str, cell: Cell) -> Path:
        """Return the output folder of a stage and cell; DVC owns its content."""
        return self.artifacts / stage / cell.slug

    def log_path(self, stage: str, cell: Cell) -> Path:
        return self.artifacts / ".logs" / f"{stage}.{cell.slug}.log"

    def tuning_log(self, cell: Cell) -> Path:
        """Return the log of all measurements, separate from the small file of best records."""
        return self.artifacts / "tuning_log" / f"{cell.slug}.jsonl"

    @property
    def mlflow_uri(self) -> str:
        return f"sqlite:///{self.root / 'mlruns' / 'mlflow.db'}"


class _AtOnce(Workspace):
    @functools.cached_property
    def params(self) -> Params:
        return load_params(self.params_path)


@functools.cache
def workspace_at(root: Path) -> Workspace:
    """Return the workspace of a folder; one object per process, so that no file is read twice."""
    return Workspace(root)


def find_workspace(root: Path | None = None) -> Workspace:
    """Return the workspace at `root`, or the nearest one above the current folder. Raises UsageError."""
    if root is not None:
        candidates = [root.resolve()]
    else:
        here = Path.cwd()
        named = os.environ.get("TVMFLOW_ROOT")
        candidates = [Path(named).resolve()] if named else [here, *here.parents]
    for folder in candidates:
        if (folder / "params.yaml").is_file():
            return workspace_at(folder)
    raise UsageError(
        f"no params.yaml in {candidates[0]}" + ("" if len(candidates) == 1 else " or above it"),
        "a workspace: a folder with params.yaml",
        "create one with 'tvmflow new DIR', change to yours, or pass it as --root",
    )
