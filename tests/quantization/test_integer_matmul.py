"""Test that the C code for 8-bit products equals the integer definition for every shape of a convolution."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_equal

from tests.conftest import examples
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import Graph, read_graph
from tvmflow.ir.relax.numpy_convolution import convolve
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.fused_layers import Fused, fuse_steps
from tvmflow.quantization.int8 import SCALED
from tvmflow.quantization.integer_matmul import IntegerLibrary, known_instructions, run_fast
from tvmflow.quantization.post_training import quantize_int8


@pytest.fixture(scope="module", params=known_instructions(), ids=lambda names: names[-1] if names else "plain")
def products(request: pytest.FixtureRequest) -> IntegerLibrary:
    """Each form of the library that this machine runs."""
    made = IntegerLibrary(request.param)
    assert made.is_there
    return made


class _Attributes(NamedTuple):
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"


class _Call(NamedTuple):
    attrs: _Attributes


class _Step(NamedTuple):
    op: str
    dtype: str
    shape: tuple[int, ...]
    call: _Call


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), signed=st.booleans(), each=st.booleans())
def test_sums_are_exact(products: IntegerLibrary, data: st.DataObject, signed: bool, each: bool) -> None:
    def pair(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.integers(low, high)), data.draw(st.integers(low, high))

    channels, outputs = pair(1, 19)
    outputs, groups = (channels, channels) if each else (outputs, 1)
    kernel, strides, dilation = pair(1, 4), pair(1, 3), pair(1, 2)
    padding = (*pair(0, 3), *pair(0, 3))
    size = tuple(
        (kernel[i] - 1) * dilation[i] + 1 + data.draw(st.integers(0, 20)) for i in range(2)
    )  # an image that a filter fits into
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = generator.choice([0, 1, 127, 128, 254, 255], (2, channels, *size)).astype(np.uint8)
    x = x.view(np.int8) if signed else x
    weight = generator.choice([-128, -127, -1, 0, 1, 127], (outputs, channels // groups, *kernel)).astype(np.int8)
    expected = convolve(x, weight, strides, list(padding), dilation, groups)
    step: Any = _Step(
        "relax.nn.conv2d", "int32", expected.shape, _Call(_Attributes(strides, padding, dilation, groups))
    )
    assert_equal(products.run_step(step, [x, weight]), expected)


@pytest.fixture(scope="module")
def quantized() -> tuple[Graph, Any]:
    """Return the graph of a network with clips of both kinds, a residual sum, depthwise filters and a pool, and its
    samples.
    """
    torch.manual_seed(3)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 20, 5, 2, 2)
            self.each = torch.nn.Conv2d(20, 20, 3, padding=1, groups=20)
            self.last = torch.nn.Conv2d(20, 20, 1)
            self.dense = torch.nn.Linear(20, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(x))
            z = torch.nn.functional.relu6(self.each(y))
            return self.dense((self.last(z) + y).mean((2, 3)))  # type: ignore[no-any-return]

    module = canonicalize(ExportedModel(Network().eval(), one_input("input", (1, 3, 23, 21))).to_relax())
    samples = np.random.default_rng(5).standard_normal((6, 3, 23, 21), dtype=np.float32) * 4
    return read_graph(quantize_int8(module, samples, None, Int8Params(max_drop=None))[0]), samples


def test_fused_steps_are_the_steps_one_by_one(products: IntegerLibrary, quantized: tuple[Graph, Any]) -> None:
    graph, samples = quantized
    shorter = fuse_steps(graph)
    found = [step for step in shorter.steps if isinstance(step, Fused)]
    assert {step.op for step in found} == {"fused.conv2d", "fused.add"}
    assert sum(step.op == "fused.conv2d" for step in found) == 3
    assert len(shorter.steps) + sum(len(step.parts) - 1 for step in found) == len(graph.steps)
    expected = run_all(graph, (samples,))
    alone = run_all(
        shorter, (samples,), None, lambda step, x: step.run(x) if isinstance(step, Fused) else _plain(step, x)
    )
    assert_equal(alone, expected)
    assert_equal(run_all(shorter, (samples,), None, products.run_step), expected)
    assert_equal(run_fast(shorter, (samples,)), expected)


def _plain(step: Any, arguments: list[Any]) -> Any:
    from tvmflow.ir.relax.numpy_interpreter import run_step

    return run_step(step, arguments)


def test_a_value_that_is_watched_stays_and_is_the_same(quantized: tuple[Graph, Any]) -> None:
    graph, samples = quantized
    names = {step.name for step in graph.steps if step.name.endswith(SCALED)}
    expected: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    run_all(graph, (samples,), lambda step, value: expected.update({step.name: value}))
    run_fast(fuse_steps(graph, names), (samples,), lambda step, value: seen.update({step.name: value}))
    assert names and names <= set(seen)
    for name, value in seen.items():
        assert_equal(value, expected[name], name)


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 99), pixels=st.integers(1, 40), channels=st.integers(1, 9))
def test_means_are_numpys(products: IntegerLibrary, seed: int, pixels: int, channels: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.integers(-200, 300, (3, channels, 1, pixels)).astype(np.float32)
    factor, correction = generator.uniform(0.01, 2, channels), generator.standard_normal(channels)
    low, high = np.full(channels, 0.0, np.float32), generator.choice([6.0, np.inf], channels).astype(np.float32)
    found = products.active_means(values, 3.0, factor, correction, (low, high))
    column = (1, -1, 1, 1)
    moved = (values - 3) * factor.astype(np.float32).reshape(column) + correction.astype(np.float32).reshape(column)
    within = np.clip(moved, low.reshape(column), high.reshape(column))
    active = (moved > low.reshape(column)) & (moved < high.reshape(column))
    assert found is not None
    np.testing.assert_allclose(found[0], active.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(found[1], within.mean(axis=(0, 2, 3), dtype=np.float64), rtol=1e-6)
