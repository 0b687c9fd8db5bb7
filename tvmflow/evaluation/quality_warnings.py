"""Define warnings about measured quality: shown with the cell everywhere, and rejected by every gate."""

from __future__ import annotations

from dataclasses import dataclass


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
