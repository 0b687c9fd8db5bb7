"""Store what import_model measured of its source model for later stages: its rounding noise and its warnings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvmflow.evaluation.agreement import Noise
from tvmflow.evaluation.quality_warnings import QualityWarning

CONDITIONING_NAME = "conditioning.json"


def write_conditioning(folder: Path, noise: Sequence[Noise], warnings: Sequence[QualityWarning]) -> None:
    """Write what later stages and readers of the scorecard need to know of the source."""
    content = {"noise": [asdict(one) for one in noise], "warnings": [asdict(one) for one in warnings]}
    (folder / CONDITIONING_NAME).write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_noise(folder: Path) -> tuple[Noise, ...]:
    """Return the noise of each output of the source; empty if its rounding did not matter."""
    return tuple(Noise(**one) for one in _read(folder)["noise"])


def read_warnings(folder: Path) -> list[QualityWarning]:
    """Return the warnings of the import."""
    return [QualityWarning(**one) for one in _read(folder)["warnings"]]


def _read(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / CONDITIONING_NAME).read_text(encoding="utf-8")))
