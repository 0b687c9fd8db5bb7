"""quantize: bring the model to the precision of its cell.

In:  the imported model, calibration samples, golden inputs and answers
Out: model.json + weights.safetensors in that precision, quantization.json (per layer), reference.npz (the quantized
     form's answers to the golden and, for integer precisions, to the evaluation inputs)
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tasks.golden import golden_inputs, read_description
from tasks.run_alone import main
from tvmflow.building.ir_files import IR_NAME, WEIGHTS_NAME, load_module, save_module
from tvmflow.evaluation.agreement import check_golden
from tvmflow.frontends.source_model import run_in_batches
from tvmflow.params import Cell
from tvmflow.sources.datasets import Samples
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import host_target
from tvmflow.workspace import Workspace

REPORT_NAME = "quantization.json"
INTEGER = ("int8", "vta_int8")


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    block = workspace.params.quantize
    if cell.precision in INTEGER:
        options = getattr(block, cell.precision).model_dump(mode="json")
    elif cell.precision == "float32":
        options = {}
    else:
        options = block.mixed.get(cell.target, block.mixed["default"]).model_dump(mode="json")
    return {
        "precision": cell.precision,
        "options": options,
        "max_relative_error": block.max_relative_error[cell.precision],
    }


def quantize(context: StageContext) -> dict[str, Any]:
    """Convert and check; float32 passes unchanged."""
    from tvmflow.building.library import LocalRunner
    from tvmflow.quantization.definition import run_graph
    from tvmflow.quantization.graph import read_graph
    from tvmflow.quantization.precisions import PrecisionRequest, to_precision

    settings, fetched = context.settings, context.inputs["fetch"]
    request = PrecisionRequest(settings["options"], Samples.load(fetched / "calibration.npz"), context.progress)
    module, report = to_precision(load_module(context.inputs["import_model"]), settings["precision"], request)
    save_module(module, context.out)
    (context.out / REPORT_NAME).write_text(json.dumps(report, sort_keys=True, indent=1), encoding="utf-8")
    batch, golden = read_description(fetched).input_shape[0], golden_inputs(context)
    context.progress("checking the quantized form", 0, 0)
    runner = LocalRunner(module, host_target())
    answers = run_in_batches(runner, golden, batch)
    with np.load(context.inputs["import_model"] / "reference.npz", allow_pickle=False) as data:
        found = check_golden("quantize", answers, np.asarray(data["golden"]), settings["max_relative_error"])
    facts: dict[str, Any] = {"golden": found.to_json()}
    if settings["precision"] in INTEGER:
        graph = read_graph(module)
        defined = np.concatenate([run_graph(graph, x) for x in _batches(golden, batch)])[: len(golden)]
        facts["definition"] = check_golden(
            "quantize: compiled against its definition", answers, defined, 0.05
        ).to_json()
        facts |= {
            name: report[name] for name in ("output_sqnr_db", "worst", "moved_to_float", "goal_met") if name in report
        }
    evaluation = run_in_batches(runner, Samples.load(fetched / "evaluation.npz").x, batch)
    np.savez(context.out / "reference.npz", golden=answers, evaluation=evaluation)
    return facts


def _batches(x: np.ndarray[Any, Any], batch: int) -> list[np.ndarray[Any, Any]]:
    from tvmflow.frontends.source_model import batch_at

    return [batch_at(x, start, batch) for start in range(0, len(x), batch)]


STAGE = Stage(
    name="quantize", module="tasks.quantize", settings=_settings, toolchain=lambda _: ("tvm", "ffi", "llvm", "numpy"),
    run=quantize,
    inputs={
        "fetch": ("golden.npz", "source.json", "calibration.npz", "evaluation.npz"),
        "import_model": (IR_NAME, WEIGHTS_NAME, "reference.npz"),
    },
)  # fmt: skip

if __name__ == "__main__":
    main("quantize")
