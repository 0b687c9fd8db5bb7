"""The text of a kernel's function on the device, as TVM lowers it, in a language of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvmflow.gpu_codegen.expressions import Expressions, function_name
from tvmflow.gpu_codegen.language import Language
from tvmflow.gpu_codegen.memory import VECTOR, Extents, Memory, constant_of, memory_of, plain_name, with_known_indices
from tvmflow.gpu_codegen.types import KernelType, type_of
from tvmflow.support.errors import StageError

# Attributes that ask TVM's passes for something, and are of no more use.
_IGNORED = ("storage_alignment", "compute_scope", "device_scope", "realize_scope", "virtual_thread")


def text_of(
    function: Any,
    language: Language,
    name: str,
    *,
    most_texels: int = 0,
    widths: Mapping[int, int] | None = None,
    is_wide: bool = False,
) -> str:
    """Return the text of a PrimFunc of launched threads.

    name: of the function; most_texels: parameters that are only read become buffers of texels if they have at most so
    many; widths: parameter -> vectors of four in a row of the image that it is; is_wide: float16 is computed in
    float32. Raises StageError for what the language cannot say, by its name.
    """
    from tvm.sym import Analyzer

    function = _unrolled(function)
    analyzer = Analyzer()
    buffers, extents = memory_of(function, analyzer, most_texels, widths or {}, is_wide=is_wide)
    kernel = _Kernel(buffers, extents, analyzer, language, is_wide=is_wide)
    kernel.statement(function.body)
    parameters = sorted(
        (memory for memory in buffers.values() if memory.scope == "global"), key=lambda one: one.binding
    )
    return language.whole(name, parameters, extents, kernel.shared, kernel.lines, kernel.expressions.used)


def parameters_in_vectors(function: Any) -> tuple[bool, ...]:
    """Return which parameters of a device's function are read, or written, as whole vectors of four alone, so that they
    may be images.
    """
    from tvm.sym import Analyzer

    buffers, _ = memory_of(_unrolled(function), Analyzer(), 0, {}, is_wide=False)
    found = {memory.binding: memory.may_be_image for memory in buffers.values() if memory.scope == "global"}
    return tuple(found.get(at, False) for at in range(len(function.params)))


def _unrolled(function: Any) -> Any:
    import tvm
    from tvm import tirx

    body = with_known_indices(function.body)
    if body.same_as(function.body):
        return function
    passes = tvm.ir.transform.Sequential([tirx.transform.UnrollLoop(), tirx.transform.StmtSimplify()])
    return passes(tvm.IRModule({"kernel": function.with_body(body)}))["kernel"]


class _Kernel:
    """Writes the statements of one function."""

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

    def statement(self, node: Any) -> None:
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
        """Give a variable a name that no other has."""
        self.count += 1
        made = f"{plain_name(variable.name)}_{self.count}"
        self.expressions.names[variable] = made
        return made

    # -- statements --

    def _sequence(self, node: Any) -> None:
        for one in node.seq:
            self.statement(one)

    def _declared(self, node: Any) -> None:
        """Parameters are declared at the top."""

    def _allocated(self, node: Any) -> None:
        memory = self.buffers[node.buffer]
        self.expressions.used.types.add(memory.kind)
        lanes = VECTOR if memory.in_vectors else memory.kind.lanes
        kind = self.language.register(memory.kind.of_lanes(lanes))
        count = memory.count // (VECTOR if memory.in_vectors else 1)
        if memory.scope == "shared":
            self.shared.append(f"{self.language.shared} {kind} {memory.name}[{count}];")
        elif memory.as_variables:
            self.write(f"{kind} {', '.join(f'{memory.name}_{at}' for at in range(count))};")
        else:
            self.write(f"{kind} {memory.name}[{count}];")

    def _attribute(self, node: Any) -> None:
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

    def _bound(self, node: Any) -> None:
        value = self.expressions.of(node.value)
        kind = self.expressions.kind(node.value)
        if str(node.var.ty.dtype) in ("int32", "int64"):
            self.analyzer.bind(node.var, node.value, allow_override=True)
        self.write(f"const {self.language.register(kind)} {self.name(node.var)} = {value};")

    def _stored(self, node: Any) -> None:
        memory, (index,) = self.buffers[node.buffer], node.indices
        value, kind = self.expressions.of(node.value), self.expressions.kind(node.value)
        if type(index).__name__ == "Ramp" and not memory.in_vectors:
            self._stored_apart(memory, index, value, kind)
            return
        if type(index).__name__ != "Ramp" and type_of(index.ty.dtype).lanes != 1:
            raise StageError(f"a kernel stores to {str(index)[:80]}", "an index or a range of indices")
        base = index.base if type(index).__name__ == "Ramp" else index
        self.write(self.expressions.store(memory, base, value, kind))

    def _stored_apart(self, memory: Memory, index: Any, value: str, kind: KernelType) -> None:
        """Store the elements of a vector one by one."""
        self.count += 1
        name = f"stored_{self.count}"
        self.write(f"const {self.language.register(kind)} {name} = {value};")
        for lane in range(kind.lanes):
            element = self.language.component(kind, name, lane)
            self.write(self.expressions.store(memory, index.base + index.stride * lane, element, kind.scalar()))

    def _loop(self, node: Any) -> None:
        least, extent = self.expressions.of(node.min), node.extent
        kind, name = self.language.register(self.expressions.kind(node.loop_var)), self.name(node.loop_var)
        last = self.expressions.of(self.analyzer.simplify(node.min + extent))
        self._block(f"for ({kind} {name} = {least}; {name} < {last}; ++{name}) {{", node.body)
        self.write("}")

    def _block(self, head: str, body: Any) -> None:
        self.write(head)
        self.depth += 1
        self.statement(body)
        self.depth -= 1

    def _choice(self, node: Any) -> None:
        self._block(f"if ({self.expressions.of(node.condition)}) {{", node.then_case)
        if node.else_case is not None:
            self._block("} else {", node.else_case)
        self.write("}")

    def _evaluated(self, node: Any) -> None:
        value = node.value
        if type(value).__name__ == "IntImm":
            return
        name = function_name(value) if type(value).__name__ == "Call" else ""
        if name == "tvm_thread_allreduce":
            self._totals(value)
            return
        if name != "tvm_storage_sync":
            raise StageError(f"a kernel evaluates {str(value)[:120]}", "tvm_storage_sync, tvm_thread_allreduce")
        if str(value.args[0].value) != "warp":
            for line in self.language.barrier:
                self.write(line)

    def _totals(self, call: Any) -> None:
        """Give each thread what the numbers of all threads of its group make."""
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
                "sums, most and least along threadIdx.x alone, into registers",
            )
        for operation, value, made, memory in zip(operations, values, to, memories, strict=True):
            kind = self.expressions.kind(value)
            total = self.language.total(operation, kind, self.expressions.of(value), self.expressions.used)
            self.write(self.expressions.store(memory, made.indices[0], total, kind))


_OPERATIONS = {"Add": "add", "Max": "max", "Min": "min"}
_STATEMENTS: dict[str, Callable[[_Kernel, Any], None]] = {
    "SeqStmt": _Kernel._sequence,
    "DeclBuffer": _Kernel._declared,
    "AllocBuffer": _Kernel._allocated,
    "AttrStmt": _Kernel._attribute,
    "Bind": _Kernel._bound,
    "BufferStore": _Kernel._stored,
    "For": _Kernel._loop,
    "IfThenElse": _Kernel._choice,
    "Evaluate": _Kernel._evaluated,
}
