"""Check a compiled quantized network against the numpy interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvmflow.evaluation.agreement import NO_NOISE, Agreement, Noise, check_golden
from tvmflow.evaluation.source_noise import move_by_a_rounding, noise_between
from tvmflow.frontends.source_model import Arrays, batch_at, by_sample
from tvmflow.ir.relax.graph import Array, Graph, Step, read_graph
from tvmflow.ir.relax.numpy_interpreter import Watch, run_all
from tvmflow.support.errors import AgreementError

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

_STAGE = "quantize: compiled against the numpy reference"
_BOUND = 0.05  # the remaining float operations round differently


def check_numpy_reference(
    module: IRModule, inputs: Arrays, batch: int, outputs: Arrays, noise: tuple[Noise, ...] = ()
) -> Agreement:
    """Compare the outputs of a compiled network for inputs (N, ...) with the numpy interpreter's. noise: of the source.

    A float that rounds differently moves an integer by a step where it lies between two, and a deep network makes more
    of it: above the bound, the error is compared with the interpreter's own change where each float is moved by one
    rounding. Never accepted below LEAST_SQNR_DB. Raises AgreementError.
    """
    graph = read_graph(module)
    expected = _interpret(graph, inputs, batch)
    try:
        return check_golden(_STAGE, outputs, expected, _BOUND, None, noise)
    except AgreementError:
        moved = _interpret(graph, inputs, batch, _move)
        own = noise_between([moved], expected, noise or (NO_NOISE,) * len(expected))
        return check_golden(_STAGE, outputs, expected, _BOUND, None, [one.that_tells_faults() for one in own])


def _interpret(graph: Graph, inputs: Arrays, batch: int, watch: Watch | None = None) -> Arrays:
    count = len(inputs[0])
    batches = [run_all(graph, batch_at(inputs, start, batch), watch) for start in range(0, count, batch or 1)]
    parts = [[by_sample(output, batch) for output in outputs] for outputs in batches]
    return tuple(np.concatenate(same)[:count] for same in zip(*parts, strict=True))


def _move(step: Step, value: Array) -> Array | None:
    """Return a computed float tensor with each number moved by a rounding."""
    return None if step.op == "constant" or not value.ndim else move_by_a_rounding(value)
