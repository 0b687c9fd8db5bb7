"""Divide the loop over the columns of a padded copy into border, interior and border.

Otherwise each pixel is tested; the interior of a row is copied without tests, in vectors or by memcpy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tvm import tirx

from tvmflow.ir.tir.stmt_rewriter import realize_in, rewrite_marked, with_variable
from tvmflow.ir.tvm_compat import IRModule, dtype_of
from tvmflow.schedules.template import INTERIOR


def divide_paddings(mod: IRModule) -> Any:
    """Return a module of scheduled kernels whose loops with the annotation INTERIOR are divided."""
    return rewrite_marked(mod, INTERIOR, _divide)


def _divide(statement: Any) -> Any:
    """Return an annotated loop over columns as up to three loops."""
    left, width = (int(number) for number in statement.annotations[INTERIOR])
    size, variable = int(statement.extent), statement.loop_var
    if not any(value.same_as(variable) for value in realize_in(statement.body).iter_values):
        return tirx.For(variable, statement.min, statement.extent, statement.kind, statement.body)  # not whole rows
    bounds = [0, min(left, size), min(left + width, size), size]
    parts = [_part(statement, begin, end) for begin, end in pairwise(bounds) if begin < end]
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def _part(loop: Any, begin: int, end: int) -> Any:
    """Return a loop over the columns from `begin` to `end` of another."""
    variable = loop.loop_var
    dtype = dtype_of(loop.extent)
    column = tirx.Var(variable.name, dtype)
    body = with_variable(loop.body, variable, column + tirx.const(begin, dtype))
    return tirx.For(column, loop.min, tirx.const(end - begin, dtype), loop.kind, body)
