"""quantize: bring the model to the precision of its cell.

In:  the imported model, golden inputs and answers
Out: model.json + weights.safetensors in that precision
"""

from __future__ import annotations

from typing import Any

from tasks.golden import GOLDEN, check_form
from tasks.run_alone import main
from tvmflow.building.ir_files import IR_NAME, WEIGHTS_NAME, load_module, save_module
from tvmflow.errors import UsageError
from tvmflow.params import Cell
from tvmflow.quantization.precisions import PRECISIONS, to_precision
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import host_target
from tvmflow.workspace import Workspace


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    bounds = workspace.params.quantize.max_relative_error
    if cell.precision not in PRECISIONS or cell.precision not in bounds:
        raise UsageError(
            f"precision {cell.precision} cannot be made by this version of tvmflow",
            "one of " + ", ".join(p for p in PRECISIONS if p in bounds),
            "choose another precision for the cell (and give it a bound in quantize.max_relative_error)",
        )
    return {"precision": cell.precision, "max_relative_error": bounds[cell.precision]}


def quantize(context: StageContext) -> dict[str, Any]:
    """Convert and check; float32 passes unchanged."""
    from tvmflow.building.library import LocalRunner

    module = to_precision(load_module(context.inputs["import_model"]), context.settings["precision"])
    save_module(module, context.out)
    found = check_form(context, "quantize", LocalRunner(module, host_target()), context.settings["max_relative_error"])
    return {"golden": found.to_json()}


STAGE = Stage(
    name="quantize", module="tasks.quantize", settings=_settings, toolchain=lambda _: ("tvm", "ffi", "llvm"), run=quantize,
    inputs={**GOLDEN, "import_model": (IR_NAME, WEIGHTS_NAME, "reference.npz")},
)  # fmt: skip

if __name__ == "__main__":
    main("quantize")
