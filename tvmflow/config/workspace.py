"""Locate the files of a workspace: a folder with params.yaml, such as a clone of tvmflow.

A variant is a workspace with other settings of one cell, in a folder below artifacts/.search/ with VARIANT_FILE.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from tvmflow.config.overrides import CellOverrides
from tvmflow.config.params import Cell, Params, load_params
from tvmflow.support.digests import Digests
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.support.files import digest_of, write_atomic
from tvmflow.support.private_places import check_found, check_private
from tvmflow.support.temporary import check_temporary

VARIANT_FILE = "variant.json"


@dataclass(frozen=True)
class Workspace:
    """digests: file digests known to this process, shared by all users of the workspace."""

    is_variant: ClassVar[bool] = False

    root: Path
    digests: Digests = field(default_factory=Digests, compare=False, repr=False)

    @property
    def address(self) -> Path:
        """Return the folder by which `find_workspace` finds this workspace again."""
        return self.root

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

    @property
    def common(self) -> Path:
        """Return the folder of the index and of the locks, which a workspace and its variants share."""
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


@dataclass(frozen=True)
class Variant(Workspace):
    """A workspace in which one cell has other settings. Its outputs are apart from those of the workspace, except those
    of the stages in `shares`; its measurements are not recorded.
    """

    is_variant: ClassVar[bool] = True

    place: Path = field(kw_only=True)
    cell: str = field(kw_only=True)
    overrides: CellOverrides = field(kw_only=True)
    shares: frozenset[str] = field(kw_only=True)

    @property
    def address(self) -> Path:
        return self.place

    @property
    def params(self) -> Params:
        params = load_params(self.params_path)
        return params.model_copy(update={"overrides": {**params.overrides, self.cell: self.overrides}})

    def at_once(self) -> Workspace:
        return self

    @property
    def artifacts(self) -> Path:
        return self.place

    def folder(self, stage: str, cell: Cell) -> Path:
        return (self.common if stage in self.shares else self.place) / stage / cell.slug


def searches(workspace: Workspace) -> Path:
    """Return the folder of the variants that searches made."""
    return workspace.common / ".search"


def make_variant(
    workspace: Workspace, cell: Cell, overrides: CellOverrides, shares: Iterable[str], tools: str = ""
) -> Variant:
    """Return the variant of a workspace with these settings of a cell: the same folder each time. tools: those that
    make it, "" for this environment's.
    """
    settings = _variant_settings(cell, overrides, shares) | ({"tools": tools} if tools else {})
    place = _place_of(workspace, cell, settings)
    if not (place / VARIANT_FILE).is_file():
        write_atomic(place / VARIANT_FILE, json.dumps(settings, indent=1, sort_keys=True))
    return _variant_at(workspace.root, place)


def made_variant(workspace: Workspace, cell: Cell, overrides: CellOverrides, shares: Iterable[str]) -> Variant | None:
    """Return the variant that `make_variant` made of this, None if it never did."""
    place = _place_of(workspace, cell, _variant_settings(cell, overrides, shares))
    return _variant_at(workspace.root, place) if (place / VARIANT_FILE).is_file() else None


def _variant_settings(cell: Cell, overrides: CellOverrides, shares: Iterable[str]) -> dict[str, Any]:
    return {"cell": str(cell), "overrides": overrides.model_dump(mode="json"), "shares": sorted(shares)}


def _place_of(workspace: Workspace, cell: Cell, settings: dict[str, Any]) -> Path:
    return searches(workspace) / f"{cell.slug}.{digest_of(settings)[:12]}"


def _variant_at(root: Path, place: Path) -> Variant:
    try:
        known = json.loads((place / VARIANT_FILE).read_text(encoding="utf-8"))
        overrides = CellOverrides.model_validate(known["overrides"])
        return Variant(root, place=place, cell=known["cell"], overrides=overrides, shares=frozenset(known["shares"]))
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise StoreError(
            f"{place / VARIANT_FILE} is damaged: {' '.join(str(error).split())[:200]}",
            "the file as written by tvmflow",
            f"remove {place} and search again",
        ) from None


@functools.cache
def workspace_at(folder: Path) -> Workspace:
    """Return the workspace or variant of a folder; one object per process, so that no file is read twice."""
    if (folder / VARIANT_FILE).is_file():
        return _variant_at(folder.parents[2], folder)
    return Workspace(folder)


def find_workspace(root: Path | None = None) -> Workspace:
    """Return the workspace at `root`, or the nearest one above the current folder. Raises UsageError,
    and StoreError for one that another user can exchange."""
    if root is not None:
        named: Path | str | None = root
        candidates = [root.resolve()]
    else:
        here = Path.cwd()
        named = os.environ.get("TVMFLOW_ROOT")
        candidates = [Path(named).resolve()] if named else [here, *here.parents]
    for folder in candidates:
        if (folder / "params.yaml").is_file() or (root is not None and (folder / VARIANT_FILE).is_file()):
            if named is None:
                check_found(folder, "params.yaml")
            check_private(folder, "the workspace", folder.stat().st_uid if named else None)
            check_temporary()
            return workspace_at(folder)
    raise UsageError(
        f"no params.yaml in {candidates[0]}" + ("" if len(candidates) == 1 else " or above it"),
        "a workspace: a folder with params.yaml",
        "create one with 'tvmflow new DIR', change to yours, or pass it as --root",
    )
