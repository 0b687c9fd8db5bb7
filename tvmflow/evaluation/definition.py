"""Check a compiled integer network against its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.evaluation.agreement import Agreement, check_golden
from tvmflow.frontends.source_model import Array, batch_at
from tvmflow.ir.definition import run_graph
from tvmflow.ir.graph import read_graph

_BOUND = 0.05  # what is left in float rounds otherwise


def check_definition(module: Any, x: Array, batch: int, outputs: Array) -> Agreement:
    """Compare the compiled module's outputs for x (N, ...) with those of its definition. Raises AgreementError."""
    graph = read_graph(module)
    batches = [batch_at(x, start, batch) for start in range(0, len(x), batch)]
    defined = np.concatenate([run_graph(graph, part) for part in batches])[: len(x)]
    return check_golden("quantize: compiled against its definition", outputs, defined, _BOUND)
