"""Test kernels with several reductions along an axis that is not the last, over rows that fill no vector."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import build_scheduled, make_runner


@pytest.mark.parametrize("shape", [(1, 2, 37, 8), (3, 19, 40), (1, 5, 7, 3), (2, 6, 16)])
def test_vectors_of_a_softmax_lie_in_one_row(shape: tuple[int, ...]) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit_output(relax.op.nn.softmax(x, axis=-2))
        builder.emit_func_output(found)
    scheduled = build_scheduled(builder.get(), host_backend(), {})
    given = np.random.default_rng(0).standard_normal(shape, np.float32)
    powers = np.exp(given.astype(np.float64))
    (computed,) = make_runner(scheduled.executable)((given,))
    np.testing.assert_allclose(computed, powers / powers.sum(-2, keepdims=True), rtol=1e-5, atol=1e-7)
    if shape[-1] % 4 or shape[-1] % 16 == 0:  # no vector of a row, or only whole ones
        return
    (kernel,) = (f for f in scheduled.module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    lanes = ""
    for line in kernel.script().splitlines():
        if vector := re.search(r"for (\w+) in T\.vectorized", line):
            lanes = vector[1]
        assert not (lanes and re.search(rf"\b{lanes}\b.*[/%]", line)), line  # rows would depend on the lane
