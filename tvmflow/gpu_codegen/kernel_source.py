"""Generate the source of a lowered device function in a GPU language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvmflow.gpu_codegen.expressions import Expressions, function_name
from tvmflow.gpu_codegen.language import KernelParts, Language
from tvmflow.gpu_codegen.memory import (
    VECTOR,
    Extents,
    Memory,
    constant_of,
    memory_of,
    sanitize_name,
    unroll_local_loops,
)
from tvmflow.gpu_codegen.types import KernelType, type_of
from tvmflow.support.errors import StageError

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import Call, Expr, PrimFunc

# Attributes for TVM's passes that have no effect on the source.
_IGNORED = ("storage_alignment", "compute_scope", "device_scope", "realize_scope", "virtual_thread")


def text_of(
    function: PrimFunc,
    language: Language,
    name: str,
    *,
    most_texels: int = 0,
    widths: Mapping[int, int] | None = None,
    is_wide: bool = False,
) -> str:
    """Return the source of a PrimFunc of launched threads.

    name: of the function; most_texels: read-only parameters of at most so many elements become texel buffers; widths:
    parameter -> row length in vectors of the image that replaces it; is_wide: compute float16 in float32. Raises
    StageError for unsupported nodes, with their names.
    """
    function = _unroll_local_loops(function)
    analyzer = Analyzer()
    buffers, extents = memory_of(function, analyzer, most_texels, widths or {}, is_wide=is_wide)
    kernel = _StatementWriter(buffers, extents, analyzer, language, is_wide=is_wide)
    kernel.statement(function.body)
    parameters = sorted(
        (memory for memory in buffers.values() if memory.scope == "global"), key=lambda one: one.binding
    )
    return language.assemble(
        KernelParts(name, parameters, extents, kernel.shared, kernel.lines, kernel.expressions.used)
    )


def parameters_in_vectors(function: PrimFunc) -> tuple[bool, ...]:
    """Return which parameters of a device function are accessed by whole vectors of four only, so that they may be
    images.
    """
    buffers, _ = memory_of(_unroll_local_loops(function), Analyzer(), 0, {}, is_wide=False)
    found = {memory.binding: memory.may_be_image for memory in buffers.values() if memory.scope == "global"}
    return tuple(found.get(at, False) for at in range(len(function.params)))


def _unroll_local_loops(function: PrimFunc) -> Any:
    body = unroll_local_loops(function.body)
    if body.same_as(function.body):
        return function
    passes = tvm.ir.transform.Sequential([tirx.transform.UnrollLoop(), tirx.transform.StmtSimplify()])
    return passes(tvm.IRModule({"kernel": function.with_body(body)}))["kernel"]


class _StatementWriter:
    """Generate the statements of a function."""

    def __init__(
        self, buffers: dict[Any, Memory], extents: Extents, analyzer: Any, language: Language, *, is_wide: bool
    ) -> None:
        self.expressions = Expressions(buffers, analyzer, language, is_wide=is_wide)
        self.buffers, self.extents, self.analyzer, self.language = buffers, extents, analyzer, language
        self.reducers: list[Any] = []
        self.lines: list[str] = []
        self.shared: list[str] = []
        self.depth = 1
        self.count = 0

    def statement(self, node: Expr) -> None:
        method = _STATEMENTS.get(type(node).__name__)
        if method is None:
            raise StageError(
                f"a kernel has {type(node).__name__}, which is not known in {self.language.name}: {str(node)[:120]}",
                f"one of {', '.join(_STATEMENTS)}",
            )
        method(self, node)

    def write(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def name(self, variable: Any) -> str:
        """Return a unique name for a variable."""
        self.count += 1
        made = f"{sanitize_name(variable.name)}_{self.count}"
        self.expressions.names[variable] = made
        return made

    # -- statements --

    def _sequence(self, node: Expr) -> None:
        for one in node.seq:
            self.statement(one)

    def _skip_declaration(self, node: Expr) -> None:
        """Write nothing: parameters are declared in the signature."""

    def _allocate(self, node: Expr) -> None:
        memory = self.buffers[node.buffer]
        self.expressions.used.types.add(memory.kind)
        lanes = VECTOR if memory.in_vectors else memory.kind.lanes
        kind = self.language.register(memory.kind.with_lanes(lanes))
        count = memory.count // (VECTOR if memory.in_vectors else 1)
        if memory.scope == "shared":
            self.shared.append(f"{self.language.shared} {kind} {memory.name}[{count}];")
        elif memory.as_variables:
            self.write(f"{kind} {', '.join(f'{memory.name}_{at}' for at in range(count))};")
        else:
            self.write(f"{kind} {memory.name}[{count}];")

    def _attribute(self, node: Expr) -> None:
        key = str(node.attr_key)
        if key == "thread_extent":
            axis = self.language.axes.get(str(node.node.thread_tag))
            if axis is None:
                raise StageError(f"a kernel is launched over {node.node.thread_tag}", ", ".join(self.language.axes))
            self.write(f"const int {self.name(node.node.var)} = {axis};")
        elif key == "reduce_scope":
            self.reducers.append(node.node)
        elif key not in _IGNORED and not key.startswith("pragma_"):
            raise StageError(
                f"a kernel has attribute {key}, which is not known in {self.language.name}",
                f"thread_extent, pragmas, {', '.join(_IGNORED)}",
            )
        self.statement(node.body)

    def _bind(self, node: Expr) -> None:
        value = self.expressions.generate(node.value)
        kind = self.expressions.kind(node.value)
        if str(node.var.ty.dtype) in ("int32", "int64"):
            self.analyzer.bind(node.var, node.value, allow_override=True)
        self.write(f"const {self.language.register(kind)} {self.name(node.var)} = {value};")

    def _store(self, node: Expr) -> None:
        memory, (index,) = self.buffers[node.buffer], node.indices
        value, kind = self.expressions.generate(node.value), self.expressions.kind(node.value)
        if type(index).__name__ == "Ramp" and not memory.in_vectors:
            self._store_elements(memory, index, value, kind)
            return
        if type(index).__name__ != "Ramp" and type_of(index.ty.dtype).lanes != 1:
            raise StageError(f"a kernel stores to {str(index)[:80]}", "an index or a range of indices")
        base = index.base if type(index).__name__ == "Ramp" else index
        self.write(self.expressions.store(memory, base, value, kind))

    def _store_elements(self, memory: Memory, index: Any, value: str, kind: KernelType) -> None:
        """Store the elements of a vector one by one."""
        self.count += 1
        name = f"stored_{self.count}"
        self.write(f"const {self.language.register(kind)} {name} = {value};")
        for lane in range(kind.lanes):
            element = self.language.component(kind, name, lane)
            self.write(self.expressions.store(memory, index.base + index.stride * lane, element, kind.scalar()))

    def _loop(self, node: Expr) -> None:
        least, extent = self.expressions.generate(node.min), node.extent
        kind, name = self.language.register(self.expressions.kind(node.loop_var)), self.name(node.loop_var)
        last = self.expressions.generate(self.analyzer.simplify(node.min + extent))
        self._block(f"for ({kind} {name} = {least}; {name} < {last}; ++{name}) {{", node.body)
        self.write("}")

    def _block(self, head: str, body: Any) -> None:
        self.write(head)
        self.depth += 1
        self.statement(body)
        self.depth -= 1

    def _condition(self, node: Expr) -> None:
        self._block(f"if ({self.expressions.generate(node.condition)}) {{", node.then_case)
        if node.else_case is not None:
            self._block("} else {", node.else_case)
        self.write("}")

    def _evaluate(self, node: Expr) -> None:
        value = node.value
        if type(value).__name__ == "IntImm":
            return
        name = function_name(value) if type(value).__name__ == "Call" else ""
        if name == "tvm_thread_allreduce":
            self._reduce_over_threads(value)
            return
        if name != "tvm_storage_sync":
            raise StageError(f"a kernel evaluates {str(value)[:120]}", "tvm_storage_sync, tvm_thread_allreduce")
        if str(value.args[0].value) != "warp":
            for line in self.language.barrier:
                self.write(line)

    def _reduce_over_threads(self, call: Call) -> None:
        """Reduce values over all threads of a workgroup; each thread gets the total."""
        count, reducer = int(call.args[0].value), self.reducers.pop()
        values, (condition,), to = (
            call.args[1 : 1 + count],
            call.args[1 + count : 2 + count],
            call.args[2 + count : 2 + 2 * count],
        )
        operations = [_OPERATIONS.get(type(result).__name__, "") for result in reducer.result]
        memories = [self.buffers[one.source] for one in to]
        known = all(operations) and all(memory.scope == "local" for memory in memories) and constant_of(condition) == 1
        if not known or self.extents.group_size()[1:] != (1, 1):
            raise StageError(
                f"a kernel reduces over threads: {str(call)[:120]}",
                "sums, maxima and minima along threadIdx.x only, into registers",
            )
        for operation, value, made, memory in zip(operations, values, to, memories, strict=True):
            kind = self.expressions.kind(value)
            total = self.language.reduce_over_threads(
                operation, kind, self.expressions.generate(value), self.expressions.used
            )
            self.write(self.expressions.store(memory, made.indices[0], total, kind))


_OPERATIONS = {"Add": "add", "Max": "max", "Min": "min"}
_STATEMENTS: dict[str, Callable[[_StatementWriter, Any], None]] = {
    "SeqStmt": _StatementWriter._sequence,
    "DeclBuffer": _StatementWriter._skip_declaration,
    "AllocBuffer": _StatementWriter._allocate,
    "AttrStmt": _StatementWriter._attribute,
    "Bind": _StatementWriter._bind,
    "BufferStore": _StatementWriter._store,
    "For": _StatementWriter._loop,
    "IfThenElse": _StatementWriter._condition,
    "Evaluate": _StatementWriter._evaluate,
}
