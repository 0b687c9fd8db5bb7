"""Compute 3x3 convolutions of stride 1 by Winograd's F(m x m, 3 x 3) on packed channels.

Each tile of (m+2)^2 inputs is transformed (B), multiplied channel by channel with transformed weights (G), and
transformed back (A) to m^2 outputs: 2.25 times fewer multiplications for m = 2, 4 times fewer for m = 4, 5.06 times
fewer for m = 6, at the cost of a larger rounding error, which `winograd_error` measures. The matrices are Toom-Cook's
for the points 0, 1, -1 (and 2, -2; and 1/2, -1/2), as in Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks" (2015). In float16 F(4x4) has the points 0, 3/4, -3/4, 3/2, -3/2, whose error is a third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx, topi

from tvmflow.ir.tir.blocks import DILATION
from tvmflow.ir.tvm_compat import dtype_of

Matrix = NDArray[np.float64]
_TAPS = 3
_POINTS = {
    2: (0.0, 1.0, -1.0),
    4: (0.0, 1.0, -1.0, 2.0, -2.0),
    6: (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5),
}
_HALF_POINTS = {**_POINTS, 4: (0.0, 0.75, -0.75, 1.5, -1.5)}  # powers and products of these are exact
TILES = tuple(_POINTS)


def count_tiles(size: int, m: int, dilation: int) -> int:
    """Return the number of tiles that cover an axis of outputs, for all phases of a dilation."""
    return dilation * -(-size // (dilation * m))


@cache
def transform_matrices(m: int, dtype: str = "float32") -> tuple[Matrix, Matrix, Matrix]:
    """Return A (m+2, m), B (m+2, m+2), G (m+2, 3): y = A^T [(G g) * (B^T d)] is the correlation of d with g.

    dtype: in which transformed values are stored.
    """
    points = (_HALF_POINTS if dtype == "float16" else _POINTS)[m]
    alpha = m + _TAPS - 1
    a, g = np.zeros((alpha, m)), np.zeros((alpha, _TAPS))
    for row, point in enumerate(points):
        a[row] = [point**power for power in range(m)]
        scale = np.prod([point - other for other in points if other != point])
        g[row] = np.array([point**power for power in range(_TAPS)]) / scale
    a[-1, -1] = g[-1, -1] = 1.0  # the point at infinity
    b = np.zeros((alpha, alpha))
    for row, point in enumerate(points):
        b[: alpha - 1, row] = np.poly([other for other in points if other != point])[::-1]
    b[:, -1] = np.poly(points)[::-1]
    return a, b, g


def transform_weight(weight: NDArray[Any], m: int) -> NDArray[Any]:
    """(OC, IC, 3, 3, b of I, b of O) -> (OC, alpha, alpha, IC, b of I, b of O), computed in float64."""
    _, _, g = transform_matrices(m, str(weight.dtype))
    taps = weight.astype(np.float64).transpose(2, 3, 0, 1, 4, 5).reshape(_TAPS**2, -1)
    transformed = (np.kron(g, g) @ taps).astype(weight.dtype)  # one matmul: einsum takes twenty times as long
    whole = transformed.reshape(len(g), len(g), *weight.shape[:2], *weight.shape[4:])
    return np.ascontiguousarray(whole.transpose(2, 0, 1, 3, 4, 5))


def winograd_error(weight: NDArray[Any], m: int) -> float:
    """Return the largest error on random tiles, relative to the spread (standard deviation) of their outputs in
    float64.

    weight: packed, (OC, IC, 3, 3, b, b), float32, bfloat16 or float16, the type in which transformed values are stored
    and, of float16, products are summed. The first block of output channels is representative.
    """
    a, b, _ = transform_matrices(m, str(weight.dtype))
    alpha = m + _TAPS - 1
    w = weight[:1].astype(np.float64)
    tiles = np.random.default_rng(0).standard_normal((8, *w.shape[1:2], alpha, alpha, w.shape[4]))
    tiles = tiles.astype(weight.dtype).astype(np.float32)
    exact = np.zeros((8, m, m, w.shape[5]))
    for y in range(m):
        for x in range(m):
            exact[:, y, x] = np.einsum("tiyxu,iyxuv->tv", tiles[:, :, y : y + 3, x : x + 3].astype(np.float64), w[0])
    low = [matrix.astype(np.float32) for matrix in (a, b)]
    v = np.einsum("ye,tiyxu,xn->tienu", low[1], tiles, low[1]).astype(weight.dtype).astype(np.float32)
    u = transform_weight(weight[:1], m)[0].astype(np.float32)
    product = _sum_in_float16(v, u) if weight.dtype == np.float16 else np.einsum("tienu,eniuv->tenv", v, u)
    computed = np.einsum("ey,tenv,nx->tyxv", low[0], product, low[0])
    return float(np.abs(computed - exact).max() / max(exact.std(), 1e-30))


def _sum_in_float16(v: NDArray[Any], u: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of products of tiles (t, i, e, n, u) and weights (e, n, i, u, v), each rounded to float16."""
    total = np.zeros((len(v), *u.shape[:2], u.shape[4]), np.float16)
    for i in range(v.shape[1]):
        for lane in range(v.shape[4]):
            total = (total + v[:, i, ..., lane, None] * u[None, :, :, i, lane]).astype(np.float16)
    return total.astype(np.float32)


