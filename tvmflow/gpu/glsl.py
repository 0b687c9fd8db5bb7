"""GLSL of a kernel's function on the device, as TVM lowers it.

Parameter k is the storage buffer of set 0, binding k, or a buffer of texels there; of texels of one value at binding 64 + k. Sizes, strides and loops are numbers, so that a shader needs nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tvmflow.errors import StageError
from tvmflow.gpu.glsl_expressions import Expressions, function_name
from tvmflow.gpu.glsl_memory import SINGLE_TEXELS, VECTOR, Extents, Memory, memory_of, plain_name, with_known_indices
from tvmflow.gpu.glsl_types import FUNCTIONS, LANES, GlslType, type_of

_AXES = {
    f"{tag}.{axis}": f"int({builtin}.{axis})"
    for tag, builtin in (("blockIdx", "gl_WorkGroupID"), ("threadIdx", "gl_LocalInvocationID"))
    for axis in "xyz"
}
# Attributes that ask TVM's passes for something, and are of no more use.
_IGNORED = ("reduce_scope", "storage_alignment", "compute_scope", "device_scope", "realize_scope", "virtual_thread")


def glsl_of(function: Any, most_texels: int = 0, *, computes_float16: bool = True) -> str:
    """Return the shader of a device's function, a PrimFunc of launched threads.

    most_texels: parameters that are only read become buffers of texels if they have at most so many (the device's maxTexelBufferElements; 65536 is
    what every device has). computes_float16: else float16 is computed in float32, and rounded where it is stored. Raises StageError for what GLSL cannot say, by its name.
    """
    from tvm.sym import Analyzer

    function = _unrolled(function)
    analyzer = Analyzer()
    buffers, extents = memory_of(function, analyzer, most_texels, is_wide=not computes_float16)
    kernel = _Kernel(buffers, analyzer, is_wide=not computes_float16)
    kernel.statement(function.body)
    return kernel.text(extents)


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

    def __init__(self, buffers: dict[Any, Memory], analyzer: Any, *, is_wide: bool) -> None:
        self.expressions = Expressions(buffers, analyzer, is_wide=is_wide)
        self.buffers, self.analyzer = buffers, analyzer
        self.lines: list[str] = []
        self.shared: list[str] = []
        self.depth = 1
        self.count = 0

    def statement(self, node: Any) -> None:
        method = _STATEMENTS.get(type(node).__name__)
        if method is None:
            raise StageError(
                f"a kernel has {type(node).__name__}, which is not known in GLSL: {str(node)[:120]}",
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
        self.expressions.types.add(memory.kind)
        lanes = VECTOR if memory.in_vectors else memory.kind.lanes
        kind, count = memory.kind.of_lanes(lanes).register, memory.count // (VECTOR if memory.in_vectors else 1)
        if memory.scope == "shared":
            self.shared.append(f"shared {kind} {memory.name}[{count}];")
        elif memory.as_variables:
            self.write(f"{kind} {', '.join(f'{memory.name}_{at}' for at in range(count))};")
        else:
            self.write(f"{kind} {memory.name}[{count}];")

    def _attribute(self, node: Any) -> None:
        key = str(node.attr_key)
        if key == "thread_extent":
            axis = _AXES.get(str(node.node.thread_tag))
            if axis is None:
                raise StageError(f"a kernel is launched over {node.node.thread_tag}", f"{', '.join(_AXES)}")
            self.write(f"const int {self.name(node.node.var)} = {axis};")
        elif key not in _IGNORED and not key.startswith("pragma_"):
            raise StageError(
                f"a kernel has attribute {key}, which is not known in GLSL",
                f"thread_extent, pragmas, {', '.join(_IGNORED)}",
            )
        self.statement(node.body)

    def _bound(self, node: Any) -> None:
        value = self.expressions.of(node.value)
        kind = self.expressions.kind(node.value)
        if str(node.var.ty.dtype) in ("int32", "int64"):
            self.analyzer.bind(node.var, node.value, allow_override=True)
        self.write(f"const {kind.register} {self.name(node.var)} = {value};")

    def _stored(self, node: Any) -> None:
        memory, (index,) = self.buffers[node.buffer], node.indices
        value, kind = self.expressions.of(node.value), self.expressions.kind(node.value)
        if type(index).__name__ == "Ramp" and not memory.in_vectors:
            self._stored_apart(memory, index, value, kind)
            return
        if type(index).__name__ == "Ramp":
            to = self.expressions.vector(memory, index.base)
        elif type_of(index.ty.dtype).lanes == 1:
            to = self.expressions.element(memory, index)
        else:
            raise StageError(f"a kernel stores to {str(index)[:80]}", "an index or a range of indices")
        self.write(f"{to} = {_as_stored(memory, value, kind)};")
        if memory.in_words:
            self.expressions.functions.add(f"pack_{memory.kind.dtype}")

    def _stored_apart(self, memory: Memory, index: Any, value: str, kind: GlslType) -> None:
        """Store the elements of a vector one by one."""
        self.count += 1
        name = f"stored_{self.count}"
        self.write(f"const {kind.register} {name} = {value};")
        for lane in range(kind.lanes):
            to = self.expressions.element(memory, index.base + index.stride * lane)
            self.write(f"{to} = {_as_stored(memory, f'{name}.{LANES[lane]}', kind.scalar())};")

    def _loop(self, node: Any) -> None:
        least, extent = self.expressions.of(node.min), node.extent
        kind, name = self.expressions.kind(node.loop_var).register, self.name(node.loop_var)
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
        if type(value).__name__ != "Call" or function_name(value) != "tvm_storage_sync":
            raise StageError(f"a kernel evaluates {str(value)[:120]}", "tvm_storage_sync")
        if str(value.args[0].value) != "warp":
            self.write("memoryBarrierShared();")
            self.write("barrier();")

    # -- the whole --

    def text(self, extents: Extents) -> str:
        """Return the shader."""
        expressions = self.expressions
        parameters = sorted(
            (memory for memory in self.buffers.values() if memory.scope == "global"), key=lambda memory: memory.binding
        )
        for memory in parameters:
            if memory.accesses and not memory.texel_lanes and not memory.in_words:
                expressions.stored.add(memory.kind)
        names = [name for kind in expressions.types for name in kind.arithmetic_extensions]
        names += [name for kind in expressions.stored for name in kind.memory_extensions]
        extensions = sorted(set(names))
        x, y, z = extents.group_size()
        lines = [
            "#version 450",
            *(f"#extension {name} : require" for name in extensions),
            f"layout(local_size_x = {x}, local_size_y = {y}, local_size_z = {z}) in;",
        ]
        lines += [_block_of(memory) for memory in parameters]
        lines += self.shared
        lines += [FUNCTIONS[name] for name in sorted(expressions.functions)]
        return "\n".join([*lines, "void main() {", *self.lines, "}"]) + "\n"


def _as_stored(memory: Memory, value: str, kind: GlslType) -> str:
    """Return a value of a register's type as memory has it."""
    if memory.scope != "global":
        return value
    if memory.in_words:
        return f"pack_{memory.kind.dtype}({value})"
    if memory.kind.memory == memory.kind.register:
        return value
    return f"{memory.kind.of_lanes(kind.lanes).memory}({value})"


