"""Test trimmed convolutions whose window covers the whole image against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tvm_compat import constant_value
from tvmflow.passes.canonicalize.trim_dilated_kernels import used_taps
from tvmflow.passes.legalize.convolutions import convolutions
from tvmflow.passes.pipeline import canonicalize


@pytest.mark.parametrize("seed", range(40))
def test_what_a_window_sees_is_what_its_elements_multiply(seed: int) -> None:
    draw = np.random.default_rng(seed)
    extent, window, step, stride = (int(draw.integers(1, most)) for most in (9, 6, 7, 4))
    before = int(draw.integers(0, 20))
    outputs = int(draw.integers(1, 6))
    touched = [
        at for at in range(window) for place in range(outputs) if 0 <= at * step - before + place * stride < extent
    ]
    expected = (min(touched), max(touched) + 1) if touched else (0, window)
    assert used_taps(extent, window, step, stride, before, outputs) == expected


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation", "window"),
    [
        ((14, 14), 3, 1, 24, 24, [1, 1]),
        ((14, 30), 3, 1, 24, 24, [1, 3]),
        ((5, 4), 5, 1, 12, 6, [1, 1]),
        ((6, 6), 5, 2, 4, 2, [5, 5]),
        ((1, 1), 3, 1, 1, 1, [1, 1]),
        ((3, 3), 7, 1, 3, 1, [5, 5]),
        ((2, 9), 3, 1, (4, 1), (2, 1), [3, 3]),
    ],
)
def test_trimmed_convolutions_have_pytorchs_outputs(
    size: tuple[int, int],
    kernel: int,
    stride: int,
    padding: int | tuple[int, int],
    dilation: int | tuple[int, int],
    window: list[int],
) -> None:
    torch.manual_seed(0)
    network = torch.nn.Conv2d(16, 16, kernel, stride, padding, dilation).eval()
    shape = (1, 16, *size)
    module = canonicalize(ExportedModel(network, (TensorSpec("x", shape),)).to_relax())
    (call,) = convolutions(module)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    with torch.no_grad():
        expected = network.double()(torch.from_numpy(x).double()).numpy()
    (found,) = LocalRunner(host_backend().pack(module, None)[0], host_backend()).run(x)
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    assert list(constant_value(call.args[1]).numpy().shape[2:]) == window
