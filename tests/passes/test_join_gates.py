"""Test x * sigmoid(x) by one operator on AVX-512."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.differential.kernels import HOST, of_one_operator, run
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.passes.kernel.join_gates import join_gates
from tvmflow.targets.resolve import ResolvedTarget

_OPERATOR = "tvmflow_silu"


def _target(mcpu: str) -> CpuBackend:
    return HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))


def _gated(x: Any) -> Any:
    return relax.op.multiply(x, relax.op.sigmoid(x))


def _by_other(x: Any) -> Any:
    return relax.op.multiply(x, relax.op.sigmoid(relax.op.negative(x)))


@pytest.mark.parametrize(
    ("operator", "mcpu", "dtype", "joined"),
    [
        (relax.op.nn.silu, "znver4", "float32", True),
        (_gated, "znver4", "float32", True),
        (lambda x: relax.op.multiply(relax.op.sigmoid(x), x), "znver4", "float32", True),
        (_by_other, "znver4", "float32", False),
        (_gated, "znver4", "float16", False),
        (_gated, "x86-64-v3", "float32", False),
    ],
)
def test_only_a_number_times_its_own_sigmoid_is_joined(
    operator: Callable[[Any], Any], mcpu: str, dtype: str, joined: bool
) -> None:
    target = _target(mcpu)
    scheduled = build_scheduled(of_one_operator(operator, (4, 96), dtype), target, {}).module
    assert (_OPERATOR in join_gates(scheduled, target.tvm_target()).script()) == joined


@pytest.mark.parametrize("length", [1, 6, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_its_values_are_right(length: int, mcpu: str) -> None:
    executable = build_scheduled(of_one_operator(_gated, (64, length)), _target(mcpu), {})[0]
    draw = np.random.default_rng(length)
    x = (draw.uniform(-80, 80, (64, length)) * 10.0 ** draw.integers(-6, 1, (64, 1))).astype(np.float32)
    x[:6, 0] = 0.0, -0.0, np.inf, np.nan, 1e30, -1e30
    computed = run(executable, x)
    assert np.array_equal(np.isnan(computed), np.isnan(x))
    assert computed[[0, 1, 2, 4, 5], 0].tolist() == [0, 0, np.inf, float(np.float32(1e30)), 0]
    known = np.isfinite(x) & (np.abs(x) < 88)
    wanted = x[known].astype(np.float64) / (1 + np.exp(-x[known].astype(np.float64)))
    allowed = (4e-7 + 7.5e-8 * np.maximum(-x[known], 0)) * np.abs(wanted)
    assert (np.abs(computed[known] - wanted) <= allowed).all()


def test_gates_of_gates_are_right() -> None:
    module = of_one_operator(lambda x: _gated(_gated(x)), (4, 96))
    x = np.linspace(-9, 9, 384, dtype=np.float32).reshape(4, 96)
    once = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    found = run(build_scheduled(module, HOST, {})[0], x)
    assert np.abs(found - once / (1 + np.exp(-once))).max() < 2e-6
