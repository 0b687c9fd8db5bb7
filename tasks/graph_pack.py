"""graph_pack: give the model the layout of its target, weights packed once and for all.

In:  the quantized model, golden inputs and answers
Out: model.json + weights.safetensors; NCHW{block}c on a CPU; of a target with a VTA, the layers that it computes are one
     call, in its layout NCHW{batch}n{block}c
"""

from __future__ import annotations

from typing import Any

from tasks.golden import GOLDEN, check_form
from tasks.run_alone import main
from tvmflow.building.ir_files import IR_NAME, WEIGHTS_NAME, load_module, save_module
from tvmflow.errors import UsageError
from tvmflow.params import Cell
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import VtaTarget, from_json, host_target, resolve
from tvmflow.workspace import Workspace


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    target = resolve(workspace.params.targets[cell.target])
    if target.vta is not None and cell.precision != "vta_int8":
        raise UsageError(
            f"precision {cell.precision} on target {cell.target}", "vta_int8, the only one that VTA computes in",
            f"tvmflow run {cell.model}@{cell.target}:vta_int8",
        )  # fmt: skip
    return {
        "channel_block": workspace.params.graph_pack.channel_block,
        "target": target.to_json(),
        "max_relative_error": workspace.params.build.max_relative_error[cell.precision],
    }


def graph_pack(context: StageContext) -> dict[str, Any]:
    """Pack and check; returns how many convolutions are packed."""
    from tvmflow.building.library import LocalRunner, run_pass
    from tvmflow.passes.pack_channels import PackChannels, packed_convolutions
    from tvmflow.targets.machine import machine_of

    module, target = load_module(context.inputs["quantize"]), from_json(context.settings["target"])
    facts: dict[str, Any] = {}
    if target.vta is not None:
        module, facts = _offload(module, target.vta)
    wanted = context.settings["channel_block"]
    block = machine_of(target).channel_block if wanted == "auto" else wanted
    module = run_pass(PackChannels(block), module)
    save_module(module, context.out)
    found = check_form(
        context, "graph_pack", LocalRunner(module, host_target()), context.settings["max_relative_error"]
    )
    packed, convolutions = packed_convolutions(module)
    return {
        "golden": found.to_json(),
        "packed_convolutions": packed,
        "convolutions": convolutions,
        "block": block,
        **facts,
    }


def _offload(module: Any, vta: VtaTarget) -> tuple[Any, dict[str, Any]]:
    """Cut out what the accelerator computes; until build has compiled it, its definition stands there."""
    from tvmflow.passes.offload_vta import offload_vta
    from tvmflow.vta.runtime import register

    offloaded, parts = offload_vta(module, vta.config, vta.start, vta.stop)
    register(vta.config)
    return offloaded, {"vta_layers": list(parts.layers), "cpu_reasons": parts.reasons}


STAGE = Stage(
    name="graph_pack", module="tasks.graph_pack", settings=_settings, toolchain=lambda _: ("tvm", "ffi", "llvm"),
    run=graph_pack, inputs={**GOLDEN, "quantize": (IR_NAME, WEIGHTS_NAME, *GOLDEN["quantize"])},
)  # fmt: skip

if __name__ == "__main__":
    main("graph_pack")
