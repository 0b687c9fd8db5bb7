"""Check a stage's network on the golden inputs against the quantized module's outputs."""

from __future__ import annotations

from typing import Any

from tvmflow.evaluation.agreement import Agreement, check_golden
from tvmflow.evaluation.buckets import RunnerOf, check_between_buckets, group_of, run_at_any_size, run_between_buckets
from tvmflow.evaluation.conditioning import CONDITIONING_NAME, read_noise
from tvmflow.frontends.source_model import (
    OUTPUTS_NAME,
    Arrays,
    Runner,
    dynamic_axes,
    read_description,
    read_outputs,
    run_in_batches,
)
from tvmflow.pipeline.stage import StageContext
from tvmflow.support.files import load_arrays

GOLDEN = {
    "fetch": ("golden.npz", "source.json"),
    "import_model": (OUTPUTS_NAME, CONDITIONING_NAME),
    "quantize": ("reference.npz",),
}


def golden_inputs(context: StageContext[Any, Any]) -> Arrays:
    """Return the golden samples of every input of the model, each (N, ...)."""
    return load_arrays(context.inputs["fetch"] / "golden.npz", "x")


def golden_outputs(context: StageContext[Any, Any], model: Runner) -> Arrays:
    """Return a model's outputs for the golden inputs, every output (N, ...)."""
    return run_in_batches(model, golden_inputs(context), read_description(context.inputs["fetch"]).batch)


def check_outputs(context: StageContext[Any, Any], stage: str, outputs: Arrays, bound: float) -> Agreement:
    """Compare outputs for the golden inputs with the quantized module's. Raises AgreementError naming the stage."""
    reference = load_arrays(context.inputs["quantize"] / "reference.npz", "golden")
    task, noise = read_description(context.inputs["fetch"]).task, read_noise(context.inputs["import_model"])
    return check_golden(stage, outputs, reference, bound, task, noise)


def sized_outputs(context: StageContext[Any, Any], runner_of: RunnerOf) -> dict[str, Arrays]:
    """Return label -> outputs of each bucket's network for padded golden inputs; empty for fixed shapes."""
    axes = dynamic_axes(read_outputs(context.inputs["import_model"]))
    return run_between_buckets(read_description(context.inputs["fetch"]), axes, runner_of, golden_inputs(context))


def check_sizes(context: StageContext[Any, Any], stage: str, runner_of: RunnerOf, bound: float) -> dict[str, Any]:
    """Compare each bucket's network with the quantized module's. Returns facts to show. Raises AgreementError."""
    return _check(context, stage, sized_outputs(context, runner_of), bound)


def check_any_size(context: StageContext[Any, Any], stage: str, runner_at: RunnerOf, bound: float) -> dict[str, Any]:
    """Like `check_sizes`, for a network that takes any size. runner_at: sizes -> Runner."""
    description = read_description(context.inputs["fetch"])
    return _check(context, stage, run_at_any_size(description, runner_at, golden_inputs(context)), bound)


def _check(context: StageContext[Any, Any], stage: str, outputs: dict[str, Arrays], bound: float) -> dict[str, Any]:
    file, task = context.inputs["quantize"] / "reference.npz", read_description(context.inputs["fetch"]).task
    noise = read_noise(context.inputs["import_model"])
    found = check_between_buckets(stage, outputs, lambda label: load_arrays(file, group_of(label)), bound, task, noise)
    return {"sizes": {label: agreement.to_json() for label, agreement in found.items()}} if found else {}


def check_module(context: StageContext[Any, Any], stage: str, model: Runner, bound: float) -> Agreement:
    """Run the golden inputs through a model and check its outputs. Raises AgreementError naming the stage."""
    return check_outputs(context, stage, golden_outputs(context, model), bound)
