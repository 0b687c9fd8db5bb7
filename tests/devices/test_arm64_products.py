"""Test products of two images, and moves of numbers, by arm64's tiles under qemu."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from tests.devices.arm64 import linked, ran, target
from tests.passes import test_transpose_tiles as transpositions
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.devices.emulation.system import EmulatedSystem


@pytest.mark.parametrize(
    ("processor", "dtype", "bound", "sizes"),
    [
        ("cortex-a53", "float32", 1e-6, (3, 19, 33, 37)),
        ("cortex-a76", "float32", 1e-6, (1, 8, 4, 9)),
        ("cortex-a76", "float16", 3e-3, (2, 50, 40, 24)),
    ],
)
def test_a_product_of_two_images_is_summed_in_tiles(
    processor: str,
    dtype: str,
    bound: float,
    sizes: tuple[int, int, int, int],
    runner: Path,
    emulated: EmulatedSystem,
    tmp_path: Path,
) -> None:
    """A network that computes 0.3 a b + c, and relu of it; rows, depth and columns fill blocks of eight or do not."""
    batch, rows, depth, columns = sizes
    draw = np.random.default_rng(8)
    shapes = ((batch, rows, depth), (batch, columns, depth), (batch, rows, columns))
    inputs = [draw.standard_normal(shape).astype(dtype) for shape in shapes]
    variables = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in zip("abc", shapes, strict=True)]
    builder, op = relax.BlockBuilder(), relax.op
    with builder.function("main", variables):
        with builder.dataflow():
            a = builder.emit(op.multiply(variables[0], relax.const(0.3, dtype)))
            b = builder.emit(op.permute_dims(variables[1], [0, 2, 1]))
            total = builder.emit(op.add(builder.emit(op.matmul(a, b)), variables[2]))
            found = builder.emit_output(op.nn.relu(total))
        builder.emit_func_output(found)
    backend = backend_of(target(processor))
    scheduled = build_scheduled(backend.pack(builder.get(), None)[0], backend, {})
    [choice] = [one for one in scheduled.kernels if one.template == "batched_product"]
    assert choice.schedule == "default" and choice.dtype == dtype
    path = linked(tmp_path, scheduled, 1, backend)
    a, b, c = (x.astype(np.float64) for x in inputs)
    expected = np.maximum(0.3 * a @ b.transpose(0, 2, 1) + c, 0)
    got = np.frombuffer(ran(path, runner, emulated, processor, inputs), dtype).reshape(expected.shape)
    assert np.abs(got - expected).max() <= bound * np.abs(expected).max()
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    lanes = {"float32": "4s", "float16": "8h"}[dtype]
    assert re.search(rf"fmla\tv\d+\.{lanes}, v\d+\.{lanes}, v\d+\.[sh]\[\d\]", code)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_numbers_are_moved_by_tiles(dtype: str, runner: Path, emulated: EmulatedSystem, tmp_path: Path) -> None:
    """All moves are one network; those of a prime number of rows have no tiles."""
    moves = transpositions.MOVES
    inputs = [np.arange(np.prod(shape)).reshape(shape).astype(dtype) for shape, _ in moves.values()]
    variables = [relax.Var(f"x{at}", relax.TensorType(x.shape, dtype)) for at, x in enumerate(inputs)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            made = [builder.emit(move(relax.op, x)) for x, (_, move) in zip(variables, moves.values(), strict=True)]
            found = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(found)
    backend = backend_of(target("cortex-a76"))
    scheduled = build_scheduled(builder.get(), backend, {})
    tiled = [one for one in scheduled.kernels if one.template == "transposition"]
    assert len(tiled) == len(transpositions.TILED) and all(one.schedule == "default" for one in tiled)
    path = linked(tmp_path, scheduled, len(inputs), backend)
    got = np.frombuffer(ran(path, runner, emulated, "cortex-a76", inputs), dtype)
    expected = [transpositions.moved(name, x).ravel() for name, x in zip(moves, inputs, strict=True)]
    assert np.array_equal(got, np.concatenate(expected))
