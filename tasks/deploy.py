"""deploy: put the library on a device and run the golden inputs there.

In:  the built library, golden inputs and outputs
Out: deployed.json: which device, under which name, how its outputs agree. Never cached, never an open session.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tasks.device import LIMIT_READS, DeviceLimits, device_limits, session_of
from tasks.golden import GOLDEN, check_module
from tvmflow.artifacts import sha256_of
from tvmflow.backends.table import backend_of, resolve
from tvmflow.params import Cell
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import TARGET_READS, ResolvedTarget
from tvmflow.workspace import Workspace


@dataclass(frozen=True)
class DeploySettings:
    target: ResolvedTarget
    device_key: str
    max_relative_error: float


def _settings(workspace: Workspace, cell: Cell) -> DeploySettings:
    entry = workspace.params.targets[cell.target]
    return DeploySettings(resolve(entry), entry.device.key, workspace.params.build.max_relative_error[cell.precision])


def deploy(context: StageContext[DeploySettings, DeviceLimits]) -> dict[str, Any]:
    """Upload, load, smoke-test; returns what the device said."""
    settings, target = context.settings, context.settings.target
    library = context.inputs["build"] / "library.so"
    with session_of(context.limits, target) as session:
        context.progress("uploading", 0, 2)
        remote_path = session.upload(library)
        model = session.model_on_device(remote_path)
        context.progress("running the golden inputs", 1, 2)
        smoke = check_module(context, "deploy", model, settings.max_relative_error)
    deployed = {
        "device_key": settings.device_key,
        "device_kind": backend_of(target).device_kind,
        "unit": session.unit,
        "remote_path": remote_path,
        "sha256": sha256_of(library),
        "smoke": smoke.to_json(),
    }
    (context.out / "deployed.json").write_text(json.dumps(deployed, sort_keys=True, indent=1), encoding="utf-8")
    return deployed


STAGE = Stage(
    name="deploy", settings=_settings, limits=device_limits, toolchain=lambda _: ("tvm", "ffi"), run=deploy,
    inputs={**GOLDEN, "build": ("library.so", "manifest.json")},
    reads=(*TARGET_READS, "targets.{target}.device.key", "build.max_relative_error.{precision}"),
    limit_reads=LIMIT_READS, measures_device=True, is_cached=False, runs=(),
)  # fmt: skip
