"""Compare AMX kernels with PyTorch in float64; amx_emulator.c emulates and checks the instructions where a processor
has none.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tvm import relax

from tests.differential.kernels import run
from tests.differential.test_integer_graphs import Net
from tests.traces import Traced
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import LoadedLibrary, LocalRunner, build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.canonicalize.fold_constants import FoldConstants
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.mixed_precision import MixedPrecision, to_mixed_precision
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.schedules.intrinsics.intrinsic import Intrinsic
from tvmflow.schedules.registry import apply_template
from tvmflow.sources.networks.torch_zoo import build
from tvmflow.support.dtypes import numpy_dtype
from tvmflow.targets.resolve import host_target
from tvmflow.tuning.records.traces import trace_json

FLAGS = Path("/proc/cpuinfo").read_text(encoding="utf-8").split() if Path("/proc/cpuinfo").exists() else []
HOST = host_target()
TARGET = replace(HOST, mattr=("+amx-tile", "+amx-int8", "+amx-bf16"))
BACKEND = CpuBackend(TARGET)
pytestmark = pytest.mark.skipif(
    "avx512_bf16" not in FLAGS, reason="vectors beside the tiles need AVX-512 with bfloat16"
)


@pytest.fixture(scope="module", autouse=True)
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    library = tmp_path_factory.mktemp("amx") / "emulator.so"
    source = Path(__file__).with_name("amx_emulator.c")
    command = ["gcc", "-O3", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.amx_install()
    yield loaded
    loaded.amx_remove()


def _convolution(
    data: str, channels: tuple[int, int], kernel: int, stride: int, size: int
) -> tuple[Any, torch.nn.Conv2d]:
    """Return ReLU behind a convolution on packed channels as a module, and PyTorch's convolution in float64."""
    low, total = ("bfloat16", "float32") if data == "bfloat16" else ("int8", "int32")
    (first, second), padding = channels, kernel // 2
    weight = np.random.default_rng(0).integers(-127, 128, (second, first, kernel, kernel)).astype(np.float32)
    same = torch.nn.Conv2d(first, second, kernel, stride, padding, bias=False, dtype=torch.float64)
    same.weight = torch.nn.Parameter(torch.from_numpy(weight.astype(np.float64)), requires_grad=False)
    inner = min(first, 16)
    blocks = weight.reshape(second // 16, 16, first // inner, inner, kernel, kernel).transpose(0, 2, 4, 5, 3, 1)
    x = relax.Var("x", relax.TensorType((1, first // inner, size, size, inner), data))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = relax.op.nn.conv2d(
                x,
                constant(np.ascontiguousarray(blocks).astype(numpy_dtype(low)), low),
                padding=padding,
                strides=stride,
                data_layout=f"NCHW{inner}c",
                kernel_layout=f"OIHW{inner}i16o",
                out_layout="NCHW16c",
                out_dtype=total,
            )
            out = builder.emit_output(relax.op.nn.relu(builder.emit(conv)))
        builder.emit_func_output(out)
    return builder.get(), same


SHAPES = (  # channels, kernel, stride, size
    ((64, 64), 3, 1, 14),
    ((64, 64), 1, 1, 2),  # fewer pixels than a tile has rows
    ((32, 48), 3, 2, 14),  # fewer input channels than an instruction sums, an odd number of outputs
    ((64, 32), 1, 1, 8),
    ((128, 64), 1, 2, 16),
    ((48, 32), 5, 1, 12),
    ((16, 16), 3, 1, 37),  # rows that are computed wider and cut
    ((4, 32), 7, 2, 28),  # a first layer: an instruction sums all columns of a filter's row
    ((4, 16), 1, 1, 12),
    ((8, 16), 5, 1, 9),
    ((64, 64), 3, 1, 7),  # narrower than a tile, which goes on to the next row
    ((64, 48), 1, 1, 7),
    ((16, 32), 5, 1, 4),
    ((1024, 32), 3, 1, 7),  # windows larger than the first cache
    ((1024, 32), 3, 2, 14),
)


def _shares(knobs: dict[str, int], shape: tuple[int, ...]) -> int:
    """Return into how many pieces a schedule divides a kernel for its threads, in each of which registers get their
    shapes once.
    """
    pieces = shape[2] // knobs.get("chunk", shape[2])
    return pieces if knobs.get("rows_first") else pieces * shape[1] // knobs["c_tile"]


@pytest.mark.parametrize("data", ["uint8", "bfloat16"])
def test_a_single_pixel_is_multiplied_by_dot_products(data: str) -> None:
    """A tile of one row takes as long as one of 16."""
    for size, has_tiles in ((1, False), (2, True)):
        (workload,) = extract_workloads(lower(_convolution(data, (64, 64), 1, 1, size)[0], BACKEND))
        match = BACKEND.template_for(workload.function)
        assert match is not None
        first = match[1][0]
        assert bool(first.get("tiles")) == has_tiles and (has_tiles or first["dot"])


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("data", "channels", "kernel", "stride", "size"),
    # Unsigned bytes differ from signed ones in the instruction alone.
    [("uint8", *shape) for shape in SHAPES[:2]] + [(data, *shape) for data in ("int8", "bfloat16") for shape in SHAPES],
)
def test_every_kind_of_tile_keeps_the_output(
    emulator: Any, data: str, channels: tuple[int, int], kernel: int, stride: int, size: int
) -> None:
    module, same = _convolution(data, channels, kernel, stride, size)
    (workload,) = extract_workloads(lower(module, BACKEND))
    match = BACKEND.template_for(workload.function)
    assert match is not None
    tiled = [knobs for knobs in match[1] if knobs.get("tiles")]
    assert tiled and tiled[0] == match[1][0]
    low, high = {"uint8": (0, 256), "int8": (-128, 128), "bfloat16": (-127, 128)}[data]
    x = np.random.default_rng(1).integers(low, high, (1, channels[0], size, size))
    wanted = torch.relu(same(torch.from_numpy(x.astype(np.float64)))).numpy()
    packed = x.reshape(1, -1, min(channels[0], 16), size, size).transpose(0, 1, 3, 4, 2)
    for knobs in tiled[:: max(len(tiled) // 4, 1)]:
        trace = trace_json(apply_template(workload.function, match[0], knobs))
        Intrinsic.register.cache_clear()  # as in a process that has scheduled nothing
        executable, choices, *_ = build_scheduled(module, BACKEND, {workload.key: Traced(trace)})
        assert [choice.schedule for choice in choices] == ["record"]
        before, configured = emulator.amx_executed(), emulator.amx_configured()
        output = run(executable, np.ascontiguousarray(packed).astype(numpy_dtype(data)))
        assert emulator.amx_executed() > before or "amx_tile" in FLAGS
        assert emulator.amx_configured() - configured <= _shares(knobs, output.shape), knobs
        found_plain = output.astype(np.float64).transpose(0, 1, 4, 2, 3).reshape(wanted.shape)
        # Products of bfloat16 are exact in float32, their sums are rounded.
        assert np.abs(found_plain - wanted).max() <= (1e-6 * wanted.max() if data == "bfloat16" else 0), knobs


def test_a_network_in_bfloat16_is_computed_in_tiles(emulator: Any, tmp_path: Path) -> None:
    """As it is shipped: from a shared library."""
    model = ExportedModel(build("digits_cnn", 3).eval(), one_input("input", (1, 1, 8, 8)))
    module = FoldBatchNorm()(FoldConstants()(model.to_relax()))
    low = to_mixed_precision(module, MixedPrecision("bfloat16", "float32", ("conv2d", "matmul"), ("mean",)))
    executable, *_ = build_scheduled(PackChannels(16)(low), BACKEND, {})
    BACKEND.export(executable, tmp_path / "library.so")
    library, before = LoadedLibrary(tmp_path / "library.so", TARGET.threads), emulator.amx_executed()
    for seed in (0, 1):
        x = np.random.default_rng(seed).standard_normal((1, 1, 8, 8), dtype=np.float32)
        wanted = model.run(x)[0]
        assert np.abs(library.run(x)[0] - wanted).max() < 2e-2 * np.abs(wanted).max()
    assert emulator.amx_executed() > before or "amx_tile" in FLAGS


def test_a_network_of_bytes_in_tiles_equals_its_definition(emulator: Any) -> None:
    module = canonicalize(
        ExportedModel(Net(48, 1, False, False, "valid", 1).eval(), one_input("input", (1, 3, 13, 11))).to_relax()
    )
    samples = np.random.default_rng(0).standard_normal((6, 3, 13, 11), dtype=np.float32)
    quantized, _ = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    graph, runner, before = (
        read_graph(quantized),
        LocalRunner(PackChannels(16)(quantized), BACKEND),
        emulator.amx_executed(),
    )
    for sample in samples[:2]:
        assert np.array_equal(runner.run(sample[None])[0], run_graph(graph, sample[None]))
    assert emulator.amx_executed() > before or "amx_tile" in FLAGS


class _Stem(torch.nn.Module):
    def __init__(self, channels: int, kernel: tuple[int, int], stride: int, dilation: int, padding: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.first = torch.nn.Conv2d(channels, 24, kernel, stride, padding, dilation)
        self.second = torch.nn.Conv2d(24, 8, 1)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu())


@pytest.mark.few(4)
@pytest.mark.parametrize("offset", [0.0, 3.0])  # of the image, whose zero is not the least byte
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "dilation", "padding", "size"),
    [
        (3, (7, 7), 2, 1, 3, (38, 33)),  # two rows side by side, the eighth of zeros
        (3, (5, 5), 2, 1, 2, (24, 21)),
        (3, (7, 7), 2, 1, 0, (17, 40)),
        (3, (5, 5), 1, 1, 2, (12, 19)),  # each row lies in two places
        (3, (5, 5), 1, 2, 4, (15, 19)),
        (1, (7, 7), 1, 1, 3, (9, 28)),  # all rows side by side
        (1, (9, 3), 2, 1, 1, (20, 18)),
        (2, (6, 6), 2, 1, 2, (18, 18)),
        (4, (4, 7), 2, 1, 2, (16, 22)),
    ],
)
def test_rows_of_few_channels_are_summed_together(
    emulator: Any,
    channels: int,
    kernel: tuple[int, int],
    stride: int,
    dilation: int,
    padding: int,
    size: tuple[int, int],
    offset: float,
) -> None:
    network, shape = _Stem(channels, kernel, stride, dilation, padding).eval(), (1, channels, *size)
    module = canonicalize(ExportedModel(network, one_input("input", shape)).to_relax())
    samples = np.random.default_rng(0).standard_normal((6, *shape[1:]), dtype=np.float32) + np.float32(offset)
    quantized, _ = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    executed = []
    for packed in (PackChannels(16, few_as_words=True)(quantized), BACKEND.pack(quantized, None)[0]):
        before = emulator.amx_executed()
        found = LocalRunner(packed, BACKEND).run(samples[:1])[0]
        assert np.array_equal(found, run_graph(read_graph(quantized), samples[:1]))
        executed.append(emulator.amx_executed() - before)
    # Of less than three channels, vectors sum the first layer without these rows.
    assert executed[1] < executed[0] or channels < 3 or "amx_tile" in FLAGS


@pytest.mark.parametrize(
    ("channels", "kernel", "stride"),
    [
        (3, (2, 16), 2),
        (3, (16, 16), 16),
        (5, (7, 7), 2),
        (3, (1, 7), 1),
        (3, (4, 4), 4),
        (3, (3, 3), 2),
    ],  # would save too few products, or no row fits
)
def test_other_rows_stay_apart(channels: int, kernel: tuple[int, int], stride: int) -> None:
    network, shape = _Stem(channels, kernel, stride, 1, 0).eval(), (1, channels, 32, 32)
    module = canonicalize(ExportedModel(network, one_input("input", shape)).to_relax())
    samples = np.random.default_rng(0).standard_normal((2, *shape[1:]), dtype=np.float32)
    quantized, _ = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    packed, same = BACKEND.pack(quantized, None)[0], PackChannels(16, few_as_words=True)(quantized)
    filters = [
        [np.shape(step.args[1]) for step in read_graph(mod).steps if step.op == "relax.nn.conv2d"]
        for mod in (packed, same)
    ]
    assert filters[0] and filters[0] == filters[1]
