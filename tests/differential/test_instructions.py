"""Test dot products, bfloat16 and exp: the emitted instructions of the target, and their results."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.differential.kernels import HOST, of_one_operator, run
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.schedules.registry import apply_template
from tvmflow.support.dtypes import numpy_dtype
from tvmflow.targets.resolve import ResolvedTarget


@pytest.mark.parametrize(
    ("mcpu", "mtriple", "data", "instruction"),
    [
        ("znver4", "x86_64-linux-gnu", "uint8", "vpdpbusd"),
        ("alderlake", "x86_64-linux-gnu", "uint8", "vpdpbusd"),
        ("skylake-avx512", "x86_64-linux-gnu", "uint8", "vpmaddwd"),
        ("x86-64-v3", "x86_64-linux-gnu", "uint8", "vpmaddwd"),
        ("x86-64", "x86_64-linux-gnu", "uint8", "pmaddwd"),
        ("cortex-a76", "aarch64-linux-gnu", "int8", "sdot"),
        ("neoverse-v1", "aarch64-linux-gnu", "uint8", "usdot"),
        ("znver4", "x86_64-linux-gnu", "bfloat16", "vdpbf16ps"),
        ("sapphirerapids", "x86_64-linux-gnu", "uint8", "tdpbusd"),
        ("sapphirerapids", "x86_64-linux-gnu", "int8", "tdpbssd"),
        ("graniterapids", "x86_64-linux-gnu", "bfloat16", "tdpbf16ps"),
        ("neoverse-v1", "aarch64-linux-gnu", "bfloat16", "bfdot"),
    ],
)
def test_neighbours_are_multiplied_by_the_instruction_of_the_target(
    mcpu: str, mtriple: str, data: str, instruction: str
) -> None:
    """For targets that are not at hand the code is looked at; where this machine has the instruction, tests run it."""
    target = CpuBackend(ResolvedTarget("llvm", mcpu, mtriple, (), 2, "g++"))
    x = relax.Var("x", relax.TensorType((1, 2, 8, 8, 16), data))
    low, total = ("bfloat16", "float32") if data == "bfloat16" else ("int8", "int32")
    weight = constant(np.ones((2, 2, 3, 3, 16, 16), np.float32).astype(numpy_dtype(low)), low)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = relax.op.nn.conv2d(
                x,
                weight,
                padding=1,
                data_layout="NCHW16c",
                kernel_layout="OIHW16i16o",
                out_layout="NCHW16c",
                out_dtype=total,
            )
            out = builder.emit_output(conv)
        builder.emit_func_output(out)
    (workload,) = extract_workloads(lower(builder.get(), target))
    match = target.template_for(workload.function)
    assert match is not None and (match[1][0].get("dot") or match[1][0].get("tiles"))
    schedule = apply_template(workload.function, match[0], match[1][0])
    with target.tvm_target() as tvm_target:
        built = tvm.compile(tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")}), tvm_target)
    assert f"\t{instruction}" in built.mod.inspect_source("asm")


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("channels", "outputs", "side", "taps", "stride"),
    [(3, 24, 11, 3, 2), (16, 40, 9, 1, 1), (24, 16, 7, 3, 1), (64, 8, 14, 5, 2)],
)
def test_integers_are_exact_where_only_int16_is_multiplied(
    mcpu: str, signed: bool, channels: int, outputs: int, side: int, taps: int, stride: int
) -> None:
    """The extremes of both types are among the values."""
    target = CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    draw, data = np.random.default_rng(channels), "int8" if signed else "uint8"
    limits = np.iinfo(data)
    image = draw.choice([limits.min, 0, 1, limits.max], (1, channels, side, side)).astype(data)
    weight = draw.choice([-128, -1, 3, 127], (outputs, channels, taps, taps)).astype(np.int8)
    x = relax.Var("x", relax.TensorType(image.shape, data))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = relax.op.nn.conv2d(x, constant(weight, "int8"), strides=stride, padding=taps // 2, out_dtype="int32")
            out = builder.emit_output(conv)
        builder.emit_func_output(out)
    computed = run(build_scheduled(target.pack(builder.get(), None)[0], target, {})[0], image)
    wide = np.pad(image.astype(np.int64), [(0, 0), (0, 0), *[(taps // 2,) * 2] * 2])
    windows = np.lib.stride_tricks.sliding_window_view(wide[0], (taps, taps), (1, 2))[:, ::stride, ::stride]
    assert np.array_equal(computed[0], np.einsum("cyxij,ocij->oyx", windows, weight.astype(np.int64)))


@pytest.mark.parametrize("length", [1, 5, 6, 7, 8, 11, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_bfloat16_rounds_to_nearest_ties_to_even(length: int, mcpu: str) -> None:
    """Ties are half of all values; -0, the largest and infinity are there too, in vectors of many widths."""
    target = HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    executable = build_scheduled(_cast_to_bfloat16(length), target, {})[0]
    bits = np.random.default_rng(length).integers(0x00800000, 0x7F000000, (3, length), dtype=np.uint32)
    bits[::2] = bits[::2] & 0xFFFF0000 | 0x8000
    x = bits.view(np.float32) * np.where(bits & 1, -1, 1).astype(np.float32)
    x[0, :1], x[1, :1], x[2, :1] = -0.0, np.finfo(np.float32).max, -np.inf
    computed = run(executable, x)
    assert np.array_equal(computed.view(np.uint16), x.astype(numpy_dtype("bfloat16")).view(np.uint16))


@pytest.mark.parametrize(
    ("mcpu", "mtriple", "instruction"),
    [("znver4", "x86_64-linux-gnu", "cvtneps2bf16"), ("neoverse-v1", "aarch64-linux-gnu", "bfcvtn")],
)
def test_bfloat16_is_rounded_by_the_instruction_of_the_target(mcpu: str, mtriple: str, instruction: str) -> None:
    executable, *_ = build_scheduled(
        _cast_to_bfloat16(96), CpuBackend(ResolvedTarget("llvm", mcpu, mtriple, (), 2, "g++")), {}
    )
    code = "".join(m.inspect_source("asm") for m in [executable.mod, *executable.mod.imports] if m.kind == "llvm")
    assert instruction in code


def _cast_to_bfloat16(length: int) -> Any:
    return of_one_operator(lambda x: relax.op.astype(x, "bfloat16"), (3, length))


@pytest.mark.parametrize("length", [1, 6, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_exp_is_right_to_one_unit_in_the_last_place(length: int, mcpu: str) -> None:
    """From where it is 0 to where it is infinite, and of what is no number."""
    target = HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    executable = build_scheduled(of_one_operator(relax.op.exp, (64, length)), target, {})[0]
    x = np.random.default_rng(length).uniform(-106, 90, (64, length)).astype(np.float32)
    x[:8, 0] = 0.0, -0.0, np.inf, -np.inf, np.nan, 88.722, 88.723, -103.97
    computed = run(executable, x)
    with np.errstate(over="ignore"):
        wanted = np.exp(x.astype(np.float64))
        rounded = wanted.astype(np.float32)
    assert np.array_equal(np.isnan(computed), np.isnan(x))
    limited = np.isfinite(rounded)
    assert np.array_equal(computed[np.isinf(rounded)], rounded[np.isinf(rounded)])
    assert (np.abs(computed[limited] - wanted[limited]) <= np.spacing(rounded[limited])).all()


def test_exp_multiplies_by_a_power_of_two_in_one_instruction_of_avx512() -> None:
    target = CpuBackend(ResolvedTarget("llvm", "znver4", "x86_64-linux-gnu", (), 2, "g++"))
    executable, *_ = build_scheduled(of_one_operator(relax.op.exp, (64, 96)), target, {})
    code = "".join(m.inspect_source("asm") for m in [executable.mod, *executable.mod.imports] if m.kind == "llvm")
    assert "vscalefps" in code


@pytest.mark.parametrize("length", [1, 6, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_sigmoid_is_right_of_every_number(length: int, mcpu: str) -> None:
    """Of small results (below 0) to a rounding of x, at both ends 0 and 1, and of what is no number."""
    target = HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    executable = build_scheduled(of_one_operator(relax.op.sigmoid, (64, length)), target, {})[0]
    draw = np.random.default_rng(length)
    x = (draw.uniform(-87, 87, (64, length)) * 10.0 ** draw.integers(-6, 1, (64, 1))).astype(np.float32)
    x[:9, 0] = 0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, -120.0, 120.0
    computed = run(executable, x)
    wanted = 1 / (1 + np.exp(np.minimum(-x.astype(np.float64), 700)))
    assert np.array_equal(np.isnan(computed), np.isnan(x))
    assert computed[:9, 0].tolist()[:4] == [0.5, 0.5, 1, 0] and computed[5:9, 0].tolist() == [1, 0, 0, 1]
    known = np.abs(x) < 88
    allowed = (3e-7 + 7.5e-8 * np.maximum(-x, 0)) * wanted
    assert (np.abs(computed - wanted)[known] <= allowed[known]).all()


@pytest.mark.parametrize("length", [1, 6, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_erf_is_right_to_three_units_of_one(length: int, mcpu: str) -> None:
    """Also near 0, where its own size counts, from where it is 1, and of what is no number."""
    target = HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    executable = build_scheduled(of_one_operator(relax.op.erf, (64, length)), target, {})[0]
    draw = np.random.default_rng(length)
    x = (draw.uniform(-5, 5, (64, length)) * 10.0 ** draw.integers(-6, 1, (64, 1))).astype(np.float32)
    x[:7, 0] = 0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0
    computed = run(executable, x)
    wanted = np.vectorize(math.erf)(x.astype(np.float64))
    assert np.array_equal(np.isnan(computed), np.isnan(x))
    known = ~np.isnan(x)
    assert (np.abs(computed - wanted)[known] <= 3e-7 * np.abs(wanted)[known]).all()


@pytest.mark.parametrize("length", [1, 6, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_gelu_is_right_to_two_units_of_its_input(length: int, mcpu: str) -> None:
    """Also where its polynomials meet; 0 of large negative numbers, and what is no number stays so."""
    target = HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    executable = build_scheduled(of_one_operator(relax.op.nn.gelu, (64, length)), target, {})[0]
    draw = np.random.default_rng(length)
    x = (draw.uniform(-9, 9, (64, length)) * 10.0 ** draw.integers(-6, 1, (64, 1))).astype(np.float32)
    x[:32, -1] = np.arange(-16, 16) / 2 + 0.25
    x[:5, 0] = 0.0, -0.0, np.inf, np.nan, 1e30
    computed = run(executable, x)
    assert np.array_equal(np.isnan(computed), np.isnan(x))
    assert computed[:3, 0].tolist() == [0, 0, np.inf]
    known = np.isfinite(x)
    wanted = np.vectorize(lambda one: one * math.erfc(-one / math.sqrt(2)) / 2)(x[known].astype(np.float64))
    assert (np.abs(computed[known] - wanted) <= 2e-7 * np.abs(x[known])).all()


@pytest.mark.parametrize("operator", [relax.op.erf, relax.op.nn.gelu])
def test_avx512_selects_the_polynomials_of_erf_by_instruction(operator: Callable[[Any], Any]) -> None:
    target = CpuBackend(ResolvedTarget("llvm", "znver4", "x86_64-linux-gnu", (), 2, "g++"))
    executable, *_ = build_scheduled(of_one_operator(operator, (64, 96)), target, {})
    code = "".join(m.inspect_source("asm") for m in [executable.mod, *executable.mod.imports] if m.kind == "llvm")
    assert "vpermps" in code and "vdivps" not in code


@pytest.mark.parametrize("operator", [relax.op.exp, relax.op.tanh])
def test_functions_of_float16_are_right_to_one_unit_in_the_last_place(operator: Callable[[Any], Any]) -> None:
    executable = build_scheduled(of_one_operator(operator, (65, 1000), "float16"), HOST, {})[0]
    x = np.arange(65000).astype(np.uint16).view(np.float16).reshape(65, 1000)  # the largest NaNs are left out
    computed = run(executable, x)
    with np.errstate(all="ignore"):
        wanted = (np.exp if operator is relax.op.exp else np.tanh)(x.astype(np.float64)).astype(np.float16)
    assert np.array_equal(np.isnan(computed), np.isnan(x))
    known = ~np.isnan(x)
    distance = computed[known].view(np.int16).astype(int) - wanted[known].view(np.int16)
    assert abs(distance).max() <= 1 and (distance != 0).mean() < 2e-3


@pytest.mark.parametrize("length", [1, 6, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_tanh_is_right_to_four_units_of_its_own_size(length: int, mcpu: str) -> None:
    """Also of the smallest numbers, of which 1 - exp(-2 * x) keeps nothing; never above 1, and what is no number stays
    so.
    """
    target = HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    executable = build_scheduled(of_one_operator(relax.op.tanh, (64, length)), target, {})[0]
    draw = np.random.default_rng(length)
    x = (draw.uniform(-12, 12, (64, length)) * 10.0 ** draw.integers(-30, 1, (64, 1))).astype(np.float32)
    x[:8, 0] = 0.0, -0.0, np.inf, -np.inf, np.nan, 9.0, 1e30, 1e-38
    computed = run(executable, x)
    wanted = np.tanh(x.astype(np.float64))
    assert np.array_equal(np.isnan(computed), np.isnan(x))
    known = ~np.isnan(x)
    assert (np.abs(computed[known]) <= 1).all() and (computed[2:4, 0] == [1, -1]).all()
    assert (np.abs(computed - wanted)[known] <= 4e-7 * np.abs(wanted)[known]).all()


@pytest.mark.parametrize(
    ("mcpu", "mtriple", "dtype"),
    [
        ("znver4", "x86_64-linux-gnu", "float32"),
        ("cortex-a72", "aarch64-linux-gnu", "float32"),
        ("cortex-a76", "aarch64-linux-gnu", "float16"),
    ],
)
@pytest.mark.parametrize(
    "operator",
    [
        relax.op.exp,
        relax.op.sigmoid,
        relax.op.tanh,
        relax.op.nn.silu,
        relax.op.nn.softmax,
        relax.op.nn.gelu,
    ],
)
def test_no_function_is_a_call_for_single_values(
    operator: Callable[[Any], Any], mcpu: str, mtriple: str, dtype: str
) -> None:
    target = CpuBackend(ResolvedTarget("llvm", mcpu, mtriple, (), 2, "g++"))
    executable = build_scheduled(of_one_operator(operator, (4, 96), dtype), target, {})[0]
    code = "".join(m.inspect_source("asm") for m in [executable.mod, *executable.mod.imports] if m.kind == "llvm")
    assert not re.search(r"\b(expf?|tanhf?|erff?)\b", code)
