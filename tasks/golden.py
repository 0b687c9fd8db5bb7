"""The golden inputs, and the quantized module's outputs for them: what the packed, built and deployed modules must give too."""

from __future__ import annotations

from typing import Any

from tvmflow.artifacts import load_arrays
from tvmflow.evaluation.agreement import Agreement, check_golden
from tvmflow.frontends.source_model import Arrays, Runner, read_description, run_in_batches
from tvmflow.stages import StageContext

GOLDEN = {"fetch": ("golden.npz", "source.json"), "quantize": ("reference.npz",)}


def golden_inputs(context: StageContext[Any, Any]) -> Arrays:
    """Return the golden samples of every input of the model, each (N, ...)."""
    return load_arrays(context.inputs["fetch"] / "golden.npz", "x")


def golden_outputs(context: StageContext[Any, Any], model: Runner) -> Arrays:
    """Return what a form of the model makes of the golden inputs, every output (N, ...)."""
    return run_in_batches(model, golden_inputs(context), read_description(context.inputs["fetch"]).batch)


def check_outputs(context: StageContext[Any, Any], stage: str, outputs: Arrays, bound: float) -> Agreement:
    """Compare outputs for the golden inputs with the quantized module's. Raises AgreementError naming the stage."""
    reference = load_arrays(context.inputs["quantize"] / "reference.npz", "golden")
    return check_golden(stage, outputs, reference, bound, read_description(context.inputs["fetch"]).task)


def check_module(context: StageContext[Any, Any], stage: str, model: Runner, bound: float) -> Agreement:
    """Run the golden inputs through a form of the model. Raises AgreementError naming the stage."""
    return check_outputs(context, stage, golden_outputs(context, model), bound)
