"""Test float minimum and maximum on arm64: one instruction each, equal values, and NaN for NaN.

Those of floats that become bytes: none, where they are those of the type, and the same bytes as by the numpy
definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.devices.arm64 import linked, ran, target
from tests.differential.kernels import HOST, of_one_operator, run
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.layout.pack_channels import PackChannels

HIGH = np.linspace(-1, 1, 24, dtype=np.float32)[None, :, None]
OPERATORS: list[Callable[[Any], Any]] = [
    relax.op.nn.relu,
    lambda x: relax.op.clip(x, 0, 6),
    lambda x: relax.op.maximum(relax.op.minimum(x, constant(HIGH, "float32")), constant(np.float32(-0.5), "float32")),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=["relu", "clip", "limits"])
def test_a_limit_is_one_instruction_and_gives_the_same(
    operator: Callable[[Any], Any], emulated: EmulatedSystem, runner: Path, tmp_path: Path
) -> None:
    module, backend = of_one_operator(operator, (1, 24, 20)), backend_of(target("cortex-a53"))
    scheduled = build_scheduled(module, backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert re.search(r"\tfm(ax|in)\tv", code) and not re.search(r"\t(bif|bsl|bit|fcmg.|fcsel)\t", code)
    x = (10 * np.random.default_rng(0).standard_normal((1, 24, 20))).astype(np.float32)
    x[0, 0, :6] = np.nan, np.inf, -np.inf, -0.0, 0.0, 6.0
    found = np.frombuffer(ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, "cortex-a53", [x]), np.float32)
    here = run(build_scheduled(module, HOST, {}).executable, x)
    assert np.isnan(found[0]) and np.array_equal(found[1:], here.reshape(-1)[1:])


def test_a_pool_of_float16_stays_in_float16_and_keeps_what_is_no_number(
    emulated: EmulatedSystem, runner: Path, tmp_path: Path
) -> None:
    shape = (1, 2, 12, 12, 8)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    x[0, 0, :6, :6], x[0, 1, 4, 5], x[0, 1, 9, 2] = -np.inf, np.nan, np.inf
    given, builder = relax.Var("x", relax.TensorType(shape, "float16")), relax.BlockBuilder()
    with builder.function("main", [given]):
        with builder.dataflow():
            pooled = builder.emit(
                relax.op.nn.max_pool2d(given, (3, 3), strides=(2, 2), padding=(1, 1), layout="NCHW8c")
            )
            output = builder.emit_output(pooled)
        builder.emit_func_output(output)
    backend = backend_of(target("cortex-a76"))
    scheduled = build_scheduled(builder.get(), backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert re.search(r"\tfmax\tv\d+\.8h", code) and not re.search(r"\tfcvt", code)
    found = np.frombuffer(ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, "cortex-a76", [x]), np.float16)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = [wide[:, :, y : y + 11 : 2, at : at + 11 : 2] for y in range(3) for at in range(3)]
    expected = np.maximum.reduce(windows)
    assert np.isneginf(expected).any() and np.isposinf(expected).any() and np.isnan(expected).any()
    assert np.array_equal(found.reshape(expected.shape), expected, equal_nan=True)


def _byte(x: Any, dtype: str, zero: int, limits: tuple[Any, Any]) -> Any:
    """Return what a layer in 8 bits ends with; limits: numbers, or one for each channel."""
    scaled = relax.op.round(relax.op.multiply(x, constant(np.float32(1.7), "float32")))
    if zero:
        scaled = relax.op.add(scaled, constant(float(zero), "float32"))
    low, high = limits
    if isinstance(high, float):
        return relax.op.astype(relax.op.clip(scaled, low, high), dtype)
    scaled = relax.op.minimum(scaled, constant(high, "float32"))
    return relax.op.astype(relax.op.maximum(scaled, constant(low, "float32")), dtype)


CHANNELS = np.arange(24, dtype=np.float32)[None, :, None]
BYTES: dict[str, tuple[str, int, tuple[Any, Any]]] = {
    "int8": ("int8", 0, (-128.0, 127.0)),
    "int8-zero": ("int8", -128, (-128.0, 127.0)),
    "int8-limits": ("int8", 5, (5.0, 96.0)),
    "uint8": ("uint8", 0, (0.0, 255.0)),
    "uint8-zero": ("uint8", 255, (0.0, 255.0)),
    "uint8-channels": ("uint8", 7, (np.float32(7), 100 + CHANNELS)),
    "int8-channels": ("int8", -3, (-3 - CHANNELS, 100 + CHANNELS)),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("width", [20, 4])  # vectors of 16, and of 12, for which there are no instructions
@pytest.mark.parametrize("which", BYTES)
def test_bytes_are_rounded_and_limited_by_narrowing(
    which: str, width: int, emulated: EmulatedSystem, runner: Path, tmp_path: Path
) -> None:
    dtype, zero, limits = BYTES[which]
    module = of_one_operator(lambda x: _byte(x, dtype, zero, limits), (1, 24, width))
    backend = backend_of(target("cortex-a53"))
    scheduled = build_scheduled(module, backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    if width == 20:
        assert re.search(r"sqxtu?n\tv\d+\.8b", code) and not re.search(r"\t(fm(ax|in)nm|frinti|fcvtzs)\tv", code)
    x = (60 * np.random.default_rng(0).standard_normal((1, 24, width))).astype(np.float32)
    x[0, :8, 0] = np.array([0.5, 1.5, -0.5, 2.5, 1e12, -1e12, 4e4, -4e4], np.float32) / np.float32(1.7)
    expected = run_all(read_graph(module), [x])[0]
    found = np.frombuffer(ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, "cortex-a53", [x]), dtype)
    assert np.array_equal(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_maximum_of_a_window_is_one_instruction(
    padding: int, emulated: EmulatedSystem, runner: Path, tmp_path: Path
) -> None:
    shape = (1, 16, 13, 13)
    module = of_one_operator(
        lambda x: relax.op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(padding, padding)), shape
    )
    backend = backend_of(target("cortex-a53"))
    scheduled = build_scheduled(PackChannels(8)(module), backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert re.search(r"\tfmax\tv", code) and not re.search(r"\t(bif|bsl|bit|fcmg.)\tv", code)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    x[0, 0, 4, 4], x[0, 2, :8], x[0, 3, 2, 2] = np.nan, -3e38, np.inf
    expected = run_all(read_graph(module), [x])[0]
    assert np.isnan(expected).any()
    found = np.frombuffer(ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, "cortex-a53", [x]), np.float32)
    assert np.array_equal(found.reshape(expected.shape), expected, equal_nan=True)
