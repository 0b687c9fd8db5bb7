"""Check a compiled quantized network against the numpy interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvmflow.evaluation.agreement import Agreement, Noise, check_golden
from tvmflow.frontends.source_model import Arrays, batch_at, by_sample
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

_BOUND = 0.05  # the remaining float operations round differently


def check_numpy_reference(
    module: IRModule, inputs: Arrays, batch: int, outputs: Arrays, noise: tuple[Noise, ...] = ()
) -> Agreement:
    """Compare the outputs of a compiled network for inputs (N, ...) with the numpy interpreter's. noise: of the source.
    Raises AgreementError.
    """
    graph, count = read_graph(module), len(inputs[0])
    batches = [run_all(graph, batch_at(inputs, start, batch)) for start in range(0, count, batch or 1)]
    parts = [[by_sample(output, batch) for output in outputs] for outputs in batches]
    expected = tuple(np.concatenate(same)[:count] for same in zip(*parts, strict=True))
    return check_golden("quantize: compiled against the numpy reference", outputs, expected, _BOUND, None, noise)
