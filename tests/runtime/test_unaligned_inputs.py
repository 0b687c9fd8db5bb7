"""Test inputs that start at any element: read in place without a copy, with identical outputs."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.runtime.test_network import _network
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.link import write_network
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tvm_compat import return_type
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.support.runtime_binding import network_binding
from tvmflow.toolchain.compilers import Command

IMAGE = (1, 3, 32, 48)
NETWORKS: dict[str, tuple[Callable[..., Any], tuple[tuple[tuple[int, ...], str], ...]]] = {
    "a first convolution": (nn.Conv2d(3, 32, 3, 2, 1), ((IMAGE, "float32"),)),
    "a convolution without padding": (nn.Conv2d(3, 16, 2), ((IMAGE, "float32"),)),
    "packed channels": (nn.Conv2d(32, 16, 1), (((1, 32, 20, 20), "float32"),)),
    "depthwise": (nn.Conv2d(32, 32, 3, 1, 1, groups=32), (((1, 32, 20, 20), "float32"),)),
    "a dense layer": (nn.Linear(96, 40), (((7, 96), "float32"),)),
    "rows of another shape": (nn.Sequential(nn.Flatten(0, 1), nn.Linear(64, 40)), (((100, 1, 64), "float32"),)),
    "another shape": (lambda x: torch.flatten(x, 1) * 2 + 1, ((IMAGE, "float32"),)),
    "a norm of rows": (nn.LayerNorm(64), (((2, 9, 64), "float32"),)),
    "a pool": (nn.MaxPool2d(2), ((IMAGE, "float32"),)),
    "a product of two inputs": (torch.matmul, (((2, 48, 32), "float32"), ((2, 32, 64), "float32"))),
    "attention": (F.scaled_dot_product_attention, tuple([((1, 2, 33, 32), "float32")] * 3)),
    "a lookup": (nn.Embedding(50, 24), (((1, 33), "int64"),)),
    "a mask": (lambda x, mask: torch.where(mask, x, -x), (((3, 70), "float32"), ((3, 70), "bool"))),
    "an input twice": (lambda x: F.softmax(x, -1) + x.exp(), (((5, 200), "float32"),)),
    "an input as it is": (lambda x: (x, x + 1), (((5, 200), "float32"),)),
}
_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


class _Counted:
    """A network whose memory is counted, on inputs at chosen addresses."""

    def __init__(self, path: Path) -> None:
        binding = network_binding()
        self.api, self.handle, self.made = binding._api_of(path), ctypes.c_void_p(), 0
        self.held: list[Any] = []
        self.hooks = (_Allocate(self._allocate), _Release(lambda _context, _memory: None))
        given = (ctypes.cast(hook, ctypes.c_void_p).value for hook in self.hooks)
        options = binding._Options(2, 0, 0, *given, None)
        assert not self.api.create(ctypes.byref(options), ctypes.byref(self.handle))
        self.outputs = binding.Network(path).outputs

    def _allocate(self, _context: int | None, size: int, alignment: int) -> int:
        self.made += 1
        self.held.append(ctypes.create_string_buffer(size + alignment))
        at = ctypes.addressof(self.held[-1])
        return at + -at % alignment

    def run(self, arrays: tuple[Any, ...], offset: int) -> tuple[list[bytes], int]:
        """Return outputs, and how often the run asked for memory. offset: in bytes, from a line of the cache."""
        inputs, outputs = (
            [_placed(x, offset) for x in arrays],
            [_placed(np.empty(o.shape, o.dtype), 0) for o in self.outputs],
        )
        before = self.made
        pointers = [(ctypes.c_void_p * len(held))(*(x.ctypes.data for x in held)) for held in (inputs, outputs)]
        assert not self.api.run(self.handle, *pointers)
        return [x.tobytes() for x in outputs], self.made - before

    def close(self) -> None:
        """End its threads, before the memory that they wait in is given back."""
        self.api.destroy(self.handle)


def _placed(array: Any, offset: int) -> Any:
    memory = np.empty(array.nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    placed = np.frombuffer(memory[begin : begin + array.nbytes].data, array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


def _sample(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    if dtype == "float32":
        return draw.standard_normal(shape, dtype=np.float32)
    return draw.integers(0, 2 if dtype == "bool" else 50, shape).astype(dtype)


def _check(packed: Any, samples: tuple[Any, ...], path: Path) -> None:
    scheduled = build_scheduled(packed, host_backend(), {})
    names = ("out", "other")[: _outputs(scheduled.module)]
    write_network(path, scheduled, _network(scheduled.module, names), Command(("gcc",)))
    with contextlib.closing(_Counted(path)) as network:
        _check_offsets(network, samples)


def _check_offsets(network: _Counted, samples: tuple[Any, ...]) -> None:
    expected, _ = network.run(samples, 0)
    elements = max(x.itemsize for x in samples)
    for offset in (elements, 16, 32, 64 - elements):
        assert network.run(samples, offset) == (expected, 0), offset
    if elements > 1:  # no processor reads such elements as fast
        found, made = network.run(samples, 1)
        assert found == expected and made == sum(x.itemsize > 1 for x in samples)


def _outputs(module: Any) -> int:
    return len(getattr(return_type(module["main"]), "fields", (None,)))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_input_is_read_where_it_lies(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    function, inputs = NETWORKS[name]
    specs = tuple(TensorSpec(f"x{at}", shape, dtype) for at, (shape, dtype) in enumerate(inputs))
    module = canonicalize(ExportedModel(_Called(function).eval(), specs).to_relax())
    samples = tuple(_sample(shape, dtype, at) for at, (shape, dtype) in enumerate(inputs))
    _check(host_backend().pack(module, None)[0], samples, tmp_path / "network.so")


@pytest.mark.parametrize("width", [48, 50])
def test_an_image_that_is_rounded_to_bytes_is_read_where_it_lies(width: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 8, 1))
    module = canonicalize(ExportedModel(network.eval(), (TensorSpec("x", (1, 3, 32, width)),)).to_relax())
    quantized, _ = quantize_int8(module, _sample((4, 3, 32, width), "float32", 0), None, Int8Params(max_drop=None))
    _check(
        host_backend().pack(quantized, None)[0], (_sample((1, 3, 32, width), "float32", 1),), tmp_path / "network.so"
    )
