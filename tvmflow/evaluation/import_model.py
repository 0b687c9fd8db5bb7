"""Import a fetched model and compare it with its own framework, in a sandbox for untrusted files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmflow.backends.cpu import host_backend
from tvmflow.evaluation.agreement import classes_of
from tvmflow.evaluation.conditioning import write_conditioning
from tvmflow.evaluation.import_buckets import BucketedImport, import_buckets
from tvmflow.evaluation.import_check import LEAST_INPUTS, ImportCheck
from tvmflow.evaluation.imported_files import FACTS_NAME, PEER_NAME
from tvmflow.evaluation.onnx_export import exporting_onnx
from tvmflow.evaluation.source_layers import locate_layers, write_layers
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    OutputSpec,
    SourceModel,
    WeightedLayer,
    batch_at,
    read_description,
    run_in_batches,
    write_outputs,
)
from tvmflow.sources.data.datasets import Samples, load_edges
from tvmflow.support.errors import AgreementError, ModelFileError, TvmflowError, first_line
from tvmflow.support.files import save_arrays
from tvmflow.support.json_values import to_json
from tvmflow.support.progress import Progress

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

_MOST_TEXT = 200  # of a name


def read_model(inputs: str, outputs: str, max_relative_error: float, progress: Progress) -> dict[str, Any]:
    """Import, simplify, and check against the source; return the facts of import.json."""
    from tvmflow.codegen.compile import LocalRunner
    from tvmflow.ir.relax.graph import read_graph
    from tvmflow.ir.relax.serialization import save_module
    from tvmflow.passes.pipeline import canonicalize

    # Before the framework is loaded. Hundreds of short runs: threads that spin between them take the processors from
    # each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    fetched, out = Path(inputs), Path(outputs)
    description = read_description(fetched)
    batch, task = description.batch, description.task
    progress("loading the source model", 0, 4)
    source = load_source(fetched, description)
    evaluation = Samples.load(fetched / "evaluation.npz")
    golden, edges = Samples.load(fetched / "golden.npz").inputs, load_edges(fetched / "edges.npz")
    expected = run_in_batches(source, evaluation.inputs, batch)
    reference = {"golden": _first(expected, len(golden[0])), "evaluation": expected}
    _check_outputs(expected, json.loads((fetched / "labels.json").read_text()), evaluation.y, task)
    progress("importing", 1, 4)
    relax = source.to_relax()
    with exporting_onnx(source, out / PEER_NAME) as finish_export:
        module = canonicalize(relax)
        progress("checking against the source", 2, 4)
        runs = len(evaluation) + sum(len(inputs[0]) for inputs in edges.values())
        runner = LocalRunner.of_plain(module, host_backend(), runs)
        imported = run_in_batches(runner, evaluation.inputs, batch)
        check, count = ImportCheck(source, batch, task, max_relative_error), max(LEAST_INPUTS, len(golden[0]))
        try:
            agreement = check.on_samples(*(_first(values, count) for values in (evaluation.inputs, imported, expected)))
            check.at_edges(edges, runner, expected)
        except AgreementError as error:
            raise _with_layer(error, source, batch_at(golden, 0, batch), max_relative_error) from error
        sized = None
        if description.sizes:
            progress("importing the smaller sizes", 2, 4)
            sized = import_buckets(fetched, description, source, runner, golden, max_relative_error, check.noise)
            reference |= sized.reference
        save_module(module, out, sized.modules if sized else None)
        write_conditioning(out, check.noise, check.warnings)
        write_layers(out, locate_layers(read_graph(module), _shown_layers(source)))
        reference |= {"imported": imported, "imported_golden": _first(imported, len(golden[0]))}
        save_arrays(out / "reference.npz", **reference)
        progress("exporting for baselines", 3, 4)
        described = _describe_outputs(source, module, sized)
        write_outputs(out, described)
        facts: dict[str, Any] = {"golden": agreement.to_json(), "outputs": to_json(described)}
        facts |= {"noise": to_json(check.noise), "warnings": to_json(check.warnings)}
        if sized:
            facts["sizes"] = {label: agreement.to_json() for label, agreement in sized.agreement.items()}
        if failure := finish_export():
            facts["no_onnx"] = failure
    (out / FACTS_NAME).write_text(json.dumps(facts, sort_keys=True), encoding="utf-8")
    return facts


def _shown_layers(source: SourceModel) -> list[WeightedLayer]:
    """Return the layers with weights under names that terminals and pages can show."""

    def plain(text: str) -> str:
        return "".join(c if c.isprintable() else "?" for c in text)[:_MOST_TEXT]

    return [replace(one, name=plain(one.name), node=plain(one.node)) for one in source.weighted_layers()]


def _with_layer(error: AgreementError, source: SourceModel, inputs: Arrays, bound: float) -> AgreementError:
    """Return the error extended by the first layer that differs."""
    from tvmflow.evaluation.first_difference import first_differing_layer

    try:
        layer = first_differing_layer(source, inputs, bound)
    except Exception as failure:  # it runs any graph, in numpy
        where = f"its layers cannot be compared ({type(failure).__name__}: {first_line(failure)})"
    else:
        where = (
            "every layer and output agrees on the first golden input before the passes"
            if layer is None
            else f"the first layer that differs is {layer}"
        )
    return AgreementError(f"{error.found}; {where}", error.expected, error.hint)


def _first(values: Arrays, count: int) -> Arrays:
    return tuple(x[:count] for x in values)


def _describe_outputs(source: SourceModel, module: IRModule, sized: BucketedImport | None) -> list[OutputSpec]:
    """Return name, shape, dtype and dynamic axes of every output."""
    from tvmflow.ir.relax.graph import read_graph

    graph = read_graph(module)
    kinds, axes = [graph.kind(name) for name in graph.outputs], sized.axes if sized else ()
    return [
        OutputSpec(name, kind.shape, kind.dtype, tuple(axis for axis in axes if axis.tensor == at))
        for at, (name, kind) in enumerate(zip(source.output_names(), kinds, strict=True))
    ]


def _check_outputs(outputs: Arrays, labels: list[str] | None, y: Array | None, task: str | None) -> None:
    for output in outputs:
        if output.dtype.kind not in "fiub":
            raise ModelFileError(f"the model has an output of {output.dtype}", "real numbers")
        if not output.size:
            raise ModelFileError(
                f"the model has an output without elements, of shape {output.shape}", "numbers in each output"
            )
        if not np.isfinite(output).all():
            raise ModelFileError("the outputs of the source model are not finite", "undamaged weights")
    predicted = classes_of(outputs[0], task)
    if predicted is None:
        return  # the outputs are not classes, so labels do not apply
    classes = outputs[0].shape[1] if outputs[0].ndim == 2 else min(outputs[0].shape[1], outputs[0].shape[3])
    if labels is not None and len(labels) != classes:
        raise TvmflowError(
            f"{len(labels)} labels for a model with {classes} outputs",
            "one label for each output",
            "correct labels: of the model in params.yaml",
        )
    if y is not None and y.shape != predicted.shape:
        raise TvmflowError(
            f"the data set has labels of shape {y.shape}",
            f"{predicted.shape}: one class per sample, or per pixel of a map",
        )
    if y is not None and (y.min() < 0 or y.max() >= classes):
        raise TvmflowError(
            f"the data set has class numbers {y.min()} to {y.max()}", f"0 to {classes - 1}, the outputs of the model"
        )
