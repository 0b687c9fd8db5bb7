"""Collect the files of one cell for a bundle: the records of its stages and some of their outputs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.evaluation.scorecard import Scorecard
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
    """A measured cell. folder: with the files of FILES in a folder for each stage; version: in the registry, None for
    none.
    """

    cell: str
    slug: str
    records: Mapping[str, Record]
    folder: Path
    version: str | None = None

    def path(self, stage: str, name: str) -> Path:
        return self.folder / stage / name

    @functools.cached_property
    def manifest(self) -> Mapping[str, Any]:
        """Return build's manifest of the library."""
        return self._json("build", "manifest.json")

    @functools.cached_property
    def card(self) -> Scorecard:
        return Scorecard.from_json(self._json("evaluate", "scorecard.json"))

    @functools.cached_property
    def source(self) -> Mapping[str, Any]:
        return self._json("fetch", "source.json")

    @property
    def weights_file(self) -> str:
        return str(self.source["weights_file"])

    @property
    def entry(self) -> Mapping[str, Any]:
        """Return the model's entry in params.yaml at the time of fetch."""
        model: Mapping[str, Any] = self.records["fetch"].recipe["params"]["model"]
        return model

    def _json(self, stage: str, name: str) -> Mapping[str, Any]:
        value: Mapping[str, Any] = json.loads(self.path(stage, name).read_text(encoding="utf-8"))
        return value
