"""Test merged clips and divisions replaced by multiplications: equal values, fewer operators."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tvm import relax

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes import run_pass
from tvmflow.passes.canonicalize.simplify_arithmetic import SimplifyArithmetic
from tvmflow.passes.pipeline import canonicalize

SPECIAL = np.array([-np.inf, -7, -3, -1e-8, 0, 1e-8, 2.5, 3, 6, 6.5, np.inf, np.nan], np.float32)


def _operators(module: Any) -> Counter[str]:
    return Counter(
        str(binding.value.op.name)
        for block in module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    )


@pytest.mark.parametrize(
    ("network", "clips"),
    [
        (torch.nn.Hardswish(), 1),
        (torch.nn.Hardsigmoid(), 1),
        (torch.nn.Sequential(torch.nn.ReLU6(), torch.nn.Hardtanh(-1, 9)), 1),
    ],
)
def test_activations_have_pytorchs_values_in_fewer_operators(network: torch.nn.Module, clips: int) -> None:
    module = canonicalize(ExportedModel(network.eval(), (TensorSpec("x", (1, len(SPECIAL))),)).to_relax())
    found = _operators(module)
    assert found["relax.clip"] == clips and found["relax.divide"] == 0
    x = SPECIAL[None]
    (ours,) = LocalRunner(module, host_backend()).run(x)
    finite = np.isfinite(x)
    np.testing.assert_allclose(ours[finite], network(torch.from_numpy(x)).numpy()[finite], rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_two_clips_are_one(seed: int) -> None:
    bounds = [
        sorted(np.random.default_rng(seed + 100 * at).choice([-np.inf, -2, 0, 1, 3, 6, np.inf], 2)) for at in (0, 1)
    ]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((len(SPECIAL),), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(relax.op.clip(x, *map(float, bounds[0])))
            output = builder.emit_output(relax.op.clip(inner, *map(float, bounds[1])))
        builder.emit_func_output(output)
    module = run_pass(SimplifyArithmetic(), builder.finalize())
    assert _operators(module) == {"relax.clip": 1}
    numbers = SPECIAL[~np.isnan(SPECIAL)]
    numbers = np.append(numbers, np.float32(1))
    (ours,) = LocalRunner(module, host_backend()).run(numbers)
    np.testing.assert_array_equal(ours, np.clip(np.clip(numbers, *bounds[0]), *bounds[1]))


def test_what_is_rounded_next_stays_a_division() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            scaled = builder.emit(relax.op.divide(x, relax.const(0.3, "float32")))
            output = builder.emit_output(
                relax.op.divide(builder.emit(relax.op.round(scaled)), relax.const(3.0, "float32"))
            )
        builder.emit_func_output(output)
    found = _operators(run_pass(SimplifyArithmetic(), builder.finalize()))
    assert found == {"relax.divide": 1, "relax.round": 1, "relax.multiply": 1}
