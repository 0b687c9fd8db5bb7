"""Test every family of arm64 multiply instructions: present in the code, run under qemu, equal to the numpy definition.

Convolutions and dense layers of many shapes are one network, so that a family is compiled, linked and run once.
Integers bit for bit; floats within the rounding of their sums.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.devices.arm64 import linked, ran, target
from tests.devices.arm64_families import FAMILIES, Family, drawn
from tests.differential import test_attention as attention
from tests.traces import Traced, applied_from
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.kernel.apply_schedules import replay
from tvmflow.passes.layout.channel_permute import permute_channels
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.legalize.winograd import TILES
from tvmflow.quantization.mixed_precision import MixedPrecision, to_mixed_precision
from tvmflow.schedules.registry import apply_template
from tvmflow.support.dtypes import numpy_dtype
from tvmflow.tuning.records.traces import trace_json

# batch, channels, height, width; output channels, kernel, stride, padding, groups
CONVOLUTIONS = (
    (1, 16, 9, 9, 24, 3, 1, 1, 1),
    (2, 8, 7, 5, 16, 1, 1, 0, 1),
    (1, 3, 11, 11, 16, 3, 2, 1, 1),
    (1, 4, 9, 12, 8, 7, 2, 3, 1),
    (1, 19, 6, 13, 13, 3, 1, 1, 1),
    (1, 24, 8, 8, 24, 3, 2, 1, 24),
    (2, 13, 5, 7, 21, 5, 1, 2, 1),
    (1, 32, 4, 4, 32, 3, 1, 1, 2),
    (1, 40, 1, 1, 72, 1, 1, 0, 1),
    (1, 16, 13, 13, 40, 1, 2, 0, 1),
    (1, 1, 8, 8, 8, 3, 1, 1, 1),
    (1, 24, 7, 9, 24, 3, 1, 1, 6),
    (2, 40, 6, 7, 40, 3, 2, 1, 10),
    (1, 3, 32, 48, 8, 16, 16, 0, 1),
    (1, 16, 6, 16, 16, 3, 1, 1, 16),
    (2, 8, 5, 7, 8, 5, 1, 2, 8),
    (1, 8, 9, 11, 8, 5, 2, 2, 8),
    (1, 8, 8, 9, 8, 7, 1, 3, 8),
    (1, 8, 9, 9, 8, 7, 2, 0, 8),
)
DENSE = ((1, 64, 10), (3, 37, 24))
BITS = {"float32": np.float32, "float16": np.float16, "int32": np.int32}  # types of sums


def inputs_of(family: Family) -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(2)
    found = [drawn(draw, shape[:4], family.data) for shape in CONVOLUTIONS] + [
        drawn(draw, shape[:2], family.data) for shape in DENSE
    ]
    for x in found:
        if x.dtype.kind in "iu":
            x.reshape(-1)[: x.size // 2] = np.iinfo(x.dtype).min  # sums as large as they can be
    return found


def network(family: Family, data: str, total: str) -> Any:
    """Return a module with an input and an output for each convolution and dense layer, the weights those of the
    family.
    """
    draw = np.random.default_rng(1)
    shapes = [shape[:4] for shape in CONVOLUTIONS] + [shape[:2] for shape in DENSE]
    variables = [relax.Var(f"x{at}", relax.TensorType(shape, data)) for at, shape in enumerate(shapes)]
    weight_dtype = family.weight if family.data == data else data

    def weight(*shape: int) -> Any:
        values = drawn(draw, shape, family.weight)
        return constant(np.maximum(values, np.array(-127, values.dtype)), weight_dtype)

    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            outputs = []
            for x, (_, channels, _, _, outs, kernel, stride, padding, groups) in zip(
                variables, CONVOLUTIONS, strict=False
            ):
                outputs.append(
                    relax.op.nn.conv2d(
                        x,
                        weight(outs, channels // groups, kernel, kernel),
                        strides=stride,
                        padding=padding,
                        groups=groups,
                        out_dtype=total,
                    )
                )
            for x, (_, width, outs) in zip(variables[len(CONVOLUTIONS) :], DENSE, strict=True):
                outputs.append(relax.op.matmul(x, weight(width, outs), out_dtype=total))
            found = builder.emit_output(relax.Tuple([builder.emit(one) for one in outputs]))
        builder.emit_func_output(found)
    return builder.get()


@pytest.mark.few(3)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_of_instructions_equals_the_definition(
    family: Family, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    module, inputs = network(family, family.data, family.total), inputs_of(family)
    backend = backend_of(target(family.compiled))
    scheduled = build_scheduled(PackChannels(backend.cpu_features().channel_block)(module), backend, {})
    assert all(choice.schedule == "default" for choice in scheduled.kernels)
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert all(re.search(pattern, code) for pattern in family.code), family.code
    path = linked(tmp_path, scheduled, len(CONVOLUTIONS) + len(DENSE), backend)
    found = ran(path, runner, emulated, family.runs, inputs)
    wide = module if not family.bound else network(family, "float32", "float32")
    exact = run_all(read_graph(wide), [x.astype(np.float32) if family.bound else x for x in inputs])
    at = 0
    for index, expected in enumerate(exact):
        dtype = numpy_dtype(family.total)
        got = np.frombuffer(found, dtype, expected.size, at).reshape(expected.shape)
        at += got.nbytes
        if family.bound:
            error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected.astype(np.float64)).max()
            assert error <= family.bound, (index, error)
        else:
            assert got.dtype == expected.dtype and np.array_equal(got, expected), index
    assert at == len(found)


@pytest.mark.parametrize(
    ("processor", "dtype", "bound", "heads", "depth", "mask"),
    [
        ("cortex-a53", "float32", 1e-6, 2, 20, "added"),
        ("cortex-a76", "float32", 1e-6, 2, 20, ""),
        ("cortex-a76", "float32", 1e-6, 4, 6, "added"),
        ("cortex-a76", "float16", 2e-3, 2, 20, ""),
        ("cortex-a76", "float16", 2e-3, 2, 16, "rows"),
        ("cortex-a76", "float16_acc32", 5e-4, 2, 16, "added"),
        ("neoverse-n2", "bfloat16", 1e-2, 2, 20, "added"),
    ],
)
def test_attention_equals_float64(
    processor: str,
    dtype: str,
    bound: float,
    heads: int,
    depth: int,
    mask: str,
    runner: Path,
    emulated: EmulatedSystem,
    tmp_path: Path,
) -> None:
    """In the type of products and sums; a depth of 6 is rounded up to whole registers, 37 keys to whole blocks."""
    case = attention.Case(1, heads, 19, 37, depth, mask, True)
    module, net = attention.imported(case)
    kind, total = dtype.removesuffix("_acc32"), "float16" if dtype == "float16" else "float32"
    if kind != "float32":
        module = to_mixed_precision(module, MixedPrecision(kind, total, ("matmul",), ("softmax", "layer_norm")))
    inputs, backend = attention.inputs_of(case), backend_of(target(processor))
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    assert {("attention", "default"), ("packed_norm", "default")} <= {
        (choice.template, choice.schedule) for choice in scheduled.kernels
    }
    counted = {choice.dtype for choice in scheduled.kernels if choice.template == "attention"}
    assert counted == {"bfloat16" if kind == "bfloat16" else total}
    runs = "max" if processor == "neoverse-n2" else processor
    found = np.frombuffer(
        ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, runs, list(inputs)), np.float32
    )
    expected = attention.reference(net, inputs)
    assert np.abs(found.reshape(expected.shape) - expected).max() <= bound * np.abs(expected).max()


def test_sums_start_from_the_integers_of_their_own_branch(
    runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    draw = np.random.default_rng(4)

    def bytes_of(*shape: int) -> Any:
        return draw.integers(-127, 128, shape).astype(np.int8)

    x = relax.Var("x", relax.TensorType((1, 16, 9, 9), "int8"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            # Kernels of equal shapes are one; all sums are there before the first integer is added.
            weights = [bytes_of(24, 16, 3, 3), bytes_of(24, 16, 3, 3), bytes_of(16, 1, 3, 3), bytes_of(16, 1, 3, 3)]
            sums = [
                builder.emit(
                    relax.op.nn.conv2d(
                        x, constant(weight, "int8"), padding=1, groups=16 // weight.shape[1], out_dtype="int32"
                    )
                )
                for weight in weights
            ]
            added = [
                builder.emit(
                    relax.op.add(
                        one, constant(draw.integers(-(2**20), 2**20, (1, len(weight), 1, 1)).astype(np.int32), "int32")
                    )
                )
                for one, weight in zip(sums, weights, strict=True)
            ]
            found = builder.emit_output(relax.Tuple([*added, sums[0]]))
        builder.emit_func_output(found)
    module, backend = builder.get(), backend_of(target("cortex-a76"))
    scheduled = build_scheduled(PackChannels(8)(module), backend, {})
    assert not any("add" in choice.name for choice in scheduled.kernels)
    given = bytes_of(1, 16, 9, 9)
    path = linked(tmp_path, scheduled, 5, backend)
    got = np.frombuffer(ran(path, runner, emulated, "cortex-a76", [given]), np.int32)
    expected = run_all(read_graph(module), [given])
    assert np.array_equal(got, np.concatenate([one.reshape(-1) for one in expected]))
    hidden = 0
    for kernel in extract_workloads(lower(PackChannels(8)(module), backend)):
        match = backend.template_for(kernel.function)
        assert match is not None
        for knobs in match[1][:4]:
            trace = trace_json(apply_template(kernel.function, match[0], knobs))
            replay(kernel.function, trace)  # what a template hides is not read any more
            hidden += "UnsafeHideBufferAccess" in str(trace)
    assert hidden


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 3, 2, 1)], ids=str)
def test_an_image_is_rounded_in_rows_before_it_is_padded(
    padding: tuple[int, int, int, int], runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    draw = np.random.default_rng(5)
    weight = draw.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
    x = relax.Var("x", relax.TensorType((1, 3, 32, 32), "float32"))
    builder, op = relax.BlockBuilder(), relax.op
    top, left, bottom, right = padding
    with builder.function("main", [x]):
        with builder.dataflow():
            scaled = op.add(op.round(op.divide(x, constant(0.04, "float32"))), constant(7.0, "float32"))
            image = builder.emit(op.astype(op.clip(scaled, -128.0, 127.0), "int8"))
            if any(padding):
                image = builder.emit(op.nn.pad(image, [0, 0, 0, 0, top, bottom, left, right], pad_value=7.0))
            found = op.nn.conv2d(image, constant(weight, "int8"), strides=2, out_dtype="int32")
            found = builder.emit_output(builder.emit(found))
        builder.emit_func_output(found)
    module, backend = builder.get(), backend_of(target("cortex-a76"))
    scheduled = build_scheduled(PackChannels(8)(module), backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert re.search(r"\tst4\t", code) and "sqxtn" in code
    given = (3 * draw.standard_normal((1, 3, 32, 32))).astype(np.float32)
    got = np.frombuffer(ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, "cortex-a76", [given]), np.int32)
    expected = run_all(read_graph(module), [given])[0]
    assert np.array_equal(got.reshape(expected.shape), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_channels_are_moved_by_vectors(dtype: str, runner: Path, emulated: EmulatedSystem, tmp_path: Path) -> None:
    """A shuffle of 20 channels of two images, and then none, zeros and the rest of a block."""
    draw = np.random.default_rng(9)
    images = [draw.integers(-9, 99, (1, count, 4, 5, 8)).astype(dtype) for count in (2, 1)]
    channels: list[Any] = [*zip([0, 1] * 10, draw.integers(0, 8, 20).tolist(), strict=True), None, (0, 15)]
    inputs = [relax.Var(f"x{at}", relax.TensorType(image.shape, dtype)) for at, image in enumerate(images)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            found = builder.emit_output(permute_channels(builder, inputs, channels))
        builder.emit_func_output(found)
    backend = backend_of(target("cortex-a76"))
    path = linked(tmp_path, build_scheduled(builder.get(), backend, {}), 1, backend)
    got = np.frombuffer(ran(path, runner, emulated, "cortex-a76", images), dtype).reshape(1, 3, 4, 5, 8)
    flat = [image.transpose(0, 1, 4, 2, 3).reshape(1, -1, 4, 5) for image in images]
    expected = np.zeros((1, 24, 4, 5), dtype)
    for at, source in enumerate(channels):
        if source is not None:
            expected[:, at] = flat[source[0]][:, source[1]]
    assert np.array_equal(got.transpose(0, 1, 4, 2, 3).reshape(expected.shape), expected)


@pytest.mark.parametrize("m", TILES)
def test_winograds_products_are_by_a_lane(m: int, runner: Path, emulated: EmulatedSystem, tmp_path: Path) -> None:
    draw = np.random.default_rng(6)
    shapes = [(16, 24, 13), (8, 16, 8)]  # channels, output channels, size
    inputs = [
        relax.Var(f"x{at}", relax.TensorType((1, ic, size, size), "float32")) for at, (ic, _, size) in enumerate(shapes)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            found = [
                builder.emit(
                    relax.op.nn.conv2d(x, constant(draw.standard_normal((oc, ic, 3, 3)), "float32"), padding=1)
                )
                for x, (ic, oc, _) in zip(inputs, shapes, strict=True)
            ]
            output = builder.emit_output(relax.Tuple(found))
        builder.emit_func_output(output)
    module, backend = builder.get(), backend_of(target("cortex-a53"))
    packed = PackChannels(8)(module)
    scheduled = build_scheduled(packed, backend, {}, winograd=dict.fromkeys(list_convolution_keys(packed), m))
    assert {choice.template for choice in scheduled.kernels} >= {"winograd"}
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert re.search(r"fmla\tv\d+\.4s, v\d+\.4s, v\d+\.s\[3\]", code) and "ld1r" not in code
    given = [draw.standard_normal((1, ic, size, size), dtype=np.float32) for ic, _, size in shapes]
    got = np.frombuffer(ran(linked(tmp_path, scheduled, 2, backend), runner, emulated, "cortex-a53", given), np.float32)
    expected = np.concatenate([one.reshape(-1) for one in run_all(read_graph(module), given)])
    assert np.abs(got - expected).max() / np.abs(expected).max() <= 2e-5


def drawn_network(family: Family, shapes: list[tuple[int, ...]], data: str, weight: str) -> Any:
    """Return a network of one convolution for each shape, integers added to its sums, and limits behind them.

    shapes: batch, channels, height, width, output channels. data, weight: their types.
    """
    bits = BITS[family.total]
    values, builder, op = np.random.default_rng(8), relax.BlockBuilder(), relax.op
    variables = [relax.Var(f"x{at}", relax.TensorType(shape[:4], data)) for at, shape in enumerate(shapes)]
    with builder.function("main", variables):
        with builder.dataflow():
            outputs = []
            for at, (x, shape) in enumerate(zip(variables, shapes, strict=True)):
                is_first = shape[1] < 5
                kernel = int(values.choice([2, 3, 5, 7] if is_first else [1, 3] if min(shape[2:4]) > 2 else [1]))
                taps = constant(drawn(values, (shape[4], shape[1], kernel, kernel), family.weight), weight)
                found = op.nn.conv2d(
                    x,
                    taps,
                    strides=2 if is_first and at % 3 else int(values.integers(1, 3)),
                    dilation=1 + (at == 0),
                    padding=int(values.integers(0, kernel)) if is_first else kernel // 2 + (at == 0),
                    out_dtype=family.total,
                )
                offset = values.integers(-1000, 1000, (1, shape[4], 1, 1)).astype(bits) / (
                    1 if bits is np.int32 else 100
                )
                outputs.append(builder.emit(op.nn.relu(op.add(found, constant(offset.astype(bits), family.total)))))
            found = builder.emit_output(relax.Tuple(outputs))
        builder.emit_func_output(found)
    return builder.get()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "family",
    [one for one in FAMILIES if "mmla" in one.name or one.name in ("sdot", "fmla", "fmla_half")],
    ids=lambda family: family.name,
)
def test_any_schedule_of_products_at_once_equals_the_definition(
    family: Family, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    """Drawn shapes, odd ones among them, a drawn schedule each; integers added to sums, and limits behind them."""
    draw = np.random.default_rng(7)
    shapes = [
        tuple(int(draw.integers(low, high)) for low, high in ((1, 3), (5, 40), (1, 14), (1, 14), (5, 40)))
        for _ in range(7)
    ]
    # First layers: two columns are one pixel where the stride is 2.
    shapes += [
        (1, int(draw.integers(3, 5)), 11, 2 * int(draw.integers(4, 9)), int(draw.integers(8, 20))) for _ in range(4)
    ]
    inputs = [drawn(draw, shape[:4], family.data) for shape in shapes]

    module, backend = drawn_network(family, shapes, family.data, family.weight), backend_of(target(family.compiled))
    packed, best = PackChannels(8)(module), {}
    for workload in extract_workloads(lower(packed, backend)):
        match = backend.template_for(workload.function)
        assert match is not None
        schedule = applied_from(workload.function, *match, int(draw.integers(len(match[1]))))
        best[workload.key] = Traced(trace_json(schedule))
    scheduled = build_scheduled(packed, backend, best)
    assert {choice.schedule for choice in scheduled.kernels} == {"record"}
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert re.search(family.code[0], code)
    found = ran(linked(tmp_path, scheduled, len(shapes), backend), runner, emulated, family.runs, inputs)
    wide = drawn_network(family, shapes, "float32", "float32") if family.bound else module
    exact = run_all(read_graph(wide), [x.astype(np.float32) if family.bound else x for x in inputs])
    expected = np.concatenate([one.reshape(-1) for one in exact])
    got = np.frombuffer(found, BITS[family.total])
    if family.bound:
        assert np.abs(got.astype(np.float64) - expected).max() <= family.bound * np.abs(expected).max()
    else:
        assert np.array_equal(got, expected)
