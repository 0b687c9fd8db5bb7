"""Test quantization by AVX-512 instructions: equal to the arithmetic form for every number, which is fully replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import LocalRunner, build_scheduled
from tvmflow.targets.cpu_features import has_wide_vectors
from tvmflow.targets.resolve import ResolvedTarget, host_target

SERVER = CpuBackend(ResolvedTarget("llvm", "skylake-avx512", "x86_64-linux-gnu", (), 1, "cc"))
BYTES = {"uint8": (0, 255), "int8": (-128, 127)}


def _module(dtype: str, zero: int, factor: int = 0) -> Any:
    """Return clip(round(x) + zero) of 32 x 16 numbers as bytes, as the quantizer writes it; with a factor its product
    with the bytes, in 32 bits.
    """
    low, high = BYTES[dtype]
    x, builder = relax.Var("x", relax.TensorType((32, 16), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            rounded = builder.emit(relax.op.round(x))
            moved = builder.emit(relax.op.add(rounded, relax.const(float(zero), "float32")))
            limited = builder.emit(relax.op.clip(moved, low, high))
            made = relax.op.astype(limited, dtype)
            if factor:
                integers = builder.emit(relax.op.astype(builder.emit(made), "int32"))
                made = relax.op.multiply(integers, relax.const(factor, "int32"))
            output = builder.emit_output(made)
        builder.emit_func_output(output)
    return builder.get()


def _numbers() -> Any:
    """Return halves between all bytes, and numbers that no integer holds."""
    drawn = np.random.default_rng(5).standard_normal(384) * 200
    edges = [
        1e9,
        -1e9,
        2.0**31,
        -(2.0**31),
        2.0**32,
        3e9,
        -3e9,
        1e20,
        -1e20,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        255.5,
        -128.5,
        127.5,
    ]
    return np.concatenate([drawn, np.arange(-56, 56) + 0.5, edges]).astype(np.float32).reshape(32, 16)


KINDS = [("uint8", 0), ("uint8", 3), ("uint8", 255), ("int8", 0), ("int8", -7), ("int8", 127)]


@pytest.mark.parametrize(("dtype", "zero"), KINDS)
def test_bytes_are_those_of_the_definition(dtype: str, zero: int) -> None:
    backend = CpuBackend(host_target())
    if not has_wide_vectors(backend.tvm_target()):
        pytest.skip("this machine has no AVX-512")
    x = _numbers()
    expected = np.clip(np.rint(x) + np.float32(zero), *BYTES[dtype]).astype(dtype)
    (found,) = LocalRunner(_module(dtype, zero), backend).run(x)
    assert np.array_equal(found, expected) and len(np.unique(found)) > 50


@pytest.mark.parametrize(
    ("dtype", "zero", "wanted"), [("uint8", 0, "vcvtps2udq"), ("uint8", 3, "vcvtps2dq"), ("int8", 0, "vcvtps2dq")]
)
def test_no_rounding_by_itself_is_left(dtype: str, zero: int, wanted: str) -> None:
    executable = build_scheduled(_module(dtype, zero), SERVER, {}).executable
    text = "".join(part.inspect_source("asm") for part in executable.mod.imports if part.kind == "llvm")
    assert wanted in text and "vrndscale" not in text


@pytest.mark.parametrize(("dtype", "zero"), KINDS)
def test_bytes_that_integers_are_computed_from_are_no_bytes_between(dtype: str, zero: int) -> None:
    executable = build_scheduled(_module(dtype, zero, 70000), SERVER, {}).executable
    text = "".join(part.inspect_source("asm") for part in executable.mod.imports if part.kind == "llvm")
    assert "vcvtps2dq" in text and not any(name in text for name in ("vpmovdb", "vpmovusdb", "vpmovzxbd", "vpmovsxbd"))
    backend = CpuBackend(host_target())
    if has_wide_vectors(backend.tvm_target()):
        x = _numbers()
        expected = np.clip(np.rint(x) + np.float32(zero), *BYTES[dtype]).astype(np.int32) * 70000
        assert np.array_equal(LocalRunner(_module(dtype, zero, 70000), backend).run(x)[0], expected)
