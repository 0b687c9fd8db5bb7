"""Compare fused inverted residuals with PyTorch in float64 under all schedules, and test when fusion is skipped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.differential.kernels import HOST, error_of, imported, run
from tests.traces import Traced
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import Array, build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.ir.tir.workloads import Workload, extract_workloads, operations
from tvmflow.passes.fuse import inverted_residual as fuse_expansions
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.schedules.cpu.inverted_residual import Shape, pays, rank_plans
from tvmflow.schedules.registry import apply_template
from tvmflow.targets.cpu_features import CpuFeatures
from tvmflow.tuning.records.traces import trace_json

BOUND = 2e-6  # of the largest output
pytestmark = pytest.mark.skipif("madd512" not in HOST.cpu_features().dots, reason="fused on processors with AVX-512")


class Inverted(torch.nn.Module):
    """A 1x1 convolution, a depthwise one and a 1x1 convolution, with activations between them."""

    def __init__(
        self, channels: tuple[int, int], kernel: int, stride: int, padding: Any, dilation: int, act: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(sum(channels) + kernel)
        narrow, wide = channels
        self.expand = torch.nn.Conv2d(narrow, wide, 1)
        self.padding = torch.nn.ZeroPad2d(padding)
        self.depthwise = torch.nn.Conv2d(wide, wide, kernel, stride=stride, groups=wide, dilation=dilation)
        self.project = torch.nn.Conv2d(wide, narrow, 1)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(self.act(self.depthwise(self.padding(self.act(self.expand(x))))))  # type: ignore[no-any-return]


def _shifted_relu(x: torch.Tensor) -> torch.Tensor:
    """Not zero at zero, so that what lies around an image has to be zero, and is not what the expansion makes of
    zeros.
    """
    return torch.relu(x + 1.5) + 0.25


ACTIVATIONS = {
    "relu6": torch.nn.ReLU6(),
    "silu": torch.nn.SiLU(),
    "none": torch.nn.Identity(),
    "shifted": _shifted_relu,
}


@pytest.fixture(autouse=True)
def at_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse what can be, whether it pays or not."""
    monkeypatch.setattr(fuse_expansions, "pays", lambda shape, _cpu: shape.sees_all)


def _lowered(network: torch.nn.Module, shape: tuple[int, ...], threads: int = 2) -> tuple[Any, Any, CpuBackend]:
    module, _ = imported(network, shape)
    backend = CpuBackend(replace(HOST.target, threads=threads))
    packed = PackChannels(16)(module)
    return packed, lower(packed, backend), backend


def _expansions(lowered: Any, backend: CpuBackend) -> list[Workload]:
    return [
        workload
        for workload in extract_workloads(lowered)
        if (found := backend.template_for(workload.function)) and found[0].name == "expansion"
    ]


