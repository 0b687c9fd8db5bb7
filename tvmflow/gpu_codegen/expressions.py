"""Generate expressions of TIR in a GPU language; unknown nodes are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import tirx

from tvmflow.gpu_codegen.language import Language, Used
from tvmflow.gpu_codegen.memory import VECTOR, Memory, constant_of
from tvmflow.gpu_codegen.types import FLOAT32, KernelType, type_of
from tvmflow.support.errors import StageError

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import Call, Expr

_BINARY = {"Add": "+", "Sub": "-", "Mul": "*"}
_COMPARED = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_BIT_SIGNS = ("&", "|", "^", "<<", ">>")
_BIT_CALLS = ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right")
_BIT_NODES = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LShift", "RShift")
_BITS = {name: sign for names in (_BIT_CALLS, _BIT_NODES) for name, sign in zip(names, _BIT_SIGNS, strict=True)}
_MOST_MULTIPLIED = 8  # the highest power that is expanded to multiplications
_WHOLE_TANH = 10.0  # tanh is 1 in float32 beyond; some drivers return NaN for large numbers


class Expressions:
    """Generate expressions.

    names: of variables; buffers: from memory_of; used: types and functions used so far.
    """

    def __init__(self, buffers: dict[Any, Memory], analyzer: Any, language: Language, *, is_wide: bool) -> None:
        self.buffers, self.analyzer, self.language, self.is_wide = buffers, analyzer, language, is_wide
        self.names: dict[Any, str] = {}
        self.used = Used()

    def generate(self, node: Expr) -> str:
        """Return a node as an expression of its register type. Raises StageError for unknown nodes."""
        name = type(node).__name__
        if sign := _BINARY.get(name) or _BITS.get(name):
            return self._wrap(f"({self.generate(node.a)} {sign} {self.generate(node.b)})", self.kind(node))
        if name in _COMPARED:
            return self.language.compare(
                _COMPARED[name], self.kind(node.a), self.generate(node.a), self.generate(node.b)
            )
        method = _NODES.get(name)
        if method is None:
            raise StageError(
                f"a kernel has {name}, which is not known in {self.language.name}: {str(node)[:120]}",
                f"one of {', '.join(_NODES)}",
            )
        return method(self, node)

    def kind(self, node: Expr) -> KernelType:
        found = type_of(node.ty.dtype, self.is_wide)
        self.used.types.add(found)
        return found

    def _wrap(self, text: str, kind: KernelType) -> str:
        """Return an integer wrapped to its narrow type; registers have 32 bits."""
        if not kind.narrow_bits:
            return text
        if kind.dtype.startswith("u"):
            ones = self.language.int_literal((1 << kind.narrow_bits) - 1, kind.scalar())
            return f"({text} & {ones if kind.lanes == 1 else self.language.broadcast(kind, ones)})"
        shift = 32 - kind.narrow_bits
        return f"(({text} << {shift}) >> {shift})"

    # -- leaves --

    def _variable(self, node: Expr) -> str:
        if node not in self.names:
            raise StageError(f"a kernel uses {node.name}, which nothing in it defines", "loops, threads and lets")
        return self.names[node]

    def _integer(self, node: Expr) -> str:
        return self.language.int_literal(int(node.value), self.kind(node))

    def _float(self, node: Expr) -> str:
        return self.language.float_literal(float(node.value), self.kind(node))

    # -- arithmetic --

    def _minmax(self, node: Expr) -> str:
        return f"{type(node).__name__.lower()}({self.generate(node.a)}, {self.generate(node.b)})"

    def _is_not_negative(self, node: Expr) -> bool:
        return bool(self.analyzer.can_prove(node.a >= 0)) and (constant_of(node.b) or 0) > 0

    def _truncated_division(self, node: Expr) -> str:
        """Return Div or Mod, which round towards zero; GLSL's % is undefined for negative numbers."""
        kind, a, b = self.kind(node), self.generate(node.a), self.generate(node.b)
        if type(node).__name__ == "Div":
            return f"({a} / {b})"
        if kind.computed in ("uint32", "uint64") or self._is_not_negative(node):
            return f"({a} % {b})"
        return f"({a} - ({a} / {b}) * {b})"

    def _floor_division(self, node: Expr) -> str:
        """Return FloorDiv or FloorMod."""
        kind, is_mod = self.kind(node), type(node).__name__ == "FloorMod"
        if kind.lanes != 1 or kind.is_float:
            raise StageError(f"a kernel divides {node.ty.dtype} with a floor", "integers, not in vectors")
        a, b, power = self.generate(node.a), self.generate(node.b), constant_of(node.b) or 0
        if power > 0 and power & (power - 1) == 0:
            return (
                f"({a} & {self.language.int_literal(power - 1, kind)})"
                if is_mod
                else f"({a} >> {power.bit_length() - 1})"
            )
        if kind.computed == "uint32" or self._is_not_negative(node):
            return f"({a} {'%' if is_mod else '/'} {b})"
        if kind.computed != "int32":
            raise StageError(f"a kernel divides {node.ty.dtype} with a floor", "int32")
        return self._function("floor_mod" if is_mod else "floor_div", a, b)

    def _function(self, name: str, *arguments: str) -> str:
        if name in self.language.functions:
            self.used.functions.add(name)
        return f"{name}({', '.join(arguments)})"

    # -- conditions --

    def _logical(self, node: Expr) -> str:
        sign = "&&" if type(node).__name__ == "And" else "||"
        return self.language.combine_conditions(sign, self.kind(node), self.generate(node.a), self.generate(node.b))

    def _not(self, node: Expr) -> str:
        return self.language.negate(self.kind(node), self.generate(node.a))

    def _select(self, node: Expr) -> str:
        """Return Select, both values of which may be evaluated."""
        condition, yes, no = (
            self.generate(node.condition),
            self.generate(node.true_value),
            self.generate(node.false_value),
        )
        return self.language.select(self.kind(node), condition, type_of(node.condition.ty.dtype).lanes, yes, no)

    def _if(self, node: Expr) -> str:
        condition, yes, no = node.args
        return f"({self.generate(condition)} ? {self.generate(yes)} : {self.generate(no)})"

    # -- types and vectors --

    def _cast(self, node: Expr) -> str:
        kind, given = self.kind(node), self.kind(node.value)
        text = self.language.convert(kind, given, self.generate(node.value))
        fits = (
            given.is_float
            or given.dtype == "bool"
            or (0 < given.narrow_bits < kind.narrow_bits and given.dtype[0] == kind.dtype[0])
        )
        return text if fits else self._wrap(text, kind)

    def _broadcast(self, node: Expr) -> str:
        return self.language.broadcast(self.kind(node), self.generate(node.value))

    def _ramp(self, node: Expr) -> str:
        kind, base, stride = self.kind(node), self.generate(node.base), self.generate(node.stride)
        return self.language.vector(kind, [f"{base} + {stride} * {lane}" for lane in range(kind.lanes)])

    def _shuffle(self, node: Expr) -> str:
        """Return Shuffle: chosen elements of concatenated vectors."""
        kind, elements = self.kind(node), []
        for vector in node.vectors:
            text, given = self.generate(vector), self.kind(vector)
            lanes = range(given.lanes)
            elements += [text] if given.lanes == 1 else [self.language.component(given, text, lane) for lane in lanes]
        picked = []
        for index in node.indices:
            at = constant_of(index)
            if at is None or not 0 <= at < len(elements):
                raise StageError(f"a kernel shuffles by {index}", "numbers")
            picked.append(elements[at])
        return picked[0] if kind.lanes == 1 else self.language.vector(kind, picked)

    # -- memory --

    def index(self, expression: Expr) -> str:
        """Return an index of memory as an int."""
        text, kind = self.generate(expression), type_of(expression.ty.dtype)
        return text if kind.computed == "int32" else self.language.convert(type_of("int32"), kind, text)

    def _entry_index(self, memory: Memory, base: Any) -> str:
        """Return the index of the entry that contains an element: a vector of four, if the memory has vectors."""
        if not memory.in_vectors:
            return self.index(base)
        at = self.analyzer.simplify(tirx.floordiv(base, VECTOR))
        if not memory.width:
            return self.index(at)
        x, y = (self.index(self.analyzer.simplify(part(at, memory.width))) for part in (tirx.floormod, tirx.floordiv))
        return self.language.coordinates(x, y)

    def _local_entry(self, memory: Memory, base: Any) -> str:
        """Return an entry of thread-local or shared memory."""
        if not memory.as_variables:
            return f"{memory.name}[{self._entry_index(memory, base)}]"
        at = constant_of(self.analyzer.simplify(base))
        assert at is not None
        return f"{memory.name}_{at // VECTOR if memory.in_vectors else at}"

    def _load_entry(self, memory: Memory, base: Any, kind: KernelType) -> str:
        """Return the value of an entry in its register type."""
        if memory.scope != "global":
            return self._local_entry(memory, base)
        return self.language.load(memory, self._entry_index(memory, base), kind, self.used)

    def _load_element(self, memory: Memory, base: Any, kind: KernelType) -> str:
        """Return an element, which may be a component of a vector."""
        if not memory.in_vectors:
            return self._load_entry(memory, base, kind)
        vector = kind.with_lanes(VECTOR)
        return self.language.component(
            vector, self._load_entry(memory, base, vector), int(self.analyzer.modular_set(base).base) % VECTOR
        )

    def store(self, memory: Memory, base: Any, value: str, kind: KernelType) -> str:
        """Return the statement that stores an entry, or a component of a local vector. base: index of its first
        element.
        """
        if memory.scope == "global":
            return self.language.store(memory, self._entry_index(memory, base), value, kind, self.used)
        to = self._local_entry(memory, base)
        if memory.in_vectors and kind.lanes == 1:
            to = self.language.component(
                kind.with_lanes(VECTOR), to, int(self.analyzer.modular_set(base).base) % VECTOR
            )
        return f"{to} = {value};"

    def _load(self, node: Expr) -> str:
        memory, (index,) = self.buffers[node.source], node.indices
        kind = self.kind(node)
        scalar = kind.scalar()
        if type(index).__name__ != "Ramp":
            of_index = type_of(index.ty.dtype)
            if of_index.lanes == 1:
                return self._load_element(memory, index, kind)
            text = self.generate(index)
            lanes = [self.language.component(of_index, text, lane) for lane in range(kind.lanes)]
            elements = [
                f"{memory.name}[{at}]"
                if memory.scope != "global"
                else self.language.load(memory, at, scalar, self.used)
                for at in lanes
            ]
        elif memory.in_vectors:
            return self._load_entry(memory, index.base, kind)
        else:
            elements = [
                self._load_element(memory, index.base + index.stride * lane, scalar) for lane in range(kind.lanes)
            ]
        return self.language.vector(kind, elements)

    def _pack_word(self, node: Expr) -> str:
        """Return four int8 as a word; a single load if they are one entry of memory."""
        entry = self._match_vector(node.args)
        if entry is not None:
            return self.language.load_word(*entry, self.used)
        kind = self.kind(node.args[0]).with_lanes(VECTOR)
        return self.language.word(self.language.vector(kind, [self.generate(one) for one in node.args]), self.used)

    def _match_vector(self, loads: Any) -> tuple[Memory, str] | None:
        """Return the memory and index of the aligned vector that four loads read, None if they read anything else."""
        if any(type(one).__name__ != "TensorLoad" for one in loads):
            return None
        memory, base = self.buffers[loads[0].source], loads[0].indices[0]
        together = all(
            self.buffers[one.source] is memory and constant_of(self.analyzer.simplify(one.indices[0] - base)) == at
            for at, one in enumerate(loads)
        )
        if not together or memory.scope != "global" or not memory.in_vectors:
            return None
        steps = self.analyzer.modular_set(base)
        is_aligned = int(steps.coeff) % VECTOR == 0 and int(steps.base) % VECTOR == 0
        return (memory, self._entry_index(memory, base)) if is_aligned else None

    # -- calls --

    def _call(self, node: Expr) -> str:
        name = str(getattr(node.op, "name", node.op))
        short = function_name(node)
        if short in _BITS:
            return self._wrap(
                f"({self.generate(node.args[0])} {_BITS[short]} {self.generate(node.args[1])})", self.kind(node)
            )
        method = _CALLS.get(short)
        if method is not None:
            return method(self, node)
        exact, approximate = self.language.exact, self.language.approximate
        if short in exact:
            return f"{exact[short]}({self.generate(node.args[0])})"
        if short not in approximate:
            raise StageError(
                f"a kernel calls {name}, which is not known in {self.language.name}",
                f"one of {', '.join([*exact, *approximate, *_CALLS])}",
            )
        return self._compute_in_float32(node, lambda x: self._function(approximate[short], x))

    def _compute_in_float32(self, node: Expr, write: Callable[..., str]) -> str:
        """Return a function that is computed in float32, in the type of the call."""
        kind = self.kind(node)
        if kind.computed == "float32":
            return write(*(self.generate(argument) for argument in node.args))
        wide = FLOAT32.with_lanes(kind.lanes)
        given = (self.language.convert(wide, kind, self.generate(argument)) for argument in node.args)
        return self.language.convert(kind, wide, write(*given))

    def _forward(self, node: Expr) -> str:
        return self.generate(node.args[0])

    def _power(self, node: Expr) -> str:
        value = getattr(node.args[1], "value", None)
        if isinstance(value, float) and value.is_integer() and 1 <= value <= _MOST_MULTIPLIED:
            return f"({' * '.join([self.generate(node.args[0])] * int(value))})"
        return self._compute_in_float32(node, lambda base, exponent: f"pow({base}, {exponent})")

    def _remainder(self, node: Expr) -> str:
        return self._compute_in_float32(node, lambda a, b: f"({a} - {b} * trunc({a} / {b}))")

    def _tanh(self, node: Expr) -> str:
        least, most = (self.language.float_literal(one, FLOAT32) for one in (-_WHOLE_TANH, _WHOLE_TANH))
        return self._compute_in_float32(node, lambda x: f"tanh(clamp({x}, {least}, {most}))")

    def _sigmoid(self, node: Expr) -> str:
        one = self.language.float_literal(1.0, FLOAT32)
        return self._compute_in_float32(node, lambda x: f"({one} / ({one} + exp(-{x})))")

    def _fma(self, node: Expr) -> str:
        return f"fma({', '.join(self.generate(argument) for argument in node.args)})"

    def _dot4(self, node: Expr) -> str:
        kind = self.kind(node)
        if kind.lanes not in (1, VECTOR):
            raise StageError(f"a kernel multiplies {kind.lanes} words at once", f"1 or {VECTOR}")
        name = "dot4" if kind.lanes == 1 else "dot4_in_4"
        self.used.functions.add("dot4")
        return self._function(name, *(self.generate(argument) for argument in node.args))

    def _bit_not(self, node: Expr) -> str:
        return self._wrap(f"(~{self.generate(node.args[0])})", self.kind(node))

    def _reinterpret(self, node: Expr) -> str:
        kind, given = self.kind(node), self.kind(node.args[0])
        text = self.generate(node.args[0])
        if kind == given:
            return text
        found = self.language.reinterpret(kind, given, text) if kind.lanes == 1 else ""
        if not found:
            raise StageError(f"a kernel reinterprets {given.dtype} as {kind.dtype}", "values of 32 bits")
        return found

    def _classify(self, node: Expr) -> str:
        return f"{function_name(node)}({self.generate(node.args[0])})"


