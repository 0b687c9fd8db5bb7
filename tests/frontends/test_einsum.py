"""Compare Einstein sums with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tvmflow.frontends.einsum import einsum
from tvmflow.ir.relax.emit import build_main
from tvmflow.ir.relax.graph import Graph, TensorKind, read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all

_EXTENTS = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6}
EQUATIONS = [
    "ab->ba",
    "ab->b",
    "ab->",
    "ab,bc->ac",
    "ab,bc",
    "bac,bcd->bad",
    "abd,acd->abc",
    "ab,ab->ab",
    "ab,ab->",
    "a,b->ab",
    "abc,cd,de->abe",
    "...ab,...bc->...ac",
    "...a->...",
    "abcd,cd->ab",
    "ab,cd->ca",
    "a b , b c -> c a",
]


def _emit(equation: str, arrays: list[Any]) -> Any:
    builder = relax.BlockBuilder()
    kinds = {f"x{at}": TensorKind(x.shape, "float32") for at, x in enumerate(arrays)}
    return build_main(builder, Graph(kinds), lambda values: [einsum(builder, equation, list(values.values()))])


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einstein_sums_equal_numpy(equation: str) -> None:
    generator = np.random.default_rng(0)
    shapes = [
        [size for label in part.strip().replace(" ", "") for size in ([2, 1] if label == "." else [_EXTENTS[label]])]
        for part in equation.split("->")[0].replace("...", ".").split(",")
    ]
    arrays = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    (found,) = run_all(read_graph(_emit(equation, arrays)), tuple(arrays))
    expected = np.einsum(equation, *arrays)
    assert found.shape == expected.shape and np.allclose(found, expected, 1e-5, 1e-5)


@pytest.mark.parametrize(("equation", "shapes"), [("ii->i", [(3, 3)]), ("ab,bc->ac", [(2, 1), (3, 4)])])
def test_what_is_no_product_of_matrices_is_none(equation: str, shapes: list[tuple[int, ...]]) -> None:
    builder = relax.BlockBuilder()
    values = [relax.Var(f"x{at}", relax.TensorType(shape, "float32")) for at, shape in enumerate(shapes)]
    with builder.function("main", values):
        assert einsum(builder, equation, list(values)) is None
        builder.emit_func_output(values[0])
