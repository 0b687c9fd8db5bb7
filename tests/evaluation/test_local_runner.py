"""Test the runner of the checks between stages."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner


def _network(weights: Any) -> Any:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(weights)))
            found = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(found)
    return builder.get()


def test_a_network_for_few_runs_is_optimized_less_and_computes_the_same() -> None:
    random = np.random.default_rng(0)
    weights, x = random.standard_normal((16, 32), np.float32), random.standard_normal((4, 16), np.float32)
    variables = []
    for runs in (1, 10**9, None):
        runner = LocalRunner.of_plain(_network(weights), host_backend(), runs)
        np.testing.assert_allclose(runner.run(x)[0], np.maximum(x @ weights, 0), rtol=1e-5, atol=1e-5)
        code = [part.inspect_source("ll") for part in runner.executable.mod.imports if part.kind == "llvm"]
        variables.append("".join(code).count("alloca"))
    assert variables[0] > variables[1] >= variables[2]  # those that optimization does not keep in registers