def _block_of(memory: Memory) -> str:
    """Return the declaration of a parameter's buffer."""
    if memory.texel_lanes:
        binding = memory.binding + (SINGLE_TEXELS if memory.texel_lanes == 1 else 0)
        prefix = {"float": "", "int": "i", "uint": "u"}[re.sub("[^a-z]", "", memory.kind.dtype)]
        return f"layout(set = 0, binding = {binding}) uniform {prefix}samplerBuffer {memory.name};"
    element = (
        "uint" if memory.in_words else memory.kind.of_lanes(VECTOR if memory.in_vectors else memory.kind.lanes).memory
    )
    access = "" if memory.is_read and memory.is_written else "writeonly " if memory.is_written else "readonly "
    return f"layout(std430, set = 0, binding = {memory.binding}) restrict {access}buffer Block{memory.binding} {{ {element} {memory.name}[]; }};"


_STATEMENTS: dict[str, Callable[[_Kernel, Any], None]] = {
    "SeqStmt": _Kernel._sequence, "DeclBuffer": _Kernel._declared, "AllocBuffer": _Kernel._allocated, "AttrStmt": _Kernel._attribute,
    "Bind": _Kernel._bound, "BufferStore": _Kernel._stored, "For": _Kernel._loop, "IfThenElse": _Kernel._choice, "Evaluate": _Kernel._evaluated,
}  # fmt: skip
