"""deploy: put the library on a device and let it answer the golden inputs there.

In:  the built library, golden inputs and answers
Out: deployed.json: which device, under which name, how it answered. Never cached, never an open session.
"""

from __future__ import annotations

import json
from typing import Any

from tasks.device import device_limits, session_of
from tasks.golden import GOLDEN, check_form
from tasks.run_alone import main
from tvmflow.artifacts import sha256_of
from tvmflow.params import Cell
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import from_json, resolve
from tvmflow.workspace import Workspace


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    entry = workspace.params.targets[cell.target]
    return {
        "target": resolve(entry).to_json(),
        "device_key": entry.device.key,
        "max_relative_error": workspace.params.build.max_relative_error[cell.precision],
    }


def deploy(context: StageContext) -> dict[str, Any]:
    """Upload, load, smoke-test; returns what the device said."""
    target = from_json(context.settings["target"])
    library = context.inputs["build"] / "library.so"
    with session_of(context.limits, target) as session:
        context.progress("uploading", 0, 2)
        remote_path = session.upload(library)
        model = session.model_on_device(remote_path)
        context.progress("running the golden inputs", 1, 2)
        smoke = check_form(context, "deploy", model, context.settings["max_relative_error"])
    deployed = {
        "device_key": context.settings["device_key"],
        "device_kind": target.device_kind,
        "remote_path": remote_path,
        "sha256": sha256_of(library),
        "smoke": smoke.to_json(),
    }
    (context.out / "deployed.json").write_text(json.dumps(deployed, sort_keys=True, indent=1), encoding="utf-8")
    return deployed


STAGE = Stage(
    name="deploy", module="tasks.deploy", settings=_settings, limits=device_limits, run=deploy, is_cached=False,
    toolchain=lambda _: ("tvm", "ffi"), inputs={**GOLDEN, "build": ("library.so", "manifest.json")},
)  # fmt: skip

if __name__ == "__main__":
    main("deploy")
