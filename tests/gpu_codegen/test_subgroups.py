"""Test subgroup reductions on lavapipe, with subgroups smaller than, equal to and larger than a group, and any
length.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu_codegen.drivers import run_on
from tests.gpu_codegen.kernels import Case, new_schedule_of
from tests.gpu_codegen.test_networks import gpu_backend
from tests.gpu_codegen.vulkan_networks import Array, HandMade, Kernel, Value, build, run
from tvmflow.backends.gpu import OpenClBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.gpu_codegen.glsl import glsl_of
from tvmflow.gpu_codegen.launches import Launch, lower_for_device
from tvmflow.gpu_codegen.opencl import opencl_of
from tvmflow.gpu_codegen.spirv import spirv_of
from tvmflow.ir.tir.blocks import classify_blocks
from tvmflow.passes.pipeline import canonicalize
from tvmflow.schedules.gpu.shared_reduction import share_sums
from tvmflow.schedules.registry import template_for
from tvmflow.support.errors import StageError
from tvmflow.targets.gpu_features import GPUS
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import software_drivers

LENGTHS = (1, 7, 64, 67)


def _normal(random: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    if dtype == "int8":
        return random.integers(-128, 128, shape).astype(dtype)
    return random.normal(size=shape).astype(dtype)


def _rows(random: np.random.Generator, length: int, threads: int) -> Case:
    """Norms of rows: two sums, the second of what the first left."""
    from tvm import te, tirx

    x = _normal(random, (int(random.integers(1, 6)), length))
    a, k, j = (
        te.placeholder(x.shape, "float32", name="x0"),
        te.reduce_axis((0, length), "k"),
        te.reduce_axis((0, length), "j"),
    )
    total = te.compute(x.shape[:1], lambda i: te.sum(a[i, k], k), name="total")
    mean = te.compute(x.shape[:1], lambda i: total[i] / float(length), name="mean")
    spread = te.compute(x.shape[:1], lambda i: te.sum((a[i, j] - mean[i]) * (a[i, j] - mean[i]), j), name="spread")
    made = te.compute(
        x.shape, lambda i, c: (a[i, c] - mean[i]) * tirx.rsqrt(spread[i] / float(length) + 1e-3), name="y0"
    )
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    return _shared(new_schedule_of(a, made), [x], wanted, threads, 1e-4)


def _softmax(random: np.random.Generator, length: int, threads: int) -> Case:
    from tvm import te, topi

    x = _normal(random, (int(random.integers(1, 6)), length)) * 5
    a = te.placeholder(x.shape, "float32", name="x0")
    softmax = topi.nn.softmax(a)
    made = te.compute(x.shape, lambda i, c: softmax[i, c], name="y0")
    wide = np.exp(x - x.max(1, keepdims=True))
    return _shared(new_schedule_of(a, made), [x], wide / wide.sum(1, keepdims=True), threads, 1e-5)


def _sums(random: np.random.Generator, length: int, threads: int) -> Case:
    """Sums that are the kernel's outputs."""
    from tvm import te

    x = _normal(random, (length, int(random.integers(1, 6))), "int8").astype(np.int32)
    a, k = te.placeholder(x.shape, "int32", name="x0"), te.reduce_axis((0, length), "k")
    made = te.compute(x.shape[1:], lambda i: te.sum(a[k, i], k), name="y0")
    return _shared(new_schedule_of(a, made), [x], x.sum(0).astype(np.int32), threads)