def function_name(call: Call) -> str:
    """Return the name of a called operator without its dialect."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


_NODES: dict[str, Callable[[Expressions, Any], str]] = {
    "Var": Expressions._variable,
    "IntImm": Expressions._integer,
    "FloatImm": Expressions._float,
    "Min": Expressions._minmax,
    "Max": Expressions._minmax,
    "Div": Expressions._truncated_division,
    "Mod": Expressions._truncated_division,
    "FloorDiv": Expressions._floor_division,
    "FloorMod": Expressions._floor_division,
    "And": Expressions._logical,
    "Or": Expressions._logical,
    "Not": Expressions._not,
    "Select": Expressions._select,
    "Cast": Expressions._cast,
    "Broadcast": Expressions._broadcast,
    "Ramp": Expressions._ramp,
    "Shuffle": Expressions._shuffle,
    "TensorLoad": Expressions._load,
    "Call": Expressions._call,
}
_CALLS: dict[str, Callable[[Expressions, Any], str]] = {
    "if_then_else": Expressions._if,
    "likely": Expressions._forward,
    "pow": Expressions._power,
    "fmod": Expressions._remainder,
    "tanh": Expressions._tanh,
    "sigmoid": Expressions._sigmoid,
    "fma": Expressions._fma,
    "bitwise_not": Expressions._bit_not,
    "reinterpret": Expressions._reinterpret,
    "isnan": Expressions._classify,
    "isinf": Expressions._classify,
    "word": Expressions._pack_word,
    "dot4": Expressions._dot4,
}
