"""Test the removal of branches that do not contribute: multiplied by 0 (ReZero) or by a factor that int8 rounds
to 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tvm import tirx
from tvm_ffi import structural_walk

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.ir.tir.blocks import region_buffer
from tvmflow.ir.tvm_compat import block_class
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8

SHAPE = (1, 3, 40, 40)
BRANCHES = {
    "convolution": lambda: nn.Conv2d(20, 20, 3, padding=1),
    "pixels": lambda: nn.Sequential(nn.Conv2d(20, 40, 1), nn.GELU(), nn.Conv2d(40, 20, 1)),
    "depthwise": lambda: nn.Sequential(nn.Conv2d(20, 20, 5, padding=2, groups=20), nn.ReLU()),
    "pool": lambda: nn.AvgPool2d(3, 1, 1),
    "gate": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(20, 20, 1), nn.Sigmoid()),
}


class Net(nn.Module):
    """A branch beside what goes on without it. factor: a number, or one for each channel."""

    def __init__(self, branch: nn.Module, factor: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.branch = nn.Conv2d(3, 20, 1), nn.Conv2d(20, 4, 1), branch
        self.factor = nn.Parameter(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.last(y + self.branch(y) * self.factor)


def _imported(net: nn.Module) -> Any:
    return canonicalize(ExportedModel(net.eval(), one_input("x", SHAPE)).to_relax())


def _unread(module: Any) -> list[str]:
    """Return the blocks of a packed module's kernels whose values of their own no block reads."""
    found: list[str] = []
    for kernel in lower(module, host_backend()).functions.values():
        if isinstance(kernel, tirx.PrimFunc):
            blocks: list[Any] = []
            structural_walk(kernel.body, (block_class(), blocks.append))
            own = [buffer for block in blocks for buffer in block.alloc_buffers]
            read = [region_buffer(region) for block in blocks for region in block.reads]
            for block in blocks:
                written = [region_buffer(region) for region in block.writes]
                if written and all(
                    any(buffer.same_as(one) for one in own) and not any(buffer.same_as(one) for one in read)
                    for buffer in written
                ):
                    found.append(str(block.name_hint))
    return found


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_branch_times_zero_is_left_out(branch: str) -> None:
    """Else the convolution is tied to no loop of the kernel, and LLVM unrolls all of its image: minutes."""
    net = Net(BRANCHES[branch](), torch.tensor(0.0))
    packed, _ = host_backend().pack(_imported(net), None)
    assert not _unread(packed)
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    with torch.no_grad():
        expected = net.double()(torch.from_numpy(x).double()).numpy()
    [ours] = LocalRunner(packed, host_backend()).run(x)
    assert np.abs(ours - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_branch_that_8_bits_round_away_is_left_out(branch: str) -> None:
    module = _imported(Net(BRANCHES[branch](), torch.full((1, 20, 1, 1), 1e-9)))
    samples = np.random.default_rng(0).standard_normal((4, *SHAPE[1:]), np.float32)
    quantized, _ = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    packed, _ = host_backend().pack(quantized, None)
    assert not _unread(packed)
    [ours] = LocalRunner(packed, host_backend()).run(samples[:1])
    np.testing.assert_array_equal(ours, run_graph(read_graph(quantized), samples[:1]))


def test_what_is_read_stays() -> None:
    module = _imported(Net(BRANCHES["convolution"](), torch.tensor(0.5)))
    packed, _ = host_backend().pack(module, None)
    assert not _unread(packed)
    assert sum("conv2d" in str(name) for name in lower(packed, host_backend()).functions) >= 3
