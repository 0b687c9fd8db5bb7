"""Import a fetched model, and compare what came in with its own framework. Runs in a sandbox: the model's file is not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.backends.cpu import host_backend
from tvmflow.errors import AgreementError, ModelFileError, TvmflowError, first_line
from tvmflow.evaluation.agreement import check_golden
from tvmflow.frontends.source_model import SourceModel, batch_at, read_description, run_in_batches
from tvmflow.frontends.table import load_source
from tvmflow.progress import Progress
from tvmflow.sources.datasets import Samples


def read_model(inputs: str, outputs: str, max_relative_error: float, progress: Progress) -> dict[str, Any]:
    """Import, simplify, check against the source; returns what was found out."""
    from tvmflow.building.library import LocalRunner
    from tvmflow.ir.ir_files import save_module
    from tvmflow.passes.canonicalize import canonicalize

    fetched, out = Path(inputs), Path(outputs)
    description = read_description(fetched)
    batch = description.input_shape[0]
    progress("loading the source model", 0, 4)
    source = load_source(fetched, description)
    evaluation = Samples.load(fetched / "evaluation.npz")
    golden = Samples.load(fetched / "golden.npz").x
    reference = {
        "golden": run_in_batches(source, golden, batch),
        "evaluation": run_in_batches(source, evaluation.x, batch),
    }
    _check_outputs(reference["evaluation"], json.loads((fetched / "labels.json").read_text()), evaluation.y)
    progress("importing", 1, 4)
    module = canonicalize(source.to_relax())
    progress("checking against the source", 2, 4)
    runner = LocalRunner(module, host_backend())
    computed = run_in_batches(runner, golden, batch)
    try:
        agreement = check_golden("import_model", computed, reference["golden"], max_relative_error)
    except AgreementError as error:
        raise _with_layer(error, source, batch_at(golden, 0, batch), max_relative_error) from error
    save_module(module, out)
    reference["imported"] = run_in_batches(runner, evaluation.x, batch)
    np.savez(out / "reference.npz", **reference)  # type: ignore[arg-type]
    progress("exporting for peers", 3, 4)
    facts = {"golden": agreement.to_json(), "outputs": int(reference["golden"].shape[1])}
    try:
        source.to_onnx(out / "peer.onnx")
    except Exception as error:  # an exporter that fails costs a peer, not the cell
        (out / "peer.onnx").unlink(missing_ok=True)
        facts["no_onnx"] = first_line(error)
    (out / "import.json").write_text(json.dumps(facts, sort_keys=True), encoding="utf-8")
    return facts


def _with_layer(error: AgreementError, source: SourceModel, x: np.ndarray[Any, Any], bound: float) -> AgreementError:
    """Return the error with the first layer that differs."""
    from tvmflow.evaluation.first_difference import first_differing_layer

    layer = first_differing_layer(source, x, bound)
    where = "every layer agrees before batch norms are folded: a pass after the import changes it"
    found = f"{error.found}; " + (where if layer is None else f"the first layer that differs is {layer}")
    return AgreementError(found, error.expected, error.hint)


def _check_outputs(outputs: np.ndarray[Any, Any], labels: list[str] | None, y: np.ndarray[Any, Any] | None) -> None:
    if outputs.ndim != 2:
        raise ModelFileError(f"the model's output has shape {outputs.shape}", "(N, outputs)")
    if not np.isfinite(outputs).all():
        raise ModelFileError("the source model's outputs are not finite numbers", "weights that are not damaged")
    width = outputs.shape[1]
    if labels is not None and len(labels) != width:
        raise TvmflowError(
            f"{len(labels)} labels for a model with {width} outputs", "one label for each output",
            "correct labels: of the model in params.yaml",
        )  # fmt: skip
    if y is not None and (y.min() < 0 or y.max() >= width):
        raise TvmflowError(
            f"the data set has class numbers {y.min()} to {y.max()}", f"0 to {width - 1}, as the model has outputs"
        )
