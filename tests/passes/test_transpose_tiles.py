"""Test moves of numbers by square tiles: every number arrives, and which kernels are such moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.differential.kernels import HOST, of_one_operator, run
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.schedules.registry import TEMPLATES, template_for
from tvmflow.targets.resolve import ResolvedTarget

Move = Callable[[Any, Any], Any]


class _Numpy:
    """The operators of a move on arrays."""

    permute_dims = staticmethod(np.transpose)
    reshape = staticmethod(np.reshape)

    @staticmethod
    def strided_slice(x: Any, axes: list[int], begin: list[int], end: list[int]) -> Any:
        places = [slice(None)] * x.ndim
        for axis, first, last in zip(axes, begin, end, strict=True):
            places[axis] = slice(first, last)
        return x[tuple(places)]


def _heads(op: Any, x: Any) -> Any:
    """(tokens, 3 * heads * width) -> (3, heads, width, tokens)"""
    return op.permute_dims(op.reshape(x, (48, 3, 4, 12)), (1, 2, 3, 0))


MOVES: dict[str, tuple[tuple[int, ...], Move]] = {
    "matrix": ((48, 64), lambda op, x: op.permute_dims(x, (1, 0))),
    "narrow": ((20, 36), lambda op, x: op.permute_dims(x, (1, 0))),
    "odd": ((7, 45), lambda op, x: op.permute_dims(x, (1, 0))),
    "heads": ((48, 144), _heads),
    "batch": ((3, 32, 8, 16), lambda op, x: op.permute_dims(x, (0, 3, 1, 2))),
    "blocks to planes": ((1, 3, 14, 14, 16), lambda op, x: op.reshape(op.permute_dims(x, (0, 1, 4, 2, 3)), (48, 196))),
    "part": ((64, 80), lambda op, x: op.permute_dims(op.strided_slice(x, [1], [16], [56]), (1, 0))),
    "twice": ((16, 24, 32), lambda op, x: op.permute_dims(op.permute_dims(x, (2, 1, 0)), (0, 2, 1))),
    "windows": (
        (32, 8, 2, 8, 2),  # the four pixels of each window of 2 x 2
        lambda op, x: op.permute_dims(x, (2, 4, 1, 3, 0)),
    ),
    "prime": ((19, 64), lambda op, x: op.permute_dims(x, (1, 0))),
}
TILED = set(MOVES) - {"prime"}


def moved(name: str, x: Any) -> Any:
    return MOVES[name][1](_Numpy, x)


@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize("name", MOVES)
def test_every_number_arrives(name: str, dtype: str, mcpu: str) -> None:
    target = HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    shape, move = MOVES[name]
    module = of_one_operator(lambda x: move(relax.op, x), shape, dtype)
    x = (np.arange(np.prod(shape)) % 2039).reshape(shape).astype(dtype)
    assert np.array_equal(run(build_scheduled(module, target, {})[0], x), moved(name, x))


@pytest.mark.parametrize("name", MOVES)
def test_tiles_move_words_that_change_their_order(name: str) -> None:
    target = CpuBackend(ResolvedTarget("llvm", "znver4", "x86_64-linux-gnu", (), 2, "g++"))
    shape, move = MOVES[name]
    for dtype, expected in (("float32", name in TILED), ("float16", False)):
        lowered = lower(of_one_operator(lambda x: move(relax.op, x), shape, dtype), target)
        templates = [
            template_for(workload.function, target.cpu_features(), TEMPLATES) for workload in extract_workloads(lowered)
        ]
        assert [found[0].name == "transposition" for found in templates if found] == [expected], dtype


@pytest.mark.parametrize(
    "operator",
    [
        lambda x: relax.op.permute_dims(relax.op.nn.relu(x), (1, 0)),
        lambda x: relax.op.permute_dims(relax.op.nn.pad(x, (0, 0, 8, 8)), (1, 0)),
        lambda x: relax.op.broadcast_to(relax.op.reshape(x, (48, 1, 64)), (48, 16, 64)),
        lambda x: relax.op.reshape(x, (64, 48)),
        lambda x: relax.op.split(relax.op.permute_dims(x, (1, 0)), 2),
    ],
)
def test_other_kernels_are_no_transpositions(operator: Callable[[Any], Any]) -> None:
    """Those that compute, fill, repeat, copy or split."""
    lowered = lower(of_one_operator(operator, (48, 64)), HOST)
    for workload in extract_workloads(lowered):
        found = template_for(workload.function, HOST.cpu_features(), TEMPLATES)
        assert found is not None and found[0].name != "transposition"


def test_what_is_computed_before_it_is_packed_needs_no_divisions_on_arm64() -> None:
    """A loop for each axis of the image, though it has one block of channels."""
    target = CpuBackend(ResolvedTarget("llvm", "cortex-a76", "aarch64-linux-gnu", (), 1, "g++"))
    lowered = lower(
        of_one_operator(
            lambda x: relax.op.permute_dims(
                relax.op.reshape(relax.op.multiply(x, relax.const(0.3, "float32")), (1, 1, 8, 9, 9)), (0, 1, 3, 4, 2)
            ),
            (8, 9, 9),
        ),
        target,
    )
    [workload] = extract_workloads(lowered)
    found = template_for(workload.function, target.cpu_features(), TEMPLATES)
    assert found is not None and found[0].name == "elementwise" and found[1][0].get("nested")
