"""import_model: bring the source model into Relax, in a canonical form, and keep the source framework's answers.

In:  what fetch brought
Out: model.json + weights.safetensors (Relax, constants folded, batch norms in the convolutions), reference.npz (the
     source framework's answers to the golden and the evaluation inputs, and the imported form's to the latter), peer.onnx
     (for peers), import.json
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tasks.golden import golden_inputs, read_description
from tasks.run_alone import main
from tvmflow.errors import AgreementError, ModelFileError, TvmflowError, first_line
from tvmflow.evaluation.agreement import check_golden
from tvmflow.frontends.source_model import SourceModel, batch_at, run_in_batches
from tvmflow.frontends.table import TOOLS, load_source
from tvmflow.params import Cell
from tvmflow.sources.datasets import Samples
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import host_target
from tvmflow.workspace import Workspace


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    block = workspace.params.import_model
    return {"framework": workspace.params.models[cell.model].framework, "max_relative_error": block.max_relative_error}


def _toolchain(settings: dict[str, Any]) -> tuple[str, ...]:
    return ("tvm", "ffi", "llvm", *TOOLS[settings["framework"]])


def import_model(context: StageContext) -> dict[str, Any]:
    """Import, simplify, check against the source; returns what was found out."""
    from tvmflow.building.ir_files import save_module
    from tvmflow.building.library import LocalRunner
    from tvmflow.passes.canonicalize import canonicalize

    fetched = context.inputs["fetch"]
    description = read_description(fetched)
    batch = description.input_shape[0]
    context.progress("loading the source model", 0, 4)
    source = load_source(fetched, description)
    evaluation = Samples.load(fetched / "evaluation.npz")
    golden = golden_inputs(context)
    reference = {
        "golden": run_in_batches(source, golden, batch),
        "evaluation": run_in_batches(source, evaluation.x, batch),
    }
    _check_outputs(reference["evaluation"], json.loads((fetched / "labels.json").read_text()), evaluation.y)
    context.progress("importing", 1, 4)
    module = canonicalize(source.to_relax())
    context.progress("checking against the source", 2, 4)
    runner = LocalRunner(module, host_target())
    answers = run_in_batches(runner, golden, batch)
    try:
        agreement = check_golden("import_model", answers, reference["golden"], context.settings["max_relative_error"])
    except AgreementError as error:
        raise _with_layer(error, source, batch_at(golden, 0, batch), context.settings["max_relative_error"]) from error
    save_module(module, context.out)
    reference["imported"] = run_in_batches(runner, evaluation.x, batch)
    np.savez(context.out / "reference.npz", **reference)  # type: ignore[arg-type]
    context.progress("exporting for peers", 3, 4)
    facts = {"golden": agreement.to_json(), "outputs": int(reference["golden"].shape[1])}
    try:
        source.to_onnx(context.out / "peer.onnx")
    except Exception as error:  # an exporter that fails costs a peer, not the cell
        (context.out / "peer.onnx").unlink(missing_ok=True)
        facts["no_onnx"] = first_line(error)
    (context.out / "import.json").write_text(json.dumps(facts, sort_keys=True), encoding="utf-8")
    return facts


def _with_layer(error: AgreementError, source: SourceModel, x: np.ndarray[Any, Any], bound: float) -> AgreementError:
    """Return the error with the first layer that differs."""
    from tvmflow.evaluation.first_difference import first_differing_layer

    layer = first_differing_layer(source, x, bound)
    where = "every layer agrees in the form before folding: a pass after the import changes it"
    found = f"{error.found}; " + (where if layer is None else f"the first layer that differs is {layer}")
    return AgreementError(found, error.expected, error.fix)


def _check_outputs(answers: np.ndarray[Any, Any], labels: list[str] | None, y: np.ndarray[Any, Any] | None) -> None:
    if answers.ndim != 2:
        raise ModelFileError(f"the model answers with shape {answers.shape}", "(N, outputs)")
    if not np.isfinite(answers).all():
        raise ModelFileError(
            "the source model answers with numbers that are not finite", "weights that are not damaged"
        )
    outputs = answers.shape[1]
    if labels is not None and len(labels) != outputs:
        raise TvmflowError(
            f"{len(labels)} labels for a model with {outputs} outputs", "one label for each output",
            "correct labels: of the model in params.yaml",
        )  # fmt: skip
    if y is not None and (y.min() < 0 or y.max() >= outputs):
        raise TvmflowError(
            f"the data set has class numbers {y.min()} to {y.max()}", f"0 to {outputs - 1}, as the model has outputs"
        )


STAGE = Stage(
    name="import_model", module="tasks.import_model", settings=_settings, toolchain=_toolchain, run=import_model,
    inputs={"fetch": None},
)  # fmt: skip

if __name__ == "__main__":
    main("import_model")
