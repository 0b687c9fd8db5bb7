"""Test channels-last images between AMX convolutions: outputs of the numpy reference, and no copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.differential.test_amx import BACKEND, FLAGS, emulator
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.config.stage_params import DEFAULT_MIXED, Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.ir.tvm_compat import buffer_of, shape_of
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.schedules.registry import apply_template
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.progress import silent

__all__ = ["emulator"]
pytestmark = pytest.mark.skipif(
    "avx512_bf16" not in FLAGS, reason="vectors beside the tiles need AVX-512 with bfloat16"
)
Size = tuple[int, int]


class _Blocks(torch.nn.Module):
    """Convolutions behind each other: a bottleneck with a branch, what pools read, what is narrower than a tile."""

    def __init__(self, channels: int, kernel: int, dilation: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        torch.manual_seed(kernel)
        around = dilation * (kernel // 2)
        self.first = torch.nn.Conv2d(32, channels, 1)
        self.second = torch.nn.Conv2d(channels, channels, kernel, stride, around, dilation, groups)
        self.third, self.beside = torch.nn.Conv2d(channels, 48, 1), torch.nn.Conv2d(32, 48, 1, stride)
        self.fourth, self.last = torch.nn.Conv2d(48, 32, 1), torch.nn.Conv2d(32, 48, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        y = (self.third(self.second(self.first(x).relu()).relu()) + self.beside(x)).relu()
        return (self.last(self.fourth(y).relu()) + y).relu().mean((2, 3))


NETWORKS = [  # channels, kernel, dilation, stride, size
    (64, 3, 1, 1, (14, 14)),
    (32, 3, 1, 2, (21, 18)),
    (48, 5, 2, 1, (9, 37)),  # rows that are computed wider and cut
    (64, 1, 1, 1, (7, 7)),  # narrower than a tile
    (64, 3, 1, 2, (2, 9)),
    (16, 3, 1, 1, (12, 16)),  # a single block of channels has no other layout
    (64, 3, 1, 1, (3, 1)),
]


def _module(channels: int, kernel: int, dilation: int, stride: int, size: Size, groups: int = 1) -> Any:
    network = _Blocks(channels, kernel, dilation, stride, groups).eval()
    return canonicalize(ExportedModel(network, (TensorSpec("x", (1, 32, *size)),)).to_relax())


def _samples(size: Size) -> Any:
    return np.random.default_rng(1).standard_normal((4, 32, *size), dtype=np.float32)


def _layouts(packed: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the images of four axes and a block of channels between kernels."""
    bindings = lower(packed, BACKEND)["main"].body.blocks[0].bindings
    return [shape_of(binding.var) for binding in bindings if len(shape_of(binding.var)) == 5]


@pytest.mark.few(2)
@pytest.mark.parametrize(("channels", "kernel", "dilation", "stride", "size"), NETWORKS)
def test_bytes_are_those_of_the_definition(
    emulator: Any, channels: int, kernel: int, dilation: int, stride: int, size: Size
) -> None:
    quantized, _ = quantize_int8(
        _module(channels, kernel, dilation, stride, size), _samples(size), None, Int8Params(max_drop=None)
    )
    packed, _ = BACKEND.pack(quantized, None)
    runner, graph, before = LocalRunner(packed, BACKEND), read_graph(quantized), emulator.amx_executed()
    for sample in _samples(size)[:2]:
        assert np.array_equal(runner.run(sample[None])[0], run_graph(graph, sample[None]))
    assert emulator.amx_executed() > before or "amx_tile" in FLAGS


@pytest.mark.few(2)
@pytest.mark.parametrize(("channels", "kernel", "dilation", "stride", "size"), NETWORKS)
def test_bfloat16_is_that_of_packed_channels(
    emulator: Any, channels: int, kernel: int, dilation: int, stride: int, size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = PrecisionRequest(DEFAULT_MIXED, Samples((_samples(size),)), silent)
    mixed = to_precision(_module(channels, kernel, dilation, stride, size), "bfloat16", request)[0]
    packed, _ = BACKEND.pack(mixed, None)
    sample = _samples(size)[:1]
    found = LocalRunner(packed, BACKEND).run(sample)[0]
    monkeypatch.setattr("tvmflow.passes.layout.channels_last_for_amx._choose_values", lambda *_: set())
    assert np.array_equal(found, LocalRunner(packed, BACKEND).run(sample)[0])


def test_what_a_filter_of_one_pixel_reads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of two branches lies pixel by pixel, since a convolution of single pixels reads it; what the larger
    filters read and make does not.
    """
    quantized, _ = quantize_int8(_module(64, 3, 1, 1, (14, 14)), _samples((14, 14)), None, Int8Params(max_drop=None))
    packed, _ = BACKEND.pack(quantized, None)
    found = _layouts(packed)
    assert found.count((1, 14, 14, 3, 16)) == 1 and (1, 4, 14, 14, 16) in found and (1, 2, 14, 14, 16) in found
    assert _copies(packed, (1, 14, 14, 3, 16)) == [0]
    monkeypatch.setattr("tvmflow.passes.layout.channels_last_for_amx._choose_values", lambda *_: set())
    assert _copies(packed, (1, 3, 14, 14, 16)) == [1]


def _copies(packed: Any, shape: tuple[int, ...]) -> list[int]:
    """Return how many buffers of bytes each kernel makes that reads an image of such a shape first, by its default
    schedule in tiles.
    """
    found = []
    for workload in extract_workloads(lower(packed, BACKEND)):
        image, match = (
            buffer_of(workload.function, workload.function.params[0]),
            BACKEND.template_for(workload.function),
        )
        if (
            image is not None
            and match is not None
            and tuple(int(d) for d in image.shape) == shape
            and match[1][0].get("tiles")
        ):
            lines = str(apply_template(workload.function, match[0], match[1][0]).mod).splitlines()
            found.append(sum("_alloc_buffer(" in line and 'int8")' in line for line in lines))
    return found


def test_what_others_read_stays_packed() -> None:
    class Depthwise(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.wide, self.each, self.narrow = (
                torch.nn.Conv2d(32, 64, 1),
                torch.nn.Conv2d(64, 64, 3, 1, 1, groups=64),
                torch.nn.Conv2d(64, 32, 1),
            )

        def forward(self, x: Any) -> Any:
            return self.narrow(self.each(self.wide(x).relu()).relu())

    module = canonicalize(ExportedModel(Depthwise().eval(), (TensorSpec("x", (1, 32, 14, 14)),)).to_relax())
    quantized, _ = quantize_int8(module, _samples((14, 14)), None, Int8Params(max_drop=None))
    assert all(shape[-1] == 16 and shape[2:4] == (14, 14) for shape in _layouts(BACKEND.pack(quantized, None)[0]))
