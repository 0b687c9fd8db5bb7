"""Collect the files of one cell for a bundle: the records of its stages and some of their outputs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.backends.manifest import Manifest, read_manifest
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.frontends.source_model import SourceDescription, read_description
from tvmflow.pipeline.record import Record

# stage -> files that a bundle is made from
FILES: dict[str, tuple[str, ...]] = {
    "build": ("network.so", "manifest.json"),
    "fetch": ("golden.npz", "labels.json", "source.json"),
    "quantize": ("reference.npz",),
    "evaluate": ("scorecard.json",),
}


@dataclass(frozen=True)
class Part:
    """A cell. folder: with the files of FILES in a folder for each stage; version: in the registry, None for none.
    is_measured: on its device; without, it has no files of `evaluate`.
    """

    cell: str
    slug: str
    records: Mapping[str, Record]
    folder: Path
    version: str | None = None
    is_measured: bool = True

    def path(self, stage: str, name: str) -> Path:
        return self.folder / stage / name

    @functools.cached_property
    def manifest(self) -> Manifest:
        """Return build's manifest of the library. Raises StoreError."""
        return read_manifest(self.folder / "build")

    @functools.cached_property
    def card(self) -> Scorecard:
        """Return what evaluate measured. Raises StoreError."""
        return Scorecard.from_json(json.loads(self.path("evaluate", "scorecard.json").read_text(encoding="utf-8")))

    @functools.cached_property
    def source(self) -> SourceDescription:
        return read_description(self.folder / "fetch")

    @property
    def entry(self) -> Mapping[str, Any]:
        """Return the model's entry in params.yaml at the time of fetch."""
        model: Mapping[str, Any] = self.records["fetch"].recipe["params"]["model"]
        return model
