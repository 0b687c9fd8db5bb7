"""Configure the AMX tile registers once for each thread's share of a kernel, not for each tile.

The configuration instruction takes as long as a dozen multiplications, and waits for those in flight.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvmflow.ir.tir.blocks import IMPORTED_LLVM
from tvmflow.ir.tir.stmt_rewriter import rewrite_kernels, rewrite_statements, with_body
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.schedules.intrinsics.amx import CONFIGURED, RELEASED


@tvm.transform.module_pass(opt_level=0, name="HoistAmxConfig")
class HoistAmxConfig:
    """IRModule -> IRModule, of kernels lowered to runtime calls."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        return rewrite_kernels(mod, lambda _: _hoist)


def _hoist(statement: Any) -> Any:
    """Return the statement around a parallel loop with the tile configuration at the start and end of its body.

    Any other statement, and one with several tile shapes, is returned as it is.
    """
    if not isinstance(statement, tirx.AttrStmt) or statement.attr_key != IMPORTED_LLVM:  # it encloses the parallel loop
        return statement
    if RELEASED not in str(getattr(statement.value, "value", "")):  # encloses a whole kernel, with other functions
        return statement
    names: set[str] = set()

    def remove(part: Any) -> Any:
        name = _config_function(part)
        if not name:
            return part
        names.add(name)
        return tirx.Evaluate(0)

    loop = statement.body
    is_loop = isinstance(loop, tirx.For)
    body = rewrite_statements(loop.body if is_loop else loop, remove)
    starts = names - {RELEASED}
    if len(starts) != 1:  # none, or several shapes that need several configurations
        return statement
    null = tirx.reinterpret("handle", tirx.const(0, "uint64"))
    around = [tirx.call_extern("int32", *starts), tirx.call_extern("int32", RELEASED, null)]
    body_with_config = tirx.SeqStmt([tirx.Evaluate(around[0]), body, tirx.Evaluate(around[1])])
    return with_body(statement, with_body(loop, body_with_config) if is_loop else body_with_config)


def _config_function(statement: Any) -> str:
    """Return the name of the function, if a statement calls one that configures or releases tiles, else ''."""
    call = getattr(statement, "value", None) if isinstance(statement, tirx.Evaluate) else None
    if getattr(getattr(call, "op", None), "name", "") != "tirx.call_extern":
        return ""
    name = str(getattr(call.args[0], "value", ""))  # type: ignore[union-attr]
    return name if name == RELEASED or name.startswith(CONFIGURED) else ""
