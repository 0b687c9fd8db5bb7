"""HoistAmxConfig: give the registers for matrix tiles (AMX) their shapes once for a thread's share of a kernel, not for
each tile of outputs.

An instruction that does it takes as long as a dozen multiplications, and waits for all that are under way.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvmflow.ir.tir.blocks import IMPORTED_LLVM
from tvmflow.ir.tir.stmt_rewriter import rewritten, rewritten_kernels, with_body
from tvmflow.schedules.intrinsics.amx import CONFIGURED, RELEASED


@tvm.transform.module_pass(opt_level=0, name="HoistAmxConfig")
class HoistAmxConfig:
    """IRModule -> IRModule, of kernels that are lowered as far as calls of the runtime."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        return rewritten_kernels(mod, lambda _: _hoisted)


def _hoisted(statement: Any) -> Any:
    """Return what is around a loop over shares with the use of tiles started and ended in the loop, if it has one
    shape; any other statement as it is.
    """
    if (
        not isinstance(statement, tirx.AttrStmt) or statement.attr_key != IMPORTED_LLVM
    ):  # which stands around the loop over shares
        return statement
    if RELEASED not in str(getattr(statement.value, "value", "")):  # around all of a kernel, with other functions
        return statement
    names: set[str] = set()

    def without(part: Any) -> Any:
        name = _name(part)
        if not name:
            return part
        names.add(name)
        return tirx.Evaluate(0)

    loop = statement.body
    is_loop = isinstance(loop, tirx.For)
    body = rewritten(loop.body if is_loop else loop, without)
    starts = names - {RELEASED}
    if len(starts) != 1:  # none; or two shapes, each of which has to be given again
        return statement
    nowhere = tirx.reinterpret("handle", tirx.const(0, "uint64"))
    around = [tirx.call_extern("int32", *starts), tirx.call_extern("int32", RELEASED, nowhere)]
    share = tirx.SeqStmt([tirx.Evaluate(around[0]), body, tirx.Evaluate(around[1])])
    return with_body(statement, with_body(loop, share) if is_loop else share)


def _name(statement: Any) -> str:
    """Return which of the functions that start or end the use of tiles a statement calls, '' for none."""
    call = getattr(statement, "value", None) if isinstance(statement, tirx.Evaluate) else None
    if getattr(getattr(call, "op", None), "name", "") != "tirx.call_extern":
        return ""
    name = str(getattr(call.args[0], "value", ""))  # type: ignore[union-attr]
    return name if name == RELEASED or name.startswith(CONFIGURED) else ""