def _combine_linearly(factors: Iterable[float], terms: Sequence[Any]) -> Any:
    """Return the sum of factors times terms, starting with one of factor 1 if there is one.

    Terms with factor 0 are omitted: TVM would multiply by 0 to propagate infinities.
    """
    known = [float(factor) for factor in factors]
    # all others are fused multiply-adds
    first = known.index(1.0) if 1.0 in known else next(at for at, factor in enumerate(known) if factor > 0)
    total: Any = terms[first] if known[first] == 1 else terms[first] * tirx.const(known[first], dtype_of(terms[first]))
    for at, (factor, term) in enumerate(zip(known, terms, strict=True)):
        if factor == 0 or at == first:
            continue
        part = term if abs(factor) == 1 else term * tirx.const(abs(factor), dtype_of(term))
        total = total + part if factor > 0 else total - part
    return total


def _select(choices: Sequence[Any], index: Any) -> Any:
    """Return choices[index] as a chain of conditions on a loop variable; the loop is unrolled."""
    return reduce(
        lambda found, at: te.if_then_else(index == at, choices[at], found), range(1, len(choices)), choices[0]
    )


def _transform_input(table: Matrix, point: Any, term: Callable[[int], Any]) -> Any:
    """Return the sum over rows of B[row, point] * term(row).

    Points p and -p share the sums of even and of odd rows, added or subtracted: LLVM computes both once.
    """
    size = len(table)
    terms = [term(row) for row in range(size)]
    choices = [_combine_linearly(table[:, 0], terms)]
    for column in range(1, size - 1, 2):
        at = table[-3, column]  # the point, as minus the sum of all others
        both = (
            _combine_linearly(table[::2, column], terms[::2]),
            _combine_linearly(table[1::2, column] / at, terms[1::2]),
        )
        choices += [_combine_linearly((1.0, at), both), _combine_linearly((1.0, -at), both)]
    return _select([*choices, _combine_linearly(table[:, -1], terms)], point)


def _transform_output(table: Matrix, column: Any, term: Callable[[int], Any]) -> Any:
    """Return the sum over points of A[point, column] * term(point).

    Terms of p and -p are added for even columns and subtracted for odd ones; LLVM computes them once for all columns.
    """
    terms = [term(row) for row in range(len(table))]
    pairs = range(1, len(table) - 1, 2)
    choices = []
    for power in range(table.shape[1]):
        both = [terms[row] + terms[row + 1] if power % 2 == 0 else terms[row] - terms[row + 1] for row in pairs]
        choices.append(_combine_linearly(table[[0, *pairs, -1], power], [terms[0], *both, terms[-1]]))
    return _select(choices, column)


def _multiply_tiles(tile: Any, weight: Any, shape: tuple[int, ...]) -> Any:
    """Return the te.Tensor (alpha, alpha, OC, rows of tiles, columns of tiles, lane) of tiles times weights."""
    i, u = te.reduce_axis((0, int(tile.shape[2])), "ic"), te.reduce_axis((0, int(weight.shape[4])), "ic_lane")
    if len(weight.shape) == 6:
        return te.compute(
            shape,
            lambda e, j, o, y, x, v: te.sum(tile[e, j, i, y, x, u] * weight[o, e, j, i, u, v], axis=[i, u]),
            name="winograd",
        )
    q = te.reduce_axis((0, 2), "ic_pair")
    return te.compute(
        shape,
        lambda e, j, o, y, x, v: te.sum(
            tile[e, j, i, y, x, u * 2 + q].astype("float32") * weight[o, e, j, i, u, v, q].astype("float32"),
            axis=[i, u, q],
        ),
        name="winograd_pairs",
    )


