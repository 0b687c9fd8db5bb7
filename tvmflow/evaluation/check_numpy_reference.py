"""Check a compiled integer network against its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.evaluation.agreement import Agreement, check_golden
from tvmflow.frontends.source_model import Arrays, batch_at, by_sample
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all

_BOUND = 0.05  # what is left in float rounds otherwise


def check_numpy_reference(module: Any, inputs: Arrays, batch: int, outputs: Arrays) -> Agreement:
    """Compare the compiled form's outputs to inputs (N, ...) with those of its definition. Raises AgreementError."""
    graph, count = read_graph(module), len(inputs[0])
    batches = [run_all(graph, batch_at(inputs, start, batch)) for start in range(0, count, batch)]
    parts = [[by_sample(output, batch) for output in outputs] for outputs in batches]
    defined = tuple(np.concatenate(same)[:count] for same in zip(*parts, strict=True))
    return check_golden("quantize: compiled against its definition", outputs, defined, _BOUND)
