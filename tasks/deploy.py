"""deploy: upload the library for apps to a device and run the golden inputs there.

Its outputs are those of TVM's virtual machine on the same device, bit for bit; where the device has no TVM, those of
the virtual machine here, if this machine runs the same instructions.

In:  the built library, golden inputs and outputs
Out: deployed.json: which device, under which name, how its outputs agree. Never cached, never an open session.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.agreement import INPUTS, add_first_kernel, agreement_on
from tasks.device import LIMIT_READS, DeviceLimits, device_limits, session_of
from tasks.golden import GOLDEN, check_any_size, check_outputs, golden_outputs
from tvmflow.backends.manifest import read_manifest
from tvmflow.backends.registry import backend_of, resolve
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.devices.network_forms import network_library, vm_library
from tvmflow.devices.registry import transport_of
from tvmflow.devices.rpc.session import open_local_session
from tvmflow.devices.session import Arrays, DeviceSession
from tvmflow.evaluation.agreement import check_equal
from tvmflow.pipeline.stage import Stage, StageContext
from tvmflow.support.errors import AgreementError
from tvmflow.support.files import sha256_of
from tvmflow.support.json_values import to_json, write_json
from tvmflow.targets.resolve import TARGET_READS, ResolvedTarget


@dataclass(frozen=True)
class DeploySettings:
    target: ResolvedTarget
    device_key: str
    max_relative_error: float


def _settings(workspace: Workspace, cell: Cell) -> DeploySettings:
    entry = workspace.params.targets[cell.target]
    return DeploySettings(resolve(entry), entry.device.key, workspace.params.build.max_relative_error[cell.precision])


Context = StageContext[DeploySettings, DeviceLimits]


def deploy(context: Context) -> dict[str, Any]:
    """Upload, load and smoke-test the library; return the facts of deployed.json."""
    settings, target = context.settings, context.settings.target
    folder = context.inputs["build"]
    manifest, backend = read_manifest(folder), backend_of(target)
    ships = network_library(folder, manifest.outputs, manifest.network.device)
    with session_of(context.limits, target) as session:
        context.progress("uploading", 0, 2)
        remote_path = session.upload(ships.file)
        model = ships.start(session, remote_path)
        context.progress("running the golden inputs", 1, 2)
        outputs = golden_outputs(context, model)
        try:
            smoke = check_outputs(context, "deploy", outputs, settings.max_relative_error)
            sizes = (
                check_any_size(context, "deploy", model.at, settings.max_relative_error) if model.takes_sizes else {}
            )
        except AgreementError as error:
            raise add_first_kernel(error, agreement_on(session, context, backend)) from None
        expected = _vm_outputs(context, session, folder) if backend.has_machine else None
        if expected is not None:
            check_equal("deploy", expected, outputs)
    deployed = {
        "device_key": settings.device_key,
        "device_kind": transport_of(context.limits.device).kind_of(backend.device_kind),
        "unit": session.unit,
        "build": session.build or None,
        "gpu": to_json(session.gpu),
        "configured": session.configured,
        "remote_path": remote_path,
        "sha256": sha256_of(ships.file),
        "smoke": smoke.to_json(),
        **sizes,
    }
    write_json(context.out / "deployed.json", deployed)
    return deployed


def _vm_outputs(context: Context, session: DeviceSession, folder: Path) -> Arrays | None:
    """Return the outputs of the same kernels in TVM's virtual machine; None if that runs neither on the device nor
    here.
    """
    machine = vm_library(folder)
    if session.has_tvm:
        return golden_outputs(context, machine.upload_and_start(session))
    if not context.settings.target.runs_here:
        return None
    return golden_outputs(context, machine.upload_and_start(open_local_session(backend_of(context.settings.target))))


STAGE = Stage(
    name="deploy",
    settings=_settings,
    limits=device_limits,
    toolchain=lambda _: ("tvm", "ffi"),
    run=deploy,
    inputs={**GOLDEN, **INPUTS, "build": None},
    reads=(*TARGET_READS, "targets.{target}.device.key", "build.max_relative_error.{precision}"),
    limit_reads=LIMIT_READS,
    measures_device=True,
    needs_quiet=False,
    is_cached=False,
    runs=(),
)
