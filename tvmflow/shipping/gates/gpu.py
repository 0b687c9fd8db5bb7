"""Define the release gate of GPU networks: each kernel agrees with the CPU on the measured device and driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmflow.devices.gpu.quarantine import Quarantined
from tvmflow.evaluation.scorecard import Scorecard

GATE = "gpu_agreement"


def gpu_reasons(card: Scorecard, manifest: Mapping[str, Any], held: Sequence[Quarantined]) -> list[str]:
    """Return the reasons against a release of a measured library; empty for a CPU library. held: the
    quarantined GPUs.
    """
    if not is_on_gpu(manifest):
        return []
    gpu, agreement = card.device.gpu, card.kernel_agreement
    if not gpu or not agreement:
        return ["its kernels were never compared with the CPU's on its GPU; run it again"]
    if agreement.first:
        return [f"kernel {agreement.first.kernel} computes different values from the CPU on {gpu.device}"]
    return [f"{one.gpu} is in quarantine: {one.reason}" for one in held if one.gpu == gpu]


def is_on_gpu(manifest: Mapping[str, Any]) -> bool:
    """Return whether a GPU computes a library's network."""
    return bool((manifest.get("network") or {}).get("gpu"))
