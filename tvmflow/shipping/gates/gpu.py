"""Define the release gate of GPU networks: each kernel agrees with the CPU on the measured device and driver."""

from __future__ import annotations

from collections.abc import Sequence

from tvmflow.devices.gpu.quarantine import Quarantined
from tvmflow.evaluation.scorecard import Scorecard

GATE = "gpu_agreement"


def gpu_reasons(card: Scorecard, api: str | None, held: Sequence[Quarantined]) -> list[str]:
    """Return the reasons against a release of a measured library; empty for a CPU library. api: of its GPU;
    held: the quarantined GPUs.
    """
    if api is None:
        return []
    gpu, agreement = card.device.gpu, card.kernel_agreement
    if not gpu or not agreement:
        return ["its kernels were never compared with the CPU's on its GPU; run it again"]
    if agreement.first:
        return [f"kernel {agreement.first.kernel} computes different values from the CPU on {gpu.device}"]
    return [f"{one.gpu} is in quarantine: {one.reason}" for one in held if one.gpu == gpu]
