"""Compare sorts, top-k, cumulative sums and reductions with NumPy, and see that libraries without TVM can hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tvm import relax

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.ir.relax.emit import build_main
from tvmflow.ir.relax.graph import Graph, TensorKind, read_graph

Array = np.ndarray[Any, Any]
SHAPES = [((1, 3, 20, 7), 2), ((2, 50), -1), ((33,), 0), ((4, 1), 1)]


def _run(x: Array, operators: Any) -> tuple[Array, ...]:
    """Return the outputs of operators(x), each a kernel after lowering."""
    builder = relax.BlockBuilder()

    def body(parameters: dict[str, Any]) -> list[Any]:
        made = [builder.emit(one) for one in operators(parameters["x"])]
        parts = [[made] if hasattr(made.ty, "shape") else [builder.emit(made[at]) for at in (0, 1)] for made in made]
        return [one for part in parts for one in part]

    mod = build_main(builder, Graph({"x": TensorKind(x.shape, str(x.dtype))}), body)
    lowered = read_graph(lower(mod, host_backend(), None, {}))
    assert {step.op for step in lowered.steps if not step.op.startswith("get_item")} == {"relax.call_tir"}
    return LocalRunner(mod, host_backend()).run(x)


def test_limits_their_places_and_orders_of_booleans() -> None:
    x = np.random.default_rng(3).random((6, 9)) < 0.4
    x[0], x[1] = False, True
    names = ("max", "min", "argmax", "argmin")
    found = _run(
        x,
        lambda v: [
            *(getattr(relax.op, name)(v, 1) for name in names),
            relax.op.max(v),
            relax.op.sort(v, 1),
            relax.op.argsort(v, 1, True),
            relax.op.topk(v, 2, 1),
        ],
    )
    down = np.argsort(~x, axis=1, kind="stable")
    expected = [*(getattr(x, name)(1) for name in names), np.asarray(True), np.sort(x, 1), down]
    expected += [np.take_along_axis(x, down[:, :2], 1), down[:, :2]]
    for one, reference in zip(found, expected, strict=True):
        assert np.array_equal(one, reference) and (one.dtype == bool) == (reference.dtype == bool)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_sorts_and_top_k_are_stable(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    x = np.random.default_rng(1).integers(-4, 5, shape).astype(dtype)  # many values are equal
    extent = shape[axis]
    counts = sorted({1, max(extent // 5, 1), extent})
    found = _run(
        x,
        lambda v: [
            relax.op.sort(v, axis),
            relax.op.argsort(v, axis, True),
            *(relax.op.topk(v, k, axis, largest=largest, dtype="int64") for k in counts for largest in (True, False)),
        ],
    )
    down, up = np.argsort(-x, axis=axis, kind="stable"), np.argsort(x, axis=axis, kind="stable")
    expected = [np.take_along_axis(x, up, axis), down]
    for k in counts:
        for order in (down, up):
            kept = np.take(order, np.arange(k), axis)
            expected += [np.take_along_axis(x, kept, axis), kept]
    for one, reference in zip(found, expected, strict=True):
        assert np.array_equal(one, reference)


@pytest.mark.parametrize("extent", [5, 40])
def test_nan_is_the_largest_number(extent: int) -> None:
    generator = np.random.default_rng(4)
    x = generator.integers(-9, 10, (6, extent)).astype(np.float32)
    x[0], x[1, 0], x[2, -1], x[3, ::2], x[4, 1:3] = np.nan, np.nan, np.nan, np.nan, (np.inf, -np.inf)
    counts = (2, extent)
    found = _run(
        x,
        lambda v: [
            *(relax.op.argsort(v, 1, descending) for descending in (False, True)),
            *(relax.op.topk(v, k, 1, largest=largest, dtype="int64") for k in counts for largest in (True, False)),
        ],
    )
    up = np.argsort(x, 1, kind="stable")
    down = torch.from_numpy(x).sort(dim=1, descending=True, stable=True).indices.numpy()
    expected = [up, down]
    for k in counts:
        for order in (down, up):
            expected += [np.take_along_axis(x, order[:, :k], 1), order[:, :k]]
    for one, reference in zip(found, expected, strict=True):
        assert np.array_equal(one, reference, equal_nan=True)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_cumulative_sums_and_products(shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(2).integers(-2, 3, shape).astype(np.int32)
    found = _run(
        x,
        lambda v: [
            relax.op.cumsum(v, axis),
            relax.op.cumsum(v, axis, exclusive=True),
            relax.op.cumprod(v, axis, dtype="int64"),
            relax.op.cumsum(v),
        ],
    )
    sums = np.cumsum(x, axis, dtype=np.int32)
    expected = [sums, sums - x, np.cumprod(x, axis, dtype=np.int64), np.cumsum(x, dtype=np.int32)]
    for one, reference in zip(found, expected, strict=True):
        assert one.dtype == reference.dtype and np.array_equal(one, reference)


@pytest.mark.parametrize("shape", [(1, 16, 24, 24), (4096,), (4099,), (3, 5)])
def test_reductions_to_one_value(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).integers(-9, 10, shape).astype(np.float32)  # whose sums are exact
    found = _run(x, lambda v: [relax.op.sum(v), relax.op.max(v, keepdims=True), relax.op.min(v), relax.op.mean(v)])
    for one, reference in zip(found, (x.sum(), x.max(keepdims=True), x.min(), x.mean()), strict=True):
        assert one.shape == reference.shape and np.allclose(one, reference, 1e-6)
