"""graph_pack: give the model the layout of its target, weights packed once and for all.

In:  the quantized model, golden inputs and answers
Out: model.json + weights.safetensors; NCHW{block}c on a CPU
"""

from __future__ import annotations

from typing import Any

from tasks.golden import GOLDEN, check_form
from tasks.run_alone import main
from tvmflow.building.ir_files import IR_NAME, WEIGHTS_NAME, load_module, save_module
from tvmflow.params import Cell
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import host_target
from tvmflow.workspace import Workspace


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    return {
        "channel_block": workspace.params.graph_pack.channel_block,
        "max_relative_error": workspace.params.build.max_relative_error[cell.precision],
    }


def graph_pack(context: StageContext) -> dict[str, Any]:
    """Pack and check; returns how many convolutions are packed."""
    from tvmflow.building.library import LocalRunner, run_pass
    from tvmflow.passes.pack_channels import PackChannels, packed_convolutions

    module = run_pass(PackChannels(context.settings["channel_block"]), load_module(context.inputs["quantize"]))
    save_module(module, context.out)
    found = check_form(
        context, "graph_pack", LocalRunner(module, host_target()), context.settings["max_relative_error"]
    )
    packed, convolutions = packed_convolutions(module)
    return {"golden": found.to_json(), "packed_convolutions": packed, "convolutions": convolutions}


STAGE = Stage(
    name="graph_pack", module="tasks.graph_pack", settings=_settings, toolchain=lambda _: ("tvm", "ffi", "llvm"),
    run=graph_pack, inputs={**GOLDEN, "quantize": (IR_NAME, WEIGHTS_NAME, *GOLDEN["quantize"])},
)  # fmt: skip

if __name__ == "__main__":
    main("graph_pack")
