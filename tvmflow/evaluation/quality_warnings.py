"""Define what makes a measured quality doubtful: shown wherever the cell is, and refused by every gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class QualityWarning:
    """badge: for one line of a table; text: what it means, and what to do."""

    badge: str
    text: str


CALIBRATED_ON_NOISE = QualityWarning(
    "calibrated on noise",
    "its scales were chosen for random inputs, since the model has no dataset: on real inputs its outputs may be "
    "wrong; give the model a dataset (labels are optional)",
)


def warnings_of(card: Mapping[str, Any]) -> list[QualityWarning]:
    """Return the warnings of a scorecard; those of older versions have none."""
    return [QualityWarning(**one) for one in card.get("warnings", [])]


def badges_of(card: Mapping[str, Any]) -> list[str]:
    """Return the badges of a scorecard's warnings."""
    return [one.badge for one in warnings_of(card)]
