"""Zero only the border of a padded image in thread-local memory.

TVM splits a padding into a block that zeros the whole buffer and one that writes the interior, so that most zeros are
overwritten.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmflow.ir.tir.stmt_rewriter import realize_in, rewrite_marked, with_variable
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.schedules.template import FILLED


def zero_border_only(mod: IRModule) -> Any:
    """Return a module of scheduled kernels whose loops with the annotation FILLED skip the interior columns."""
    return rewrite_marked(mod, FILLED, _split_border)


def _split_border(statement: Any) -> Any:
    """Return an annotated loop over the columns of a row as a loop over the border."""
    top, height, left, width = (int(number) for number in statement.annotations[FILLED])
    whole = tirx.For(statement.loop_var, statement.min, statement.extent, statement.kind, statement.body)
    row = realize_in(statement.body).iter_values[2]
    inside = tirx.all(row >= top, row < top + height)
    edge = tirx.Var("edge", "int64")
    column = tirx.Select(edge < left, edge, edge + width)
    body = with_variable(statement.body, statement.loop_var, column)
    right = max(int(statement.extent) - left - width, 0)
    edges = tirx.For(edge, statement.min, tirx.const(left + right, "int64"), statement.kind, body)
    return tirx.IfThenElse(inside, edges, whole)
