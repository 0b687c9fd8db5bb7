"""Compare indices of random quotients and remainders, through all of lowering, with NumPy's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import compile_module

Index = Callable[[Any, Any], Any]  # of a row and a lane, TVM's expressions or NumPy's integers

_EXTENTS = (34, 8)
_LONGEST = 4096
_LEAVES: list[Index] = [lambda i, k: i, lambda i, k: k, lambda i, k: i * 8 + k, lambda i, k: i * 4]


def _drawn(draw: np.random.Generator, depth: int) -> Index:
    if depth == 0:
        return _LEAVES[draw.integers(len(_LEAVES))]
    inner, other = _drawn(draw, depth - 1), _drawn(draw, int(draw.integers(depth)))
    scale = int(draw.choice([1, 2, 4, 34])) if draw.random() < 0.3 else 0
    offset = int(draw.choice([1, 3, 4, -4, -68])) if draw.random() < 0.5 else 0
    divisor, divides = int(draw.choice([2, 4, 7, 8, 16, 17, 72, 136])), draw.random() < 0.5

    def index(i: Any, k: Any) -> Any:
        value = inner(i, k) * scale + other(i, k) if scale else inner(i, k)
        value = value + offset if offset else value
        return value // divisor if divides else value % divisor

    return index


def _read_at(index: Index) -> Any:
    """Return what a compiled kernel reads at an index for each row and lane, of a vector that has its places'
    numbers.
    """
    source = te.placeholder((_LONGEST,), "int32", name="source")
    moved = te.compute(_EXTENTS, lambda i, k: source[index(i, k) % _LONGEST], name="moved")
    kernel = te.create_prim_func([source, moved]).with_attr("global_symbol", "main")
    output = tvm.runtime.tensor(np.zeros(_EXTENTS, np.int32))
    library = compile_module(tvm.IRModule({"main": kernel}), host_backend())
    library["main"](tvm.runtime.tensor(np.arange(_LONGEST, dtype=np.int32)), output)
    return output.numpy()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_indices_are_right(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, lanes = np.mgrid[: _EXTENTS[0], : _EXTENTS[1]]
    for _ in range(60):
        index = _drawn(draw, int(draw.integers(1, 4)))
        assert np.array_equal(_read_at(index), index(rows, lanes) % _LONGEST)


@pytest.mark.parametrize(
    "index",
    [
        lambda i, k: ((i + 1) % 16 + 4) % 8,
        lambda i, k: (i + 1) // 2 * 2 + i // 2,
        lambda i, k: i % 24 % 7,
        lambda i, k: (k % 4 * 34 + i * 2 + k // 4 + 5) % 136,
    ],
)
def test_indices_that_tvm_simplifies_wrongly_are_right(index: Index) -> None:
    rows, lanes = np.mgrid[: _EXTENTS[0], : _EXTENTS[1]]
    assert np.array_equal(_read_at(index), index(rows, lanes))


def test_an_index_that_is_read_from_a_matrix_is_right() -> None:
    table, source = te.placeholder((2, 17), "int32", name="table"), te.placeholder((64,), "int32", name="source")
    moved = te.compute(
        (34,), lambda i: source[(table[i // 17, (i + 1) % 17] + 3) // 2 % 5 + (i + 1) // 3], name="moved"
    )
    kernel = te.create_prim_func([table, source, moved]).with_attr("global_symbol", "main")
    places = np.random.default_rng(0).integers(0, 99, (2, 17)).astype(np.int32)
    output = tvm.runtime.tensor(np.zeros(34, np.int32))
    library = compile_module(tvm.IRModule({"main": kernel}), host_backend())
    library["main"](tvm.runtime.tensor(places), tvm.runtime.tensor(np.arange(64, dtype=np.int32)), output)
    i = np.arange(34)
    assert np.array_equal(output.numpy(), (places[i // 17, (i + 1) % 17] + 3) // 2 % 5 + (i + 1) // 3)
