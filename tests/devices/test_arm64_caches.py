"""Check what convolutions fetch from beyond a simulated L1, whose image or weights exceed it, and that they are right.

The bound is a multiple of their bytes: an image that came again for each block of channels, or weights that came again
for each row, would exceed it several times.
"""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from tests.devices.arm64 import linked, target
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.layout.pack_channels import PackChannels

_LINE_BYTES = 64


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("processor", "dtype", "channels", "outs", "size", "kernel", "stride", "limit"),
    [
        ("cortex-a76", "int8", 512, 256, 14, 1, 1, 2.5),  # groups of channels
        ("cortex-a76", "int8", 512, 128, 13, 1, 1, 2.5),  # rows of 13 pixels, computed as 14
        ("cortex-a76", "int8", 32, 32, 112, 3, 2, 2.5),  # chunks of rows, with their padding
        ("cortex-a53", "float32", 64, 256, 13, 1, 1, 1.8),  # blocks of channels
    ],
)
def test_an_image_beyond_l1_is_fetched_few_times(
    processor: str,
    dtype: str,
    channels: int,
    outs: int,
    size: int,
    kernel: int,
    stride: int,
    limit: float,
    runner: Path,
    emulated: EmulatedSystem,
    tmp_path: Path,
) -> None:
    draw = np.random.default_rng(3)
    image, weight = (
        draw.integers(-9, 10, shape).astype(dtype)
        for shape in ((1, channels // 8, size, size, 8), (outs, channels, kernel, kernel))
    )
    x, total = relax.Var("x", relax.TensorType((1, channels, size, size), dtype)), "int32" if dtype == "int8" else dtype
    builder, op = relax.BlockBuilder(), relax.op
    with builder.function("main", [x]):
        with builder.dataflow():
            sums = op.nn.conv2d(x, constant(weight, dtype), strides=stride, padding=kernel // 2, out_dtype=total)
            found = builder.emit_output(builder.emit(sums))
        builder.emit_func_output(found)
    module, backend = builder.get(), backend_of(target(processor))
    library = linked(tmp_path, build_scheduled(PackChannels(8)(module), backend, {}), 1, backend)
    given, got = library.with_suffix(".in"), library.with_suffix(".out")
    plain = image.transpose(0, 1, 4, 2, 3).reshape(1, channels, size, size)
    given.write_bytes(plain.tobytes())
    words = [*emulated.command(processor, caches=True), str(runner), str(library), "1", str(given), str(got)]
    counts = [int(word) for word in subprocess.run(words, capture_output=True, timeout=120, check=True).stdout.split()]
    expected = run_all(read_graph(module), [plain])[0]
    assert np.array_equal(np.frombuffer(got.read_bytes(), total).reshape(expected.shape), expected)
    rearranged = plain.nbytes + math.prod(expected.shape) * np.dtype(total).itemsize  # read and written once more
    least = plain.nbytes + weight.nbytes + expected.nbytes + 2 * rearranged
    assert least / 2 < _LINE_BYTES * counts[5] < limit * least
