"""Import a fetched model and compare it with its own framework, in a sandbox for untrusted files."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmflow.evaluation.agreement import Agreement, Noise, classes_of
from tvmflow.evaluation.conditioning import write_conditioning
from tvmflow.evaluation.import_buckets import BucketedImport, import_buckets
from tvmflow.evaluation.import_check import LEAST_INPUTS, ImportCheck
from tvmflow.evaluation.imported_files import FACTS_NAME, PEER_NAME
from tvmflow.evaluation.onnx_export import exporting_onnx
from tvmflow.evaluation.source_layers import locate_layers, write_layers
from tvmflow.evaluation.source_noise import measure_noise
from tvmflow.evaluation.source_runs import SourceRuns, run_at_edges, running_source
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    OutputSpec,
    Runner,
    SourceDescription,
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
from tvmflow.support.tvm_import import load_interface_of_tvm

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

_MOST_TEXT = 200  # of a name


@dataclass(frozen=True)
class _Given:
    """What fetch brought beside the model; edges: name -> inputs."""

    evaluation: Samples
    golden: Arrays
    edges: dict[str, Arrays]
    labels: list[str] | None

    @classmethod
    def read(cls, fetched: Path) -> _Given:
        return cls(
            Samples.load(fetched / "evaluation.npz"),
            Samples.load(fetched / "golden.npz").inputs,
            load_edges(fetched / "edges.npz"),
            json.loads((fetched / "labels.json").read_text()),
        )

    @property
    def checked(self) -> int:
        """Return how many of the first inputs the check after import compares."""
        return max(LEAST_INPUTS, len(self.golden[0]))

    @property
    def runs(self) -> int:
        return len(self.evaluation) + sum(len(inputs[0]) for inputs in self.edges.values())


def read_model(inputs: str, outputs: str, max_relative_error: float, progress: Progress) -> dict[str, Any]:
    """Import, simplify, and check against the source; return the facts of import.json."""
    # Before the framework is loaded. Hundreds of short runs: threads that spin between them take the processors from
    # each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    load_interface_of_tvm()
    fetched, out = Path(inputs), Path(outputs)
    description = read_description(fetched)
    batch, task = description.batch, description.task
    progress("loading the source model", 0, 4)
    source, given = load_source(fetched, description), _Given.read(fetched)
    measure = functools.partial(_measure_noise, source, given, batch)
    with running_source(source, lambda: _run_source(source, given, description), measure) as beside:
        progress("importing", 1, 4)
        source.prepare_conversion()
        # TVM is imported while the source runs.
        from tvmflow.backends.cpu import host_backend
        from tvmflow.codegen.compile import LocalRunner
        from tvmflow.passes.pipeline import canonicalize

        with exporting_onnx(source, out / PEER_NAME) as finish_export:
            module = canonicalize(source.to_relax())
            progress("checking against the source", 2, 4)
            runner = LocalRunner.of_plain(module, host_backend(), given.runs)
            found = beside.runs()
            imported = run_in_batches(runner, given.evaluation.inputs, batch)
            check = ImportCheck(source, batch, task, max_relative_error, beside.noise)
            agreement = _check(check, given, found, imported, runner)
            sized = None
            if description.sizes:
                progress("importing the smaller sizes", 2, 4)
                bound = max_relative_error
                sized = import_buckets(fetched, description, source, runner, given.golden, bound, check.noise)
            _write_reference(out, len(given.golden[0]), found.expected, imported, sized)
            facts = _write_module(out, source, module, sized, check)
            progress("exporting for baselines", 3, 4)
            if failure := finish_export():
                facts["no_onnx"] = failure
    facts["golden"] = agreement.to_json()
    (out / FACTS_NAME).write_text(json.dumps(facts, sort_keys=True), encoding="utf-8")
    return facts


def _run_source(source: SourceModel, given: _Given, description: SourceDescription) -> SourceRuns:
    """Run the source on the inputs of its check. Raises ModelFileError for outputs that nothing can be compared with,
    and TvmflowError for labels that do not fit them.
    """
    expected = run_in_batches(source, given.evaluation.inputs, description.batch)
    for name, output in zip(source.output_names(), expected, strict=True):
        _check_numbers(name, output, description.has_data)
    _check_classes(expected, given.labels, given.evaluation.y, description.task)
    return SourceRuns(expected, run_at_edges(source, given.edges, description.batch))


def _measure_noise(source: SourceModel, given: _Given, batch: int, expected: Arrays) -> tuple[Noise, ...]:
    """Return the noise of the outputs for the inputs that the check compares."""
    inputs = _first(given.evaluation.inputs, given.checked)
    return measure_noise(source, inputs, batch, _first(expected, given.checked))


def _check(check: ImportCheck, given: _Given, found: SourceRuns, imported: Arrays, runner: Runner) -> Agreement:
    """Compare the import with the source's runs. Raises AgreementError."""
    samples = (_first(values, given.checked) for values in (given.evaluation.inputs, imported, found.expected))
    try:
        agreement = check.on_samples(*samples)
        check.at_edges(given.edges, runner, found)
    except AgreementError as error:
        raise _with_layer(error, check.source, batch_at(given.golden, 0, check.batch), check.bound) from error
    return agreement


def _write_reference(out: Path, golden: int, expected: Arrays, imported: Arrays, sized: BucketedImport | None) -> None:
    """Write the source's and the import's outputs. golden: how many of the first inputs are the golden ones."""
    reference = {"golden": _first(expected, golden), "evaluation": expected, **(sized.reference if sized else {})}
    reference |= {"imported": imported, "imported_golden": _first(imported, golden)}
    save_arrays(out / "reference.npz", **reference)


def _write_module(
    out: Path, source: SourceModel, module: IRModule, sized: BucketedImport | None, check: ImportCheck
) -> dict[str, Any]:
    """Write the imported network and what is known of it; return facts of import.json."""
    from tvmflow.ir.relax.graph import read_graph
    from tvmflow.ir.relax.serialization import save_module

    save_module(module, out, sized.modules if sized else None)
    write_conditioning(out, check.noise, check.warnings)
    write_layers(out, locate_layers(read_graph(module), _shown_layers(source)))
    described = _describe_outputs(source, module, sized)
    write_outputs(out, described)
    facts: dict[str, Any] = {"outputs": to_json(described)}
    facts |= {"noise": to_json(check.noise), "warnings": to_json(check.warnings)}
    if sized:
        facts["sizes"] = {label: agreement.to_json() for label, agreement in sized.agreement.items()}
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


def _check_numbers(name: str, output: Array, has_data: bool) -> None:
    if output.dtype.kind not in "fiub":
        raise ModelFileError(f"the model has an output of {output.dtype}, {name}", "real numbers")
    if not output.size:
        raise ModelFileError(
            f"the model has an output without elements, {name} of shape {output.shape}", "numbers in each output"
        )
    bad = int((~np.isfinite(output).reshape(len(output), -1).all(axis=1)).sum())
    if bad and has_data:
        raise ModelFileError(
            f"output {name} of the source model is not finite for {bad} of {len(output)} samples of its data set",
            "finite numbers",
            "use undamaged weights, and data as the model takes it",
        )
    if bad:
        raise ModelFileError(
            f"output {name} of the source model is not finite for {bad} of {len(output)} samples of random numbers",
            "finite numbers",
            "if the model takes numbers of some range only, as logarithms and roots do, set low and high of its inputs "
            "in params.yaml, or give it a data set; otherwise its weights are damaged",
        )


def _check_classes(outputs: Arrays, labels: list[str] | None, y: Array | None, task: str | None) -> None:
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
