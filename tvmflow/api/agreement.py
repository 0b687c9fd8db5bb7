"""Calls about how a device computes: each kernel of a network beside the same one on this machine's CPU."""

from __future__ import annotations

from tvmflow.api.opening import CellName, Where, cell_of, opened
from tvmflow.api.results import KernelState
from tvmflow.errors import StoreError


def device_agreement(cell: CellName, workspace: Where = None, random: int = 2) -> tuple[KernelState, ...]:
    """Return how each kernel of a cell's network agrees, on its device, with the same kernel on this machine's CPU.

    random: so many random inputs beside the first golden ones. Raises StoreError for a cell that was not built, DeviceError.
    """
    import json

    import numpy as np

    from tvmflow.artifacts import load_arrays
    from tvmflow.backends.table import backend_for
    from tvmflow.devices.session import open_session
    from tvmflow.devices.transport import SessionLimits
    from tvmflow.evaluation.kernel_agreement import kernel_agreement
    from tvmflow.frontends.source_model import read_description
    from tvmflow.ir.ir_files import IR_NAME, load_module

    where = opened(workspace)
    wanted = cell_of(where, cell)
    entry, params = where.params.targets[wanted.target], where.params
    for stage, name in (("graph_pack", IR_NAME), ("tune", "best.json"), ("fetch", "golden.npz")):
        if not (where.folder(stage, wanted) / name).is_file():
            raise StoreError(f"{wanted} is not built", f"a file {name} of {stage}", f"run 'tvmflow run {wanted}'")
    best = json.loads((where.folder("tune", wanted) / "best.json").read_text(encoding="utf-8"))
    backend = backend_for(entry)
    records = {one["workload"]: one for one in best["records"] if best["device_kind"] == backend.kernel_kind}
    golden = load_arrays(where.folder("fetch", wanted) / "golden.npz", "x")
    batch = read_description(where.folder("fetch", wanted)).batch
    draw = np.random.default_rng(0)
    first = tuple(x[:batch] for x in golden)
    samples = [first] + [tuple(draw.permutation(x.reshape(-1)).reshape(x.shape) for x in first) for _ in range(random)]
    limits = SessionLimits(params.deploy.session_timeout_s, params.deploy.device_wait_s)
    packed = load_module(where.folder("graph_pack", wanted))
    with open_session(entry.device, backend, limits) as session:
        found = kernel_agreement(packed, backend, records, samples, session)
    bound = params.build.max_relative_error[wanted.precision]
    return tuple(KernelState(one.kernel, one.error, one.varies, one.error <= bound) for one in found)
