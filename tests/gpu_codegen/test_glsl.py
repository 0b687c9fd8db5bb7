"""Compare GLSL of random small kernels on lavapipe with numpy, and test unsupported expressions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu_codegen.convolution_case import conv_case, normal, random_of
from tests.gpu_codegen.kernels import Array, Case, bind_flat, check, lowered, new_schedule_of
from tvmflow.gpu_codegen import spirv
from tvmflow.gpu_codegen.glsl import glsl_of
from tvmflow.gpu_codegen.spirv import spirv_of
from tvmflow.support.errors import StageError, ToolchainError

Text = Callable[[Any], str]


def _elementwise(
    arrays: list[Array], compute: Any, wanted: Array, tolerance: float = 0, threads: int = 32, lanes: int = 1
) -> Case:
    """A kernel that computes each element of arrays of one shape."""
    from tvm import te

    tensors = [te.placeholder(array.shape, str(array.dtype), name=f"x{i}") for i, array in enumerate(arrays)]
    made = te.compute(wanted.shape, lambda *at: compute(*(tensor[at] for tensor in tensors)), name="y0")
    schedule = new_schedule_of(*tensors, made)
    bind_flat(schedule, "y0", threads, lanes)
    return Case(schedule, arrays, wanted, tolerance)


def _glsl(case: Case) -> str:
    return glsl_of(lowered(case.schedule)[0])


def test_functions(tmp_path: Path) -> None:
    from tvm import tirx

    x = np.concatenate([np.linspace(-6, 6, 700), [0, 1e-20, 0.999999, 1, 1.000001, 50, -50]]).astype(np.float32)
    halves, positive = np.linspace(-4, 4, 33).astype(np.float32), np.linspace(0.01, 9, 333).astype(np.float32)
    erf = np.vectorize(math.erf)
    cases = [
        _elementwise([x], tirx.erf, erf(x).astype(np.float32), 3e-7),
        _elementwise([x], tirx.tanh, np.tanh(x), 2e-6),
        _elementwise([x], tirx.sigmoid, 1 / (1 + np.exp(-x)), 2e-6),
        _elementwise([halves], tirx.exp, np.exp(halves), 2e-4),
        _elementwise([halves], tirx.round, np.round(halves)),
        _elementwise([halves], tirx.floor, np.floor(halves)),
        _elementwise([halves], tirx.ceil, np.ceil(halves)),
        _elementwise([halves], tirx.trunc, np.trunc(halves)),
        _elementwise([halves], tirx.abs, np.abs(halves)),
        _elementwise(
            [halves], lambda v: tirx.fmod(v, tirx.const(1.5, "float32")), np.fmod(halves, np.float32(1.5)), 1e-6
        ),
        _elementwise([halves], lambda v: tirx.power(v, tirx.const(3.0, "float32")), halves**3, 1e-4),
        _elementwise([positive], lambda v: tirx.power(v, tirx.const(0.75, "float32")), positive**0.75, 1e-4),
        _elementwise([positive], tirx.log, np.log(positive), 1e-5),
        _elementwise([positive], tirx.sqrt, np.sqrt(positive), 1e-6),
        _elementwise([positive], tirx.rsqrt, 1 / np.sqrt(positive), 1e-4),
        _elementwise([halves.astype(np.float16)], tirx.exp, np.exp(halves).astype(np.float16), 0.04),
        _elementwise([halves.astype(np.float16)], tirx.erf, erf(halves.astype(np.float16)).astype(np.float16), 1e-3),
    ]
    check(tmp_path, cases)


@pytest.mark.parametrize(("seed", "most_texels"), [(0, 0), (1, 1 << 16)])
def test_elementwise_chains_of_odd_shapes(tmp_path: Path, seed: int, most_texels: int) -> None:
    from tvm import tirx

    random, cases = random_of(seed), []
    for dtype, lanes in (("float32", 1), ("float32", 4), ("float16", 1), ("float16", 4), ("float32", 2), ("int32", 4)):
        shape = (
            int(random.integers(1, 4)),
            int(random.integers(1, 30)),
            int(random.integers(1, 9)) * (lanes if lanes > 1 else 1),
        )
        a, b = ((random.normal(size=shape) * 4).astype(dtype) for _ in range(2))
        zero = tirx.const(0, dtype)
        cases.append(
            _elementwise(
                [a, b],
                lambda u, v, zero=zero: tirx.max(u * v + u, zero) - tirx.min(v, u),
                np.maximum(a * b + a, 0) - np.minimum(b, a),
                0.06 if dtype == "float16" else 1e-5,
                int(random.integers(1, 65)),
                lanes,
            )
        )
    check(tmp_path, cases, most_texels)


@pytest.mark.few(2)
@pytest.mark.parametrize("most_texels", [0, 1 << 16])
@pytest.mark.parametrize("lanes", [1, 4])
def test_small_integers(tmp_path: Path, lanes: int, most_texels: int) -> None:
    from tvm import tirx

    def narrow(value: Any, least: int, most: int, dtype: str) -> Any:
        return tirx.max(
            tirx.min(tirx.round(value * tirx.const(0.37, "float32")), tirx.const(float(most), "float32")),
            tirx.const(float(least), "float32"),
        ).astype(dtype)

    shape = (5, 16)
    x = (normal(3, shape) * 300).astype(np.float32)
    scaled = np.round(x * np.float32(0.37))
    signed, other = (random_of(seed).integers(-128, 128, shape).astype(np.int8) for seed in (4, 5))
    plain = signed.astype(np.uint8)
    cases = [
        _elementwise([x], lambda v: narrow(v, -128, 127, "int8"), scaled.clip(-128, 127).astype(np.int8), 0, 8, lanes),
        _elementwise([x], lambda v: narrow(v, 0, 255, "uint8"), scaled.clip(0, 255).astype(np.uint8), 0, 8, lanes),
        _elementwise([signed, other], lambda a, b: a + b, signed + other, 0, 8, lanes),
        _elementwise([signed, other], lambda a, b: tirx.max(a, b), np.maximum(signed, other), 0, 8, lanes),
        _elementwise(
            [signed, other],
            lambda a, b: a.astype("int32") * b.astype("int32"),
            signed.astype(np.int32) * other,
            0,
            8,
            lanes,
        ),
        _elementwise([plain], lambda v: v * tirx.const(3, "uint8"), plain * np.uint8(3), 0, 8, lanes),
        _elementwise([plain], lambda v: v.astype("int8"), plain.view(np.int8), 0, 8, lanes),
        _elementwise(
            [signed], lambda v: v.astype("float32") * tirx.const(0.1, "float32"), signed * np.float32(0.1), 0, 8, lanes
        ),
        _elementwise([signed, other], lambda a, b: a < b, signed < other, 0, 8, lanes),
    ]
    check(tmp_path, cases, most_texels)
    assert ("unpack_int8" in _glsl(cases[2])) == (lanes == 4)


def test_integer_division_and_wide_integers(tmp_path: Path) -> None:
    from tvm import tirx

    a = np.arange(-40, 41, dtype=np.int32)
    wide = (a.astype(np.int64) << 33) + 5
    cases = [
        _elementwise([a], lambda v: tirx.floordiv(v, tirx.const(7, "int32")), a // 7),
        _elementwise([a], lambda v: tirx.floormod(v, tirx.const(7, "int32")), a % 7),
        _elementwise([a], lambda v: tirx.floordiv(v, tirx.const(8, "int32")), a // 8),
        _elementwise([a], lambda v: tirx.floormod(v, tirx.const(8, "int32")), a % 8),
        _elementwise([a], lambda v: tirx.truncdiv(v, tirx.const(7, "int32")), np.trunc(a / 7).astype(np.int32)),
        _elementwise([a], lambda v: tirx.truncmod(v, tirx.const(7, "int32")), np.fmod(a, 7)),
        _elementwise(
            [a],
            lambda v: tirx.floordiv(tirx.const(50, "int32"), tirx.Select(v == 0, tirx.const(1, "int32"), v)),
            50 // np.where(a == 0, 1, a),
        ),
        _elementwise(
            [wide],
            lambda v: tirx.max(v * tirx.const(3, "int64"), tirx.const(-(1 << 40), "int64")),
            np.maximum(wide * 3, -(1 << 40)),
        ),
        _elementwise(
            [a],
            lambda v: (v << tirx.const(2, "int32")) ^ (v & tirx.const(0x55, "int32")) | (v >> tirx.const(1, "int32")),
            (a << 2) ^ (a & 0x55) | (a >> 1),
        ),
    ]
    check(tmp_path, cases)


def test_numbers_are_the_same(tmp_path: Path) -> None:
    from tvm import tirx

    zeros = np.zeros(3, np.float32)
    numbers = [
        1e-5,
        0.1,
        1 / 3,
        -0.0,
        float(np.finfo(np.float32).max),
        float(np.finfo(np.float32).tiny),
        math.inf,
        -math.inf,
        16777217.0,
        6.1e-5,
    ]
    cases = [
        _elementwise([zeros], lambda v, n=n: tirx.max(v, v) + tirx.const(n, "float32"), zeros + np.float32(n))
        for n in numbers
    ]
    cases += [
        _elementwise(
            [zeros],
            lambda v, n=n: v.astype("float16") + tirx.const(n, "float16"),
            zeros.astype(np.float16) + np.float16(n),
        )
        for n in (0.1, -1e-3, 65504.0)
    ]
    least = tirx.const(-(1 << 31), "int32")
    integers = zeros.astype(np.int32)
    cases.append(_elementwise([integers], lambda v: v + least, integers + np.int32(-(1 << 31))))
    nan = _elementwise([zeros], lambda v: v + tirx.const(math.nan, "float32"), np.full(3, np.nan, np.float32))
    check(tmp_path, [*cases, nan])


@pytest.mark.few(3)
@pytest.mark.parametrize("most_texels", [0, 1 << 16])
@pytest.mark.parametrize(
    ("dtype", "sums"), [("float32", "float32"), ("float16", "float32"), ("float16", "float16"), ("int8", "int32")]
)
def test_convolutions(tmp_path: Path, dtype: str, sums: str, most_texels: int) -> None:
    cases = [conv_case(seed, dtype, sums) for seed in range(5)]
    check(tmp_path, cases, most_texels)
    assert ("texelFetch" in glsl_of(lowered(cases[0].schedule)[0], most_texels)) == bool(most_texels)
    if dtype == "float32":
        assert all(not re.search(r"conv_local_b\d+\[", _glsl(case)) for case in cases), "an array in registers is left"


def _softmax_case(seed: int) -> Case:
    """A softmax over rows whose maximum and sum are in memory of the group."""
    from tvm import te, tirx

    random = random_of(seed)
    shape = (int(random.integers(1, 6)), int(random.integers(2, 70)))
    x = normal(seed, shape) * 5
    a = te.placeholder(shape, "float32", name="x0")
    k, j = te.reduce_axis((0, shape[1]), "k"), te.reduce_axis((0, shape[1]), "j")
    most = te.compute(shape[:1], lambda i: te.max(a[i, k], k), name="most")
    total = te.compute(shape[:1], lambda i: te.sum(tirx.exp(a[i, j] - most[i]), j), name="total")
    made = te.compute(shape, lambda i, c: tirx.exp(a[i, c] - most[i]) / total[i], name="y0")
    schedule = new_schedule_of(a, made)
    row, column = schedule.get_loops(schedule.get_sblock("y0", "main"))
    schedule.bind(row, "blockIdx.x")
    _, thread = schedule.split(column, [None, 16])
    schedule.bind(thread, "threadIdx.x")
    for name in ("total", "most"):
        block = schedule.get_sblock(name, "main")
        schedule.compute_at(block, row, preserve_unit_loops=True)
        schedule.set_scope(block, 0, "shared")
        _, inner = schedule.split(schedule.get_loops(block)[-1], [None, 16])
        schedule.bind(inner, "threadIdx.x")
    wide = np.exp(x - x.max(1, keepdims=True))
    return Case(schedule, [x], (wide / wide.sum(1, keepdims=True)).astype(np.float32), 1e-5)


def test_softmax_in_memory_of_the_group(tmp_path: Path) -> None:
    cases = [_softmax_case(seed) for seed in range(4)]
    check(tmp_path, cases)
    text = _glsl(cases[0])
    assert "shared float" in text
    assert "barrier();" in text


def _pool_case(seed: int, *, is_max: bool) -> Case:
    from tvm import te

    random = random_of(seed)
    shape = (int(random.integers(1, 4)), int(random.integers(5, 12)), int(random.integers(5, 12)), 4)
    x = normal(seed, shape)
    a = te.placeholder(shape, "float32", name="x0")
    i, j = te.reduce_axis((0, 3), "i"), te.reduce_axis((0, 3), "j")
    reduce = te.max if is_max else te.sum
    made_of = (shape[0], (shape[1] - 3) // 2 + 1, (shape[2] - 3) // 2 + 1, 4)
    made = te.compute(made_of, lambda c, y, z, v: reduce(a[c, y * 2 + i, z * 2 + j, v], [i, j]), name="y0")
    schedule = new_schedule_of(a, made)
    bind_flat(schedule, "y0", 16)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))[:, ::2, ::2]
    return Case(schedule, [x], (windows.max((-2, -1)) if is_max else windows.sum((-2, -1))).astype(np.float32), 1e-5)


def test_pools(tmp_path: Path) -> None:
    check(tmp_path, [_pool_case(0, is_max=True), _pool_case(1, is_max=False), _pool_case(2, is_max=True)])


def _refused(compute: Any, dtype: str = "float32") -> str:
    with pytest.raises(StageError) as refused:
        _glsl(_elementwise([np.zeros(8, dtype)], compute, np.zeros(8, dtype)))
    return str(refused.value)


def test_what_glsl_cannot_say_is_named() -> None:
    from tvm import tirx

    assert "clz" in _refused(tirx.clz, "int32")
    assert "float64" in _refused(lambda v: v + v, "float64")
    with pytest.raises(StageError, match="8"):
        _glsl(_elementwise([np.zeros(64, np.float32)], lambda v: v + v, np.zeros(64, np.float32), 0, 4, 8))


def test_names_that_glsl_keeps_for_itself(tmp_path: Path) -> None:
    from tvm import te

    from tests.gpu_codegen.kernels import bind_flat

    a = te.placeholder((4, 4), "float32", name="x0")
    made = te.compute((4, 4), lambda sample, gl_x: a[sample, gl_x] + 1, name="y0")
    schedule = new_schedule_of(a, made)
    bind_flat(schedule, "y0", 4)
    check(tmp_path, [Case(schedule, [np.zeros((4, 4), np.float32)], np.ones((4, 4), np.float32))])


def test_no_compiler_and_a_shader_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tvmflow.support.errors import DeviceError

    def none() -> None:
        raise DeviceError("no network")

    with pytest.raises(StageError, match="ERROR"):
        spirv_of("#version 450\nvoid main() { x = 1; }\n")
    with pytest.raises(ToolchainError, match="does not run"):
        spirv_of("void main() {}", tmp_path / "none")
    monkeypatch.setattr(spirv, "software_drivers", none)
    monkeypatch.setattr(spirv.shutil, "which", lambda _name: None)
    with pytest.raises(ToolchainError, match="no glslangValidator on PATH"):
        spirv_of("void main() { }")


@pytest.mark.parametrize("most_texels", [0, 1 << 16])
def test_float16_that_is_only_stored(tmp_path: Path, most_texels: int) -> None:
    from tvm import tirx

    x = normal(0, (3, 16), "float16")
    half, third = tirx.const(0.5, "float16"), tirx.const(1 / 3, "float16")
    wanted = np.tanh(np.maximum(x * np.float32(0.5), np.float32(np.float16(1 / 3)))).astype(np.float16)
    cases = [
        _elementwise([x], lambda v: tirx.tanh(tirx.max(v * half, third)), wanted, 1e-3, 8, lanes) for lanes in (1, 4)
    ]
    cases += [conv_case(seed, "float16", "float16") for seed in range(2)]
    check(tmp_path, cases, most_texels, computes_float16=False)
    text = glsl_of(lowered(cases[1].schedule)[0], most_texels, computes_float16=False)
    assert "explicit_arithmetic" not in text
