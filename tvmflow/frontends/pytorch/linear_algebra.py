"""Write factorizations and inverses of small matrices in terms of other operators: one step for each row, in PyTorch.

Rows stay where they are: a step takes the unused row with the largest number in its column, as pivoting does. A matrix
without an inverse gives infinities or NaN, where PyTorch raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LARGEST = 64  # rows: a step becomes about ten operators


def _is_other(matrix: Any) -> bool:
    """Return whether a matrix has too many rows, or no elements."""
    rows = matrix.shape[-1]
    return not isinstance(rows, int) or rows > _LARGEST or 0 in matrix.shape


def _eliminated(matrix: Any, right: Any) -> tuple[Any, Any, Any]:
    """Return the solution (..., n, m) of matrix @ x = right, the pivots (..., n), and the row of each (..., n)."""
    count = matrix.shape[-1]
    both = torch.cat([matrix, right], -1)
    free = torch.ones_like(matrix[..., 0], dtype=torch.bool)
    pivots, rows = [], []
    for step in range(count):
        column = both[..., step]
        row = torch.where(free, column.abs(), -1.0).argmax(-1, keepdim=True)
        here = (torch.arange(count) == row).unsqueeze(-1)
        chosen = torch.where(here, both, 0.0).sum(-2, keepdim=True)
        pivot = chosen[..., step : step + 1]
        chosen = chosen / pivot
        both = torch.where(here, chosen, both - column.unsqueeze(-1) * chosen)
        free = free & ~here.squeeze(-1)
        pivots.append(pivot[..., 0, 0])
        rows.append(row[..., 0])
    order = torch.stack(rows, -1)
    solved = both[..., count:]
    return solved.gather(-2, order.unsqueeze(-1).expand(solved.shape)), torch.stack(pivots, -1), order


def _broadcast(matrix: Any, right: Any) -> tuple[Any, Any]:
    """Return a matrix and right sides with the same first axes."""
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    return matrix.expand(*batch, *matrix.shape[-2:]), right.expand(*batch, *right.shape[-2:])


def _inverse(matrix: Any) -> Any:
    if _is_other(matrix):
        return NotImplemented
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand(matrix.shape)
    return _eliminated(matrix, unit)[0]


def _solve(matrix: Any, right: Any, *, left: bool = True) -> Any:
    if _is_other(matrix):
        return NotImplemented
    if not left:
        return _solve(matrix.mT, right.mT).mT
    if right.ndim == 1 or (right.ndim == matrix.ndim - 1 and right.shape == matrix.shape[:-1]):  # vectors
        return _eliminated(*_broadcast(matrix, right.unsqueeze(-1)))[0].squeeze(-1)
    return _eliminated(*_broadcast(matrix, right))[0]


def _parts_of_determinant(matrix: Any) -> tuple[Any, Any]:
    """Return the pivots and the sign of the order of their rows: whether an even number of pairs is exchanged."""
    _, pivots, order = _eliminated(matrix, matrix[..., :1])
    later = order.unsqueeze(-2) - order.unsqueeze(-1)  # [..., i, j]: row j - row i
    pairs = torch.ones(order.shape[-1], order.shape[-1], dtype=torch.bool).triu(1)
    exchanged = torch.where(pairs & (later < 0), 1, 0).sum((-2, -1))
    return pivots, (1 - 2 * (exchanged % 2)).to(matrix.dtype)


def _determinant(matrix: Any) -> Any:
    if _is_other(matrix):
        return NotImplemented
    pivots, sign = _parts_of_determinant(matrix)
    return pivots.prod(-1) * sign, matrix, torch.zeros_like(matrix[..., 0], dtype=torch.int32)


def _log_determinant(matrix: Any) -> Any:
    if _is_other(matrix):
        return NotImplemented
    pivots, sign = _parts_of_determinant(matrix)
    sign = sign * pivots.sign().prod(-1)
    return sign, pivots.abs().log().sum(-1), matrix, torch.zeros_like(matrix[..., 0], dtype=torch.int32)


def _cholesky(matrix: Any, upper: bool = False) -> Any:
    if _is_other(matrix):
        return NotImplemented
    left, columns, count = (matrix.mT if upper else matrix), [], matrix.shape[-1]
    for step in range(count):
        column = left[..., step] / left[..., step, step].unsqueeze(-1).sqrt()
        column = torch.where(torch.arange(count) >= step, column, 0.0)
        left = left - column.unsqueeze(-1) * column.unsqueeze(-2)
        columns.append(column)
    lower = torch.stack(columns, -1)
    return lower.mT if upper else lower


def _with_status(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the variant that also returns where it failed, which is nowhere."""

    def extended(matrix: Any, *arguments: Any, check_errors: bool = False, **options: Any) -> Any:
        found = function(matrix, *arguments, **options)
        return found if found is NotImplemented else (found, torch.zeros(matrix.shape[:-2], dtype=torch.int32))

    return extended


def _solve_extended(matrix: Any, right: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    found = _solve(matrix, right, left=left)
    none = torch.zeros_like(matrix[..., 0], dtype=torch.int32)
    return found if found is NotImplemented else (found, matrix, none, none[..., 0])


def _solve_triangular(matrix: Any, right: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if _is_other(matrix):
        return NotImplemented
    if not left:
        solved = _solve_triangular(matrix.mT, right.mT, upper=not upper, unitriangular=unitriangular)
        return solved.mT
    matrix, right = _broadcast(matrix, right)
    count, rows = matrix.shape[-1], {}
    for step in reversed(range(count)) if upper else range(count):
        row = right[..., step, :]
        row = row if unitriangular else row / matrix[..., step, step].unsqueeze(-1)
        right = right - matrix[..., step].unsqueeze(-1) * row.unsqueeze(-2)
        rows[step] = row
    return torch.stack([rows[step] for step in range(count)], -2)


def _triangular_solve(
    right: Any, matrix: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    wanted = matrix.mT if transpose else matrix
    found = _solve_triangular(wanted, right, upper=upper != transpose, unitriangular=unitriangular)
    return found if found is NotImplemented else (found, matrix.clone())


def _cholesky_solve(right: Any, factor: Any, upper: bool = False) -> Any:
    if _is_other(factor):
        return NotImplemented
    lower = factor.mT if upper else factor
    return _solve_triangular(lower.mT, _solve_triangular(lower, right, upper=False), upper=True)


def _cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape)
    return _cholesky_solve(unit, factor, upper)


LINEAR_ALGEBRA: dict[str, Callable[..., Any]] = {
    "linalg_inv": _inverse,
    "inverse": _inverse,
    "linalg_inv_ex": _with_status(_inverse),
    "linalg_solve": _solve,
    "_linalg_solve_ex": _solve_extended,
    "_linalg_det": _determinant,
    "_linalg_slogdet": _log_determinant,
    "linalg_cholesky": lambda matrix, *, upper=False: _cholesky(matrix, upper),
    "cholesky": _cholesky,
    "linalg_cholesky_ex": lambda matrix, *, upper=False, check_errors=False: _with_status(_cholesky)(matrix, upper),
    "linalg_solve_triangular": _solve_triangular,
    "triangular_solve": _triangular_solve,
    "cholesky_solve": _cholesky_solve,
    "cholesky_inverse": _cholesky_inverse,
}
