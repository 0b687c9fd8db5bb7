"""Compare every kernel of a network on its GPU with the CPU, and update the GPU's quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmflow.backends.backend import Backend
from tvmflow.devices.gpu.quarantine import note_agreement
from tvmflow.devices.session import DeviceSession
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME
from tvmflow.pipeline.stage import StageContext
from tvmflow.support.errors import AgreementError

if TYPE_CHECKING:
    from tvmflow.evaluation.kernel_agreement import NetworkAgreement

INPUTS: dict[str, tuple[str, ...]] = {"graph_pack": (IR_NAME, WEIGHTS_NAME), "tune": ("best.json",)}
"""Beside the golden inputs: what the kernels are compiled from once more, each with an output of its own."""


def agreement_on(session: DeviceSession, context: StageContext[Any, Any], backend: Backend) -> NetworkAgreement | None:
    """Return the kernels' agreement; None without a GPU. The session has opened the network."""
    from tvmflow.evaluation.kernel_agreement import BuiltNetwork, network_agreement

    if session.gpu is None:
        return None
    context.progress("comparing each kernel with the CPU", 0, 0)
    inputs = context.inputs
    bound = context.settings.max_relative_error
    built = BuiltNetwork(inputs["graph_pack"], inputs["tune"] / "best.json", inputs["fetch"], bound)
    found = network_agreement(built, backend, session)
    note_agreement(context.root, session.gpu, str(context.cell), found.summary.first)
    return found


def add_first_kernel(error: AgreementError, agreement: NetworkAgreement | None) -> AgreementError:
    """Return an error of a network's outputs extended by the first kernel that differs."""
    if agreement is None or agreement.first is None:
        return error
    return AgreementError(
        f"{error.found}; {agreement.first.kernel} is the first kernel that differs from the CPU's",
        error.expected,
        "try another driver, or float32; the GPU is in quarantine",
    )
