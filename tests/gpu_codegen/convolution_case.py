"""Generate random GPU convolutions with expected outputs from numpy."""

from __future__ import annotations

import numpy as np

from tests.gpu_codegen.kernels import Array, Case, bind_flat, new_schedule_of


def random_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    return random_of(seed).normal(size=shape).astype(dtype)


def _convolved(x: Array, w: Array, stride: int, pad: int) -> Array:
    """x: (c, h, w, 4) padded, w: (o, c, kh, kw, 4 in, 4 out); in float64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    outs, _, tall, wide, _, _ = w.shape
    height, width = (padded.shape[1] - tall) // stride + 1, (padded.shape[2] - wide) // stride + 1
    made = np.zeros((outs, height, width, 4))
    for i in range(tall):
        for j in range(wide):
            part = padded[:, i : i + height * stride : stride, j : j + width * stride : stride]
            made += np.einsum("chwi,ociv->ohwv", part, w[:, :, i, j].astype(np.float64))
    return made


def conv_case(seed: int, dtype: str, sums: str) -> Case:
    """A convolution with channels by four, a tile of pixels in registers, padding read by a condition, and a ReLU."""
    from tvm import te, tirx

    random = random_of(seed)
    ins, outs, kernel, stride = (int(random.integers(1, most)) for most in (4, 4, 4, 3))
    height, width, pad, tile = (
        int(random.integers(4, 9)),
        int(random.integers(4, 9)),
        int(random.integers(0, 2)),
        int(random.integers(1, 4)),
    )
    if dtype == "int8":
        x, w = (
            random.integers(-128, 128, (ins, height, width, 4)).astype(dtype),
            random.integers(-128, 128, (outs, ins, kernel, kernel, 4, 4)).astype(dtype),
        )
    else:
        x, w = (
            normal(seed, (ins, height, width, 4), dtype),
            normal(seed + 1, (outs, ins, kernel, kernel, 4, 4), dtype),
        )
    wanted = np.maximum(_convolved(x, w, stride, pad), 0)
    a, b = te.placeholder(x.shape, dtype, name="x0"), te.placeholder(w.shape, dtype, name="x1")
    padded = te.compute(
        (ins, height + 2 * pad, width + 2 * pad, 4),
        lambda c, i, j, v: tirx.if_then_else(
            tirx.all(i >= pad, i < height + pad, j >= pad, j < width + pad),
            a[c, i - pad, j - pad, v],
            tirx.const(0, dtype),
        ),
        name="pad",
    )
    c, i, j, v = (te.reduce_axis((0, n), name) for n, name in ((ins, "c"), (kernel, "i"), (kernel, "j"), (4, "v")))
    summed = te.compute(
        wanted.shape,
        lambda o, y, z, u: te.sum(
            padded[c, y * stride + i, z * stride + j, v].astype(sums) * b[o, c, i, j, v, u].astype(sums), [c, i, j, v]
        ),
        name="conv",
    )
    made = te.compute(wanted.shape, lambda *at: tirx.max(summed[at], tirx.const(0, sums)), name="y0")
    schedule = new_schedule_of(a, b, made)
    schedule.compute_inline(schedule.get_sblock("pad", "main"))
    block, last = schedule.get_sblock("conv", "main"), schedule.get_sblock("y0", "main")
    o, y, z, u = schedule.get_loops(last)
    across, _ = schedule.split(z, [None, tile])
    thread = bind_flat(schedule, "y0", 16, loops=[o, y, across])
    schedule.vectorize(u)
    schedule.compute_at(block, thread, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    loops = schedule.get_loops(block)[-8:]
    schedule.reorder(*loops[4:7], loops[7], *loops[:4])
    schedule.vectorize(loops[3])
    schedule.decompose_reduction(block, loops[4])
    return Case(schedule, [x, w], wanted.astype(sums), 0 if dtype == "int8" else 0.3 if sums == "float16" else 1e-3)
