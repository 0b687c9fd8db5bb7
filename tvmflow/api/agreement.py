"""Compare each kernel of a cell's network on its device with the same kernel on this machine's CPU."""

from __future__ import annotations

from tvmflow.api.results import KernelState
from tvmflow.api.workspace import CellName, Where, cell_of, open_workspace
from tvmflow.support.errors import StoreError


def device_agreement(cell: CellName, workspace: Where = None, random: int = 2) -> tuple[KernelState, ...]:
    """Return how each kernel of a cell's network agrees, on its device, with the same kernel on this machine's CPU.

    random: so many random inputs beside the first golden ones. A GPU that differs is in quarantine from then on, until
    it agrees. Raises StoreError for a cell that was not built, DeviceError.
    """
    from tvmflow.backends.registry import backend_for
    from tvmflow.devices.gpu.quarantine import note_agreement
    from tvmflow.devices.registry import open_session
    from tvmflow.devices.session import SessionLimits
    from tvmflow.evaluation.kernel_agreement import BuiltNetwork, network_agreement
    from tvmflow.ir.relax.serialization import IR_NAME

    where = open_workspace(workspace)
    wanted = cell_of(where, cell)
    entry, params = where.params.targets[wanted.target], where.params
    for stage, name in (("graph_pack", IR_NAME), ("tune", "best.json"), ("fetch", "golden.npz")):
        if not (where.folder(stage, wanted) / name).is_file():
            raise StoreError(
                f"{wanted} is not built", f"the file {name} of stage {stage}", f"run 'tvmflow run {wanted}'"
            )
    folders = {stage: where.folder(stage, wanted) for stage in ("graph_pack", "tune", "fetch")}
    bound, backend = params.build.max_relative_error[wanted.precision], backend_for(entry)
    built = BuiltNetwork(folders["graph_pack"], folders["tune"] / "best.json", folders["fetch"], bound)
    limits = SessionLimits(params.deploy.session_timeout_s, params.deploy.device_wait_s)
    with open_session(entry.device, backend, limits) as session:
        found = network_agreement(built, backend, session, random)
    if session.gpu is not None:
        note_agreement(where.root, session.gpu, str(wanted), found.summary.first)
    return tuple(KernelState(one.kernel, one.error, one.varies, one.error <= found.bound) for one in found.kernels)