def _dense(random: np.random.Generator, length: int, threads: int, dtype: str, sums: str) -> Case:
    """A dense layer on channels by four, with a bias."""
    from tvm import te

    outs = int(random.integers(1, 5))
    x, w = _normal(random, (1, length, 1, 1, 4), dtype), _normal(random, (outs, length, 4, 4), dtype)
    bias = _normal(random, (1, outs, 1, 1, 4), "int8" if dtype == "int8" else sums).astype(sums)
    a, b, c = (te.placeholder(one.shape, str(one.dtype), name=f"x{at}") for at, one in enumerate((x, w, bias)))
    k, v = te.reduce_axis((0, length), "k"), te.reduce_axis((0, 4), "v")
    total = te.compute(
        bias.shape,
        lambda n, o, y, z, u: te.sum(a[n, k, y, z, v].astype(sums) * b[o, k, v, u].astype(sums), [k, v]),
        name="total",
    )
    made = te.compute(bias.shape, lambda *at: total[at] + c[at], name="y0")
    wanted = np.einsum("nkyzv,okvu->noyzu", x.astype(np.float64), w.astype(np.float64)) + bias
    tolerance = {"int32": 0, "float32": 1e-4, "float16": 0.2}[sums]
    return _shared(new_schedule_of(a, b, c, made), [x, w, bias], wanted.astype(sums), threads, tolerance)


def _pool(random: np.random.Generator, length: int, threads: int, *, is_max: bool) -> Case:
    """A pool of all pixels, after which an image is divided by it."""
    from tvm import te

    shape = (1, int(random.integers(1, 5)), length, 3, 4)
    x = _normal(random, shape)
    a, i, j = te.placeholder(shape, "float32", name="x0"), te.reduce_axis((0, length), "i"), te.reduce_axis((0, 3), "j")
    reduce = te.max if is_max else te.sum
    pooled = te.compute((1, shape[1], 1, 1, 4), lambda n, c, y, z, v: reduce(a[n, c, i, j, v], [i, j]), name="pooled")
    made = te.compute(shape, lambda n, c, y, z, v: a[n, c, y, z, v] - pooled[n, c, 0, 0, v], name="y0")
    found = x.max((2, 3), keepdims=True) if is_max else x.sum((2, 3), keepdims=True)
    return _shared(new_schedule_of(a, made), [x], x - found, threads, 1e-4)


def _shared(schedule: Any, given: list[Array], wanted: Array, threads: int, tolerance: float = 0) -> Case:
    share_sums(schedule, classify_blocks(schedule), threads)
    return Case(schedule, given, wanted, tolerance)


def _launch(case: Case) -> Launch:
    import tvm

    target = gpu_backend("vulkan").tvm_target()
    (launch,) = lower_for_device(tvm.IRModule({"k0": case.schedule.mod["main"]}), target).launches.values()
    return launch


def _check(folder: Path, cases: list[Case], lanes: int, *, most_texels: int = 0) -> None:
    """Run kernels one after the other, each on inputs of its own, with subgroups of so many threads, and compare."""
    values: list[Value] = []
    steps, inputs = [], 0
    for number, case in enumerate(cases):
        launch, first = _launch(case), len(values)
        values += [Value("INPUT", one.shape, str(one.dtype), inputs + at) for at, one in enumerate(case.given)]
        values.append(Value("OUTPUT", case.wanted.shape, str(case.wanted.dtype), number))
        inputs += len(case.given)
        code = spirv_of(glsl_of(launch.function, most_texels))
        steps.append(
            Kernel(code, launch.groups, launch.group_size, tuple(first + one.index for one in launch.arguments))
        )
    network, given = HandMade(values, steps), [one for case in cases for one in case.given]
    done = run(build(folder, network), network, given, environment={"LP_NATIVE_VECTOR_WIDTH": str(32 * lanes)})
    assert not done.error
    for number, (case, output) in enumerate(zip(cases, done.outputs, strict=True)):
        np.testing.assert_allclose(output, case.wanted, rtol=0, atol=case.tolerance, err_msg=f"case {number}")


@pytest.mark.parametrize(("threads", "lanes"), [(5, 8), (8, 16), (32, 8), (64, 4)])
def test_totals_are_right_whatever_the_group_and_the_subgroup(tmp_path: Path, threads: int, lanes: int) -> None:
    random = np.random.default_rng(threads)
    cases = [make(random, length, threads) for length in LENGTHS for make in (_rows, _softmax, _sums)]
    _check(tmp_path, cases, lanes, most_texels=1 << 16 if threads == 8 else 0)


