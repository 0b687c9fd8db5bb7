"""Test 8-bit images with few channels: packed to channels-last words as in numpy, by one kernel, without rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tvm import relax

from tests.differential.kernels import of_one_operator
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.ir.tir.workloads import count_calls
from tvmflow.passes.layout.first_layer import pack_image
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8

_NONE = (0, 0, 0, 0)


def _module(shape: tuple[int, ...], dtype: str, padding: tuple[int, ...], value: int, lanes: int) -> Any:
    """Return a module whose output is an image with its channels side by side, padded (top, bottom, left, right)
    before.
    """

    def padded(x: Any) -> Any:
        return relax.op.nn.pad(x, [0, 0, 0, 0, *padding], pad_value=float(value))

    graph = read_graph(of_one_operator(padded, shape, dtype))

    def made(x: Any) -> Any:
        builder = relax.BlockBuilder.current()
        values = {"x": lambda: x, graph.outputs[0]: lambda: builder.emit(padded(x))}
        return pack_image(builder, graph, lambda name: values[name](), graph.outputs[0], lanes, True)

    return of_one_operator(made, shape, dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "padding", "lanes"),
    [
        ((1, 3, 5, 16), _NONE, 4),
        ((1, 3, 5, 17), (1, 1, 1, 1), 4),
        ((2, 4, 7, 31), (0, 2, 3, 0), 4),
        ((1, 3, 9, 48), (3, 3, 3, 3), 4),
        ((1, 5, 6, 33), (2, 1, 0, 4), 8),
        ((3, 7, 4, 20), _NONE, 8),
        ((1, 3, 120, 100), (0, 1, 0, 1), 4),  # large enough for threads
        ((1, 3, 6, 15), (2, 2, 2, 2), 4),  # too narrow for a vector
        ((1, 9, 4, 20), (1, 0, 0, 1), 12),  # no word has so many
    ],
)
def test_channels_lie_side_by_side(dtype: str, shape: tuple[int, ...], padding: tuple[int, ...], lanes: int) -> None:
    limits = np.iinfo(dtype)
    value = limits.min + 3
    x = np.random.default_rng(1).integers(limits.min, limits.max, shape, dtype, endpoint=True)
    (found,) = LocalRunner(_module(shape, dtype, padding, value, lanes), host_backend()).run(x)
    top, bottom, left, right = padding
    image = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)
    expected = np.zeros((shape[0], 1, *image.shape[2:], lanes), dtype)
    expected[:, 0, :, :, : shape[1]] = image.transpose(0, 2, 3, 1)
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


class _Stem(torch.nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.first, self.second = torch.nn.Conv2d(channels, 32, 3, stride, 1), torch.nn.Conv2d(32, 8, 1)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu())


@pytest.mark.parametrize(("channels", "stride", "size"), [(3, 2, 24), (3, 1, 19), (4, 2, 33), (6, 1, 16), (3, 2, 9)])
def test_a_quantized_network_reads_its_image_as_its_definition_does(channels: int, stride: int, size: int) -> None:
    shape = (1, channels, size, size)
    module = canonicalize(ExportedModel(_Stem(channels, stride).eval(), (TensorSpec("x", shape),)).to_relax())
    draw = np.random.default_rng(size)
    quantized = quantize_int8(
        module, draw.standard_normal((4, *shape[1:]), dtype=np.float32), None, Int8Params(max_drop=None)
    )[0]
    packed, _ = host_backend().pack(quantized, None)
    x = draw.standard_normal(shape, dtype=np.float32)
    (found,) = LocalRunner(packed, host_backend()).run(x)
    assert np.array_equal(found, run_graph(read_graph(quantized), x))
    kernels = count_calls(lower(packed, host_backend()))
    assert ("side_by_side" in " ".join(kernels)) == (size >= 16)
    assert not (size >= 16 and any("pad" in name for name in kernels)), kernels