def _case(network: torch.nn.Module, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return an input, and the network's output in float64."""
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    with torch.no_grad():
        reference = network.double()(torch.from_numpy(x.astype(np.float64))).numpy()
    network.float()
    return x, reference


def _check_whole(packed: Any, backend: CpuBackend, network: torch.nn.Module, shape: tuple[int, ...]) -> None:
    """Compare the network under its default schedules with float64."""
    x, reference = _case(network, shape)
    assert error_of(run(build_scheduled(packed, backend, {}).executable, x), reference) < BOUND


def _check(network: torch.nn.Module, shape: tuple[int, ...], threads: int = 2, most: int = 4) -> None:
    """Compare some schedules of the network's one fused kernel with float64."""
    packed, lowered, backend = _lowered(network, shape, threads)
    (workload,) = _expansions(lowered, backend)
    found = backend.template_for(workload.function)
    assert found is not None
    template, candidates = found
    x, reference = _case(network, shape)
    for knobs in candidates[:: max(len(candidates) // most, 1)]:
        trace = trace_json(apply_template(workload.function, template, knobs))
        executable, choices, *_ = build_scheduled(packed, backend, {workload.key: Traced(trace)})
        assert sum(choice.schedule == "record" for choice in choices) == 1, knobs
        assert error_of(run(executable, x), reference) < BOUND, knobs


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding", "size", "images"),
    [
        ((24, 48), 3, 1, 1, (12, 12), 1),  # half a block of channels is filling
        ((16, 40), 5, 2, 2, (16, 20), 1),
        ((16, 32), 3, 2, (0, 1, 0, 1), (16, 16), 1),  # TensorFlow's padding
        ((16, 32), 7, 1, 3, (8, 8), 2),
        ((16, 32), 5, 3, (2, 0, 1, 3), (15, 18), 1),
        ((16, 64), 3, 1, (3, 2, 4, 1), (6, 8), 1),  # windows of nothing but padding
    ],
)
def test_one_kernel_computes_what_two_did(
    channels: tuple[int, int], kernel: int, stride: int, padding: Any, size: tuple[int, int], images: int
) -> None:
    network = Inverted(channels, kernel, stride, padding, 1, _shifted_relu).eval()
    _check(network, (images, channels[0], *size))


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_rows_and_channels_are_divided_among_any_number_of_threads(threads: int) -> None:
    _check(Inverted((16, 96), 3, 1, 1, 1, torch.nn.ReLU6()).eval(), (1, 16, 24, 24), threads)


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.tuples(st.sampled_from([16, 24, 40, 72]), st.sampled_from([16, 32, 56, 96])),
    st.sampled_from([2, 3, 5]),
    st.integers(1, 3),
    st.tuples(*[st.integers(0, 3)] * 4).filter(any),
    st.integers(1, 2),
    st.sampled_from(sorted(ACTIVATIONS)),
    st.tuples(st.integers(8, 20), st.integers(8, 20)),
    st.integers(1, 4),
)
def test_drawn_inverted_residuals_keep_their_outputs(
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    padding: Any,
    dilation: int,
    act: str,
    size: tuple[int, int],
    threads: int,
) -> None:
    """Whether they become one kernel or stay two."""
    network = Inverted(channels, kernel, stride, padding, dilation, ACTIVATIONS[act]).eval()
    shape = (1, channels[0], *size)
    packed, lowered, backend = _lowered(network, shape, threads)
    if _expansions(lowered, backend):
        _check(network, shape, threads, most=2)
        return
    _check_whole(packed, backend, network, shape)


class Beside(Inverted):
    """The wide image is read by something else, too: of the same kernel, or of another."""

    def __init__(self, of_same: bool) -> None:
        super().__init__((16, 32), 3, 1, 1, 1, torch.nn.ReLU())
        self.of_same = of_same

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.act(self.expand(x))
        summed = self.depthwise(self.padding(wide))
        return (
            summed + wide
            if self.of_same
            else self.project(summed) + self.project(torch.nn.functional.max_pool2d(wide, 3, 1, 1))
        )


@pytest.mark.parametrize("of_same", [True, False])
def test_a_wide_image_with_other_readers_is_made_once(of_same: bool) -> None:
    network, shape = Beside(of_same).eval(), (1, 16, 12, 12)
    packed, lowered, backend = _lowered(network, shape)
    assert not _expansions(lowered, backend)
    _check_whole(packed, backend, network, shape)


def test_an_image_that_no_window_sees_the_end_of_stays_a_kernel_of_its_own() -> None:
    network, shape = Inverted((16, 32), 3, 4, 1, 1, torch.nn.ReLU()).eval(), (1, 16, 24, 24)
    packed, lowered, backend = _lowered(network, shape)
    assert not _expansions(lowered, backend)
    _check_whole(packed, backend, network, shape)


def test_both_sums_are_counted() -> None:
    network = Inverted((16, 32), 3, 1, 1, 1, torch.nn.ReLU()).eval()
    _, lowered, backend = _lowered(network, (1, 16, 12, 12))
    (workload,) = _expansions(lowered, backend)
    assert operations(workload.function) == 2 * 12 * 12 * 32 * (16 + 9)


def _cpu(threads: int) -> CpuFeatures:
    return CpuFeatures(16, 32, threads, 1 << 20)


def test_threads_get_rows_or_channels_whichever_makes_less_twice() -> None:
    large = Shape(images=1, blocks=9, height=56, sees=3, stride=1, row_bytes=58 * 64)
    small = Shape(images=1, blocks=60, height=7, sees=3, stride=1, row_bytes=9 * 64)
    assert [(plan.rows, plan.by_rows) for plan in (rank_plans(large, _cpu(2))[0], rank_plans(small, _cpu(2))[0])] == [
        (28, True),
        (7, False),
    ]
    assert pays(large, _cpu(2)) and pays(small, _cpu(16))
    odd = Shape(images=1, blocks=1, height=7, sees=7, stride=1, row_bytes=16 * 64)
    assert not pays(odd, _cpu(2))  # each half would need all rows


@pytest.mark.parametrize(("channels", "kernel", "stride"), [(24, 1, 1), (40, 3, 2), (72, 5, 1), (30, 1, 1), (32, 1, 1)])
def test_no_half_of_a_block_of_channels_is_multiplied_for_nothing(channels: int, kernel: int, stride: int) -> None:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(16, channels, 1),
        torch.nn.Sigmoid(),
        torch.nn.Conv2d(channels, 32, kernel, stride=stride, padding=kernel // 2),
    ).eval()
    shape = (1, 16, 12, 12)
    packed, lowered, backend = _lowered(network, shape)
    steps = operations(max(extract_workloads(lowered), key=lambda found: operations(found.function)).function)
    assert steps == 2 * (12 // stride) ** 2 * 32 * -(-channels // 8) * 8 * kernel**2
    _check_whole(packed, backend, network, shape)