@pytest.mark.parametrize(
    ("dtype", "sums"), [("float32", "float32"), ("float16", "float32"), ("float16", "float16"), ("int8", "int32")]
)
def test_totals_of_vectors_are_right(tmp_path: Path, dtype: str, sums: str) -> None:
    random = np.random.default_rng(len(dtype))
    cases = [_dense(random, length, threads, dtype, sums) for length, threads in ((1, 8), (7, 32), (31, 8), (33, 32))]
    if dtype == "float32":
        cases += [_pool(random, length, 8, is_max=is_max) for length in (1, 7) for is_max in (False, True)]
    _check(tmp_path, cases, 8)


def _dense_layer(inputs: int, outputs: int) -> Any:
    """Return a dense layer of one row as the backends of GPUs pack it."""
    from tvm import te

    x, w = (
        te.placeholder((1, inputs // 4, 1, 1, 4), name="x"),
        te.placeholder((outputs // 4, inputs // 4, 1, 1, 4, 4), name="w"),
    )
    axes = [te.reduce_axis((0, extent)) for extent in (inputs // 4, 1, 1, 4)]
    made = te.compute(
        (1, outputs // 4, 1, 1, 4),
        lambda b, o, h, z, v: te.sum(x[b, axes[0], h + axes[1], z + axes[2], axes[3]] * w[o, *axes, v], axes),
        name="conv2d",
    )
    return te.create_prim_func([x, w, made])


@pytest.mark.parametrize(("kind", "shared"), [("nvidia", [32, 128]), ("lavapipe", [8, 32]), ("generic", [])])
def test_sums_are_shared_first_where_the_kind_says_so(kind: str, shared: list[int]) -> None:
    for size, found in ((512, shared), (8, [])):
        _, candidates = (
            template_for(_dense_layer(size, 1000), GPUS[kind], gpu_backend("vulkan").templates()) or pytest.fail()
        )
        assert [knobs["shared"] for knobs in candidates[: len(found)]] == found
        assert not any(knobs["shared"] for knobs in candidates[len(found) :])


def test_opencl_never_shares_sums() -> None:
    backend = OpenClBackend(replace(host_target(), kind="opencl", options={"kind": "nvidia", "software": False}))
    assert GPUS["nvidia"].subgroups and not backend.gpu_features().subgroups
    with pytest.raises(StageError, match="subgroups"):
        opencl_of(_launch(_softmax(np.random.default_rng(0), 64, 8)).function, "k0")


def _network_of_norm(name: str) -> Any:
    import torch

    torch.manual_seed(0)
    norm = {"layer": torch.nn.LayerNorm, "rms": torch.nn.RMSNorm}[name](96)
    return torch.nn.Sequential(torch.nn.Linear(8, 96), norm, torch.nn.Linear(96, 8)).eval()


@pytest.mark.parametrize(("name", "shape"), [("layer", (1, 13, 8)), ("rms", (2, 7, 8)), ("layer", (2, 3, 8))])
def test_norms_of_packed_channels_are_one_launch_and_right(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    import torch

    layers = _network_of_norm(name)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    module = canonicalize(ExportedModel(layers, (TensorSpec("x", x.shape),)).to_relax())
    backend = gpu_backend("vulkan")
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    assert len(scheduled.executable.program.kernels["packed_norm"].launches) == 1
    network = Network("any@vulkan:float32", (TensorSpec("x", x.shape),), ("y",), 1)
    write_network(tmp_path / "network.so", scheduled, network, Command(("gcc",)))
    wanted = layers(torch.from_numpy(x)).detach().numpy()
    (found,) = run_on(software_drivers().lavapipe, tmp_path / "network.so", (x,), tmp_path, 1)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
