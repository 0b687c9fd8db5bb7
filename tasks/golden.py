"""The golden inputs, and the quantized module's outputs for them: what the packed, built and deployed modules must give too."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.evaluation.agreement import Agreement, check_golden
from tvmflow.frontends.source_model import Runner, read_description, run_in_batches
from tvmflow.stages import StageContext

GOLDEN = {"fetch": ("golden.npz", "source.json"), "quantize": ("reference.npz",)}


def golden_inputs(context: StageContext[Any, Any]) -> np.ndarray[Any, Any]:
    with np.load(context.inputs["fetch"] / "golden.npz", allow_pickle=False) as data:
        return np.asarray(data["x"])


def check_module(context: StageContext[Any, Any], stage: str, model: Runner, bound: float) -> Agreement:
    """Run the golden inputs through a module of a stage. Raises AgreementError naming the stage."""
    batch = read_description(context.inputs["fetch"]).input_shape[0]
    with np.load(context.inputs["quantize"] / "reference.npz", allow_pickle=False) as data:
        reference = np.asarray(data["golden"])
    return check_golden(stage, run_in_batches(model, golden_inputs(context), batch), reference, bound)