def _transform_image(image: Any, shape: tuple[int, ...], dilation: int, by_rows: bool, dtype: str) -> Any:
    """Return the te.Tensor of transformed tiles (alpha, alpha, IC, N * rows of tiles, columns of tiles, lane) of a
    padded image.
    """
    from tvmflow.passes.legalize.bfloat16 import cast_float32

    alpha, _, ic, all_rows, columns, lanes = shape
    m, rows = alpha - _TAPS + 1, all_rows // int(image.shape[0])
    b, computed = transform_matrices(m, dtype)[1], _transformed_in(dtype)

    def pixel(tile: Any, at: Any) -> Any:
        return (tile // dilation * m + at) * dilation + tile % dilation

    def half_of(e: Any, i: Any, y: Any, at: Any, v: Any) -> Any:
        return _transform_input(b, e, lambda row: image[y // rows, i, pixel(y % rows, row), at, v].astype(computed))

    if by_rows:
        half = te.compute((alpha, ic, all_rows, columns * m + 2 * dilation, lanes), half_of, name="tile_half")
    else:
        half = te.compute(shape, lambda e, j, i, y, x, v: half_of(e, i, y, pixel(x, j), v), name="tile_half")
    return te.compute(
        shape,
        lambda e, j, i, y, x, v: cast_float32(
            _transform_input(
                b, j, lambda row: half[e, i, y, pixel(x, row), v] if by_rows else half[e, row, i, y, x, v]
            ),
            dtype,
        ),
        name="tile",
    )


def _transformed_in(dtype: str) -> str:
    """Return the type in which tiles stored in a type are computed: sums of float16 products err more than it does."""
    return "float16" if dtype == "float16" else "float32"


def winograd_conv2d(
    data: Any, weight: Any, padding: list[int], m: int, dilation: int = 1, by_rows: bool = False
) -> Any:
    """Return the te.Tensor (N, OC, OH, OW, lane) of a 3x3 convolution of stride 1.

    data: (N, IC, H, W, b); weight: from `transform_weight`, bfloat16 interleaved by two input channels for bf16_dot2:
    (OC, alpha, alpha, IC, b/2, b, 2); padding: top, left, bottom, right. Transforms and sums are float32, or float16 if
    the weight is. dilation: of rows and columns; the pixels of a tile have this distance, so that tiles of different
    phases are interleaved. by_rows: the first half of the input transform is of columns of the image, which
    neighbouring tiles share.
    """
    a, alpha = transform_matrices(m, str(weight.dtype))[0], m + _TAPS - 1
    n, ic, height, width, lanes = (int(d) for d in data.shape)
    oc = int(weight.shape[0])
    top, left, bottom, right = padding
    oh, ow = height + top + bottom - 2 * dilation, width + left + right - 2 * dilation
    rows, columns = (count_tiles(size, m, dilation) for size in (oh, ow))
    fill_h, fill_w = rows * m + 2 * dilation - height - top, columns * m + 2 * dilation - width - left
    data = topi.nn.pad(data, [0, 0, top, left, 0], [0, 0, fill_h, fill_w, 0], name="pad")

    tile = _transform_image(data, (alpha, alpha, ic, n * rows, columns, lanes), dilation, by_rows, str(weight.dtype))
    product = _multiply_tiles(tile, weight, (alpha, alpha, oc, n * rows, columns, lanes))
    back_half = te.compute(
        (m, alpha, oc, n * rows, columns, lanes),
        lambda e, j, o, y, x, v: _transform_output(a, e, lambda row: product[row, j, o, y, x, v]),
        name="back_half",
    )
    back = te.compute(
        (m, m, oc, n * rows, columns, lanes),
        lambda e, j, o, y, x, v: _transform_output(a, j, lambda row: back_half[e, row, o, y, x, v]),
        name="back",
    )

    def tile_of(at: Any) -> Any:
        return at // (m * dilation) * dilation + at % dilation

    return te.compute(
        (n, oc, oh, ow, lanes),
        lambda b_, o, h, w, v: back[h // dilation % m, w // dilation % m, o, b_ * rows + tile_of(h), tile_of(w), v],
        name="conv2d_winograd",
        attrs={DILATION: dilation} if dilation > 1 else {},
    )
