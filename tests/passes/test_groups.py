"""Compare grouped convolutions of any width, packed as parts of blocks or by merging groups, with PyTorch in float64
and the definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tvm import relax

from tests.differential.kernels import HOST, of_one_operator, outputs_of_every_schedule
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.layout.weights import merge_groups, pack_both
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.dtypes import numpy_dtype


class Grouped(torch.nn.Module):
    """A dense convolution, a grouped one, an activation whose zero is none, and a dense one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        groups, width = int(draw.choice([2, 3, 5, 13, 32])), int(draw.choice([1, 2, 4, 8, 16, 24]))
        wider = width * int(draw.choice([1, 1, 2]))
        self.first = torch.nn.Conv2d(3, groups * width, 3, padding=1)
        self.middle = torch.nn.Conv2d(groups * width, groups * wider, 3, int(draw.choice([1, 2])), 1, groups=groups)
        self.last = torch.nn.Conv2d(groups * wider, 5, 1)

    def forward(self, x: Any) -> Any:
        return self.last(torch.sigmoid(self.middle(self.first(x).relu())))


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(10))
def test_groups_have_pytorchs_outputs(seed: int) -> None:
    network, shape = Grouped(seed).eval(), (1, 3, 9, 11)
    module = canonicalize(ExportedModel(network, (TensorSpec("x", shape),)).to_relax())
    packed, _ = host_backend().pack(module, None)
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    with torch.no_grad():
        expected = network.double()(torch.from_numpy(x).double()).numpy()
    (found,) = LocalRunner(packed, host_backend()).run(x)
    assert np.abs(found - expected).max() < 2e-5 * np.ptp(expected)


@pytest.mark.parametrize(
    ("groups", "inputs", "outputs", "left"),
    [
        (13, 8, 8, 7),
        (32, 4, 4, 8),
        (4, 16, 16, 4),
        (6, 24, 24, 3),
        (32, 1, 2, None),
        (5, 24, 24, None),
        (7, 3, 3, None),
    ],
)
def test_groups_are_merged_where_they_fill_blocks(groups: int, inputs: int, outputs: int, left: int | None) -> None:
    weight = np.random.default_rng(0).standard_normal((groups * outputs, inputs, 1, 1)).astype(np.float32)
    merged = merge_groups(weight, groups, 16)
    assert (merged and merged[1]) == left
    if merged is not None:
        assert merged[0].sum() == pytest.approx(weight.sum(), rel=1e-4) and (merged[0] != 0).sum() == weight.size


@pytest.mark.few(3)
@pytest.mark.parametrize(("width", "stride"), [(4, 1), (8, 2), (8, 1)])
@pytest.mark.parametrize(
    ("data", "weights", "total"), [("float32",) * 3, ("bfloat16", "bfloat16", "float32"), ("uint8", "int8", "int32")]
)
def test_every_schedule_of_groups_within_a_block(width: int, stride: int, data: str, weights: str, total: str) -> None:
    """A group is multiplied in registers as wide as it is; with its neighbours it would be multiplied with zeros."""
    draw, channels = np.random.default_rng(width), 32
    low, high = {"uint8": (0, 256), "int8": (-127, 128)}.get(data, (-8, 9))
    x = draw.integers(low, high, (1, channels, 7, 14)).astype(numpy_dtype(data))
    weight = draw.integers(-8, 9, (channels, width, 3, 3)).astype(numpy_dtype(weights))

    def convolved(image: Any) -> Any:
        exact = constant(weight.astype(total), total)
        return relax.op.nn.conv2d(image, exact, strides=stride, padding=1, groups=channels // width, out_dtype=total)

    def packed(image: Any) -> Any:
        return relax.op.nn.conv2d(
            image,
            constant(pack_both(weight, 16, width), weights),
            strides=stride,
            padding=1,
            groups=channels // width,
            out_dtype=total,
            data_layout="NCHW16c",
            kernel_layout=f"OIHW{width}i16o",
            out_layout="NCHW16c",
        )

    expected = run_graph(read_graph(of_one_operator(convolved, x.shape, total)), x.astype(total))
    n, _, height, columns = expected.shape
    lowered = lower(of_one_operator(packed, (1, 2, 7, 14, 16), data), HOST)
    (workload,) = extract_workloads(lowered)
    covered = HOST.template_for(workload.function)
    assert covered is not None
    shown = np.ascontiguousarray(x.reshape(1, 2, 16, 7, 14).transpose(0, 1, 3, 4, 2))
    template, candidates = covered
    for output in outputs_of_every_schedule(lowered, workload, template, candidates[:: len(candidates) // 5], shown):
        plain = output.transpose(0, 1, 4, 2, 3).reshape(n, channels, height, columns)
        assert np.array_equal(plain, expected)
