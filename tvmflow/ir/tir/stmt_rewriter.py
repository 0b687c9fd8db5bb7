"""Rewrite statements of kernels lowered to runtime calls: TVM has no statement mutator for Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map, structural_walk

from tvmflow.ir.tir.blocks import IMPORTED_LLVM, transform_kernels
from tvmflow.ir.tvm_compat import Call, IRModule, PrimFunc

Rewrite = Callable[[Any], Any]  # statement -> statement, the same object if unchanged


def rewrite_statements(statement: Any, rewrite: Rewrite) -> Any:
    """Return a statement with each of its parts rewritten, inner ones first; the same object if all are unchanged."""
    return rewrite(_rewrite_parts(statement, rewrite))


def rewrite_kernels(mod: IRModule, rewrite_of: Callable[[Any], Rewrite]) -> Any:
    """Return a module with the statements of its kernels rewritten. rewrite_of: kernel -> function for
    its statements.
    """
    return transform_kernels(
        mod, lambda _: True, lambda kernel: kernel.with_body(rewrite_statements(kernel.body, rewrite_of(kernel)))
    )


def rewrite_marked(mod: IRModule, mark: str, rewrite: Callable[[Any], Any]) -> Any:
    """Return a module of scheduled kernels with the loops that have an annotation rewritten."""

    def change(statement: Any) -> Any:
        marked = isinstance(statement, tirx.For) and mark in statement.annotations
        return rewrite(statement) if marked else statement

    return transform_kernels(
        mod,
        lambda kernel: is_marked(kernel, mark),
        lambda kernel: with_root_body(kernel, lambda body: rewrite_statements(body, change)),
    )


def with_variable(statement: Any, variable: Any, value: Any) -> Any:
    """Return a statement with a value in place of a variable."""
    return with_variables(statement, {variable: value})


def with_variables(node: Any, values: dict[Any, Any]) -> Any:
    """Return a statement or an expression with values in place of variables."""
    return structural_map(node, ((tirx.Var, lambda one: values.get(one, one)),))


def with_root_body(function: PrimFunc, change: Rewrite, keeps: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return an unlowered kernel with the statement of its root block changed. keeps: selects the buffers to keep."""
    realize = function.body
    root = realize.block
    same, buffers = (root.iter_vars, root.reads, root.writes, root.name_hint), filter(keeps, root.alloc_buffers)
    block = type(root)(*same, change(root.body), root.init, list(buffers), root.match_buffers, root.annotations)
    return function.with_body(type(realize)(realize.iter_values, realize.predicate, block))


def realize_in(statement: Any) -> Any:
    """Return the SBlockRealize inside loops."""
    while not hasattr(statement, "iter_values"):
        statement = statement.body
    return statement


def is_marked(function: PrimFunc, mark: str) -> bool:
    """Whether a kernel has a loop with an annotation."""
    return has(function, tirx.For, lambda loop: mark in loop.annotations)


def with_llvm(function: PrimFunc, text: str) -> Any:
    """Return a scheduled kernel with additional LLVM IR, behind the existing text of its root block."""
    realize = function.body
    root = realize.block
    same = (root.iter_vars, root.reads, root.writes, root.name_hint, root.body, root.init)
    annotations = dict(root.annotations.items())
    annotations[IMPORTED_LLVM] = f"{annotations.get(IMPORTED_LLVM) or ''}{text}"
    block = type(root)(*same, root.alloc_buffers, root.match_buffers, annotations)
    return function.with_body(type(realize)(realize.iter_values, realize.predicate, block))


def has(function: PrimFunc, kind: type, wanted: Callable[[Any], bool]) -> bool:
    """Whether a kernel contains a node of a kind (such as tirx.For) that `wanted` selects."""
    found = []
    structural_walk(function.body, (kind, lambda node: found.append(wanted(node))))
    return any(found)


def calls(function: PrimFunc, beginning: str) -> bool:
    """Whether a kernel calls an external function whose name has a prefix."""

    def wanted(call: Call) -> bool:
        name = call.args[0] if getattr(call.op, "name", "") == "tirx.call_extern" else None
        return str(getattr(name, "value", "")).startswith(beginning)

    return has(function, tvm.ir.Call, wanted)


def _rewrite_parts(statement: Any, rewrite: Rewrite) -> Any:
    if isinstance(statement, tirx.SeqStmt):
        parts = [rewrite_statements(part, rewrite) for part in statement.seq]
        if all(new.same_as(old) for new, old in zip(parts, statement.seq, strict=True)):
            return statement
        # Flatten nested sequences, so that declarations of a part stay visible to the parts behind it.
        return tirx.SeqStmt([one for part in parts for one in (part.seq if isinstance(part, tirx.SeqStmt) else [part])])
    if isinstance(statement, tirx.IfThenElse):
        then, other = rewrite_statements(statement.then_case, rewrite), statement.else_case
        other = other and rewrite_statements(other, rewrite)
        same = then.same_as(statement.then_case) and (other is None or other.same_as(statement.else_case))
        return statement if same else tirx.IfThenElse(statement.condition, then, other)
    if not isinstance(statement, tirx.For | tirx.AttrStmt):
        return statement
    body = rewrite_statements(statement.body, rewrite)
    return statement if body.same_as(statement.body) else with_body(statement, body)


def with_body(statement: Any, body: Any) -> Any:
    """Return a loop or an attribute with another body."""
    if isinstance(statement, tirx.AttrStmt):
        return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
    loop = statement
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations, loop.step
    )
