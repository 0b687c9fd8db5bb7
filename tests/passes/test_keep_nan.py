"""Test float minimum and maximum on CPUs: NaN for NaN; one instruction where the constant is not zero."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from tvm import relax

from tests.differential.kernels import HOST, imported, of_one_operator, run
from tests.golden.networks import TARGETS
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import LocalRunner, Scheduled, build_scheduled
from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.emit import build_main, constant
from tvmflow.ir.relax.graph import Graph, TensorKind
from tvmflow.passes.pipeline import canonicalize

Array = np.ndarray[Any, Any]
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "relu": relax.op.nn.relu,
    "clip": lambda x: relax.op.clip(x, -1, 6),
    "minimum": lambda x: relax.op.minimum(x, constant(np.float32(6), "float32")),
}
# name -> operator, shape, the same by numpy
REDUCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Callable[[Array], Array]]] = {
    "of rows, in vectors": (lambda x: relax.op.max(x, -1), (6, 5, 48), lambda x: x.max(-1)),
    "of rows of 7": (lambda x: relax.op.min(x, -1), (40, 7), lambda x: x.min(-1)),
    "of columns": (lambda x: relax.op.min(x, 1), (6, 50, 48), lambda x: x.min(1)),
    "of two axes": (lambda x: relax.op.max(x, [0, 2]), (5, 6, 33), lambda x: x.max((0, 2))),
    "of all, in two steps": (relax.op.max, (64, 128), lambda x: np.asarray(x.max())),
    "behind an operator": (lambda x: relax.op.max(relax.op.negative(x), -1), (6, 32), lambda x: (-x).max(-1)),
    "in float64": (
        lambda x: relax.op.astype(relax.op.max(relax.op.astype(x, "float64"), -1), "float32"),
        (6, 32),
        lambda x: x.max(-1),
    ),
}
POOLS: dict[str, tuple[torch.nn.Module, tuple[int, ...]]] = {
    "in one axis": (torch.nn.MaxPool1d(3, 2, 1), (1, 16, 40)),
    "in packed channels": (torch.nn.MaxPool2d(3, 2, 1), (1, 32, 12, 12)),
    "of three channels": (torch.nn.MaxPool2d(2), (1, 3, 12, 12)),
    "in three axes": (torch.nn.MaxPool3d(2), (1, 4, 6, 6, 6)),
    "of parts": (torch.nn.AdaptiveMaxPool2d((3, 2)), (1, 16, 10, 9)),
    "of all": (torch.nn.AdaptiveMaxPool2d(1), (1, 16, 10, 9)),
}


def _numbers(shape: tuple[int, ...]) -> Array:
    """Return random numbers with NaN at the first, the last and other places, infinities and -0."""
    x = (10 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    flat = x.reshape(-1)
    flat[[0, 70, -90, -1]] = np.nan
    flat[[1, 72, 100]], flat[[2, 102, -91]], flat[[3, 104]] = np.inf, -np.inf, -0.0
    return x


def _assembly(scheduled: Scheduled) -> str:
    parts = scheduled.executable.mod.imports
    return "".join(part.inspect_source("asm") for part in parts if part.kind in ("llvm", "static_library"))


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_no_number_stays_so(name: str) -> None:
    scheduled = build_scheduled(of_one_operator(OPERATORS[name], (1, 24, 20)), HOST, {})
    x = _numbers((1, 24, 20))
    low, high = {"relu": (0, np.inf), "clip": (-1, 6), "minimum": (-np.inf, 6)}[name]
    assert np.array_equal(run(scheduled.executable, x), np.clip(x, low, high), equal_nan=True)
    code = _assembly(scheduled)
    if ("ymm" in code or "zmm" in code) and name != "relu":  # LLVM masks with the comparison to zero
        assert re.search(r"v(max|min)ps", code) and not re.search(r"v(cmp\w*|blendv?|and)ps", code)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_limit_of_many_numbers_is_nan_where_one_is(name: str) -> None:
    operator, shape, by_numpy = REDUCTIONS[name]
    x = _numbers(shape)
    found, wanted = run(build_scheduled(of_one_operator(operator, shape), HOST, {}).executable, x), by_numpy(x)
    assert np.isnan(wanted).any()
    assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("name", POOLS)
def test_a_max_pool_is_nan_where_a_number_of_its_window_is(name: str) -> None:
    module, shape = POOLS[name]
    x = _numbers(shape)
    packed, _ = HOST.pack(imported(module, shape)[0], None)
    found, wanted = run(build_scheduled(packed, HOST, {}).executable, x), module(torch.from_numpy(x)).numpy()
    assert np.isnan(wanted).any()
    assert np.array_equal(found, wanted, equal_nan=True)


PLACES: dict[str, tuple[tuple[int, ...], int]] = {
    "of rows, in vectors": ((6, 5, 48), 2),
    "of rows of 7": ((40, 7), 1),
    "of columns": ((6, 50, 48), 1),
    "of one row": ((320,), 0),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("operator", ["argmax", "argmin"])
def test_the_place_of_a_limit_is_that_of_the_first_nan(name: str, operator: str) -> None:
    shape, axis = PLACES[name]
    x = _numbers(shape)
    first = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])  # a view, or a copy for columns
    if first.base is not None and len(first) > 3:
        first[1], first[2] = -np.inf, np.inf
    made = of_one_operator(lambda v: getattr(relax.op, operator)(v, axis, False), shape)
    found, wanted = run(build_scheduled(made, HOST, {}).executable, x), getattr(np, operator)(x, axis)
    assert np.isnan(np.take_along_axis(x, np.expand_dims(wanted, axis), axis)).any()
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("uint8", 0), ("int8", -128), ("int32", -(2**31)), ("float32", -np.inf), ("float32", -3.4028235e38)],
)
def test_a_line_of_the_smallest_number_has_a_place(dtype: str, value: float) -> None:
    x = np.full((3, 20), value, dtype)
    x[1, 7:], x[2] = 1, [1, *[value] * 19]
    builder = relax.BlockBuilder()
    body = lambda given: [builder.emit(relax.op.argmax(given["x"], 1, False))]  # noqa: E731
    module = build_main(builder, Graph({"x": TensorKind(x.shape, dtype)}), body)
    assert LocalRunner(module, HOST).run(x)[0].tolist() == [0, 7, 0]


def test_softmax_pays_nothing_and_keeps_nan() -> None:
    x = _numbers((8, 64))
    scheduled = build_scheduled(of_one_operator(lambda x: relax.op.nn.softmax(x, -1), x.shape), HOST, {})
    assert np.array_equal(np.isnan(run(scheduled.executable, x)), np.isnan(torch.from_numpy(x).softmax(-1).numpy()))
    assert "vcmpunord" not in _assembly(scheduled)


def test_arm64_uses_the_instruction_that_keeps_nan() -> None:
    mod = of_one_operator(lambda x: relax.op.max(x, -1), (6, 5, 48))
    code = _assembly(build_scheduled(mod, CpuBackend(TARGETS["cortex-a72"]), {}))
    assert re.search(r"\bfmax\b", code) and "fmaxnm" not in code


def test_the_place_of_a_maximum_that_is_nan_is_its_first() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[1, 3], strides=[1, 3])
    kinds = {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT, "at": TensorProto.INT64}
    shapes = {"x": [1, 1, 1, 6], "y": [1, 1, 1, 2], "at": [1, 1, 1, 2]}
    x, y, at = (helper.make_tensor_value_info(name, kind, shapes[name]) for name, kind in kinds.items())
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y, at]), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    module = canonicalize(import_model(model, [TensorSpec("x", (1, 1, 1, 6))]))
    values = np.asarray([1, np.nan, np.nan, 2, 5, 3], np.float32).reshape(1, 1, 1, 6)
    found, places = LocalRunner.of_plain(module, HOST).run(values)
    assert np.isnan(found[0, 0, 0, 0]) and found[0, 0, 0, 1] == 5
    assert places.reshape(-1).tolist() == [1, 4]
