"""Expressions of TIR in a language of GPUs, in parentheses wherever that could matter. What is not listed here is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmflow.gpu_codegen.language import Language, Used
from tvmflow.gpu_codegen.memory import VECTOR, Memory, constant_of
from tvmflow.gpu_codegen.types import FLOAT32, KernelType, type_of
from tvmflow.support.errors import StageError

_BINARY = {"Add": "+", "Sub": "-", "Mul": "*"}
_COMPARED = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_BITS = {
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
    "BitwiseAnd": "&",
    "BitwiseOr": "|",
    "BitwiseXor": "^",
    "LShift": "<<",
    "RShift": ">>",
}
_MOST_MULTIPLIED = 8  # the highest power that is written as products
_WHOLE_TANH = 10.0  # from there on tanh is 1 in float32; some drivers return NaN for large numbers


class Expressions:
    """Writes expressions. names: of variables; buffers: as memory_of finds them. used: by what was written."""

    def __init__(self, buffers: dict[Any, Memory], analyzer: Any, language: Language, *, is_wide: bool) -> None:
        self.buffers, self.analyzer, self.language, self.is_wide = buffers, analyzer, language, is_wide
        self.names: dict[Any, str] = {}
        self.used = Used()

    def of(self, node: Any) -> str:
        """Return an expression of the type of its register. Raises StageError for one that is not known."""
        name = type(node).__name__
        if name in _BINARY:
            return self._wrapped(f"({self.of(node.a)} {_BINARY[name]} {self.of(node.b)})", self.kind(node))
        if name in _COMPARED:
            return self.language.compared(_COMPARED[name], self.kind(node.a), self.of(node.a), self.of(node.b))
        if name in _BITS:
            return self._wrapped(f"({self.of(node.a)} {_BITS[name]} {self.of(node.b)})", self.kind(node))
        method = _NODES.get(name)
        if method is None:
            raise StageError(
                f"a kernel has {name}, which is not known in {self.language.name}: {str(node)[:120]}",
                f"one of {', '.join(_NODES)}",
            )
        return method(self, node)

    def kind(self, node: Any) -> KernelType:
        found = type_of(node.ty.dtype, self.is_wide)
        self.used.types.add(found)
        return found

    def _wrapped(self, text: str, kind: KernelType) -> str:
        """Return what an integer of fewer bits than its register has would be."""
        if not kind.narrow_bits:
            return text
        if kind.dtype.startswith("u"):
            ones = self.language.int_literal((1 << kind.narrow_bits) - 1, kind.scalar())
            return f"({text} & {ones if kind.lanes == 1 else self.language.broadcast(kind, ones)})"
        shift = 32 - kind.narrow_bits
        return f"(({text} << {shift}) >> {shift})"

    # -- leaves --

    def _variable(self, node: Any) -> str:
        if node not in self.names:
            raise StageError(f"a kernel uses {node.name}, which nothing in it defines", "loops, threads and lets")
        return self.names[node]

    def _integer(self, node: Any) -> str:
        return self.language.int_literal(int(node.value), self.kind(node))

    def _float(self, node: Any) -> str:
        return self.language.float_literal(float(node.value), self.kind(node))

    # -- arithmetic --

    def _least(self, node: Any) -> str:
        return f"{type(node).__name__.lower()}({self.of(node.a)}, {self.of(node.b)})"

    def _not_negative(self, node: Any) -> bool:
        return bool(self.analyzer.can_prove(node.a >= 0)) and (constant_of(node.b) or 0) > 0

    def _divided(self, node: Any) -> str:
        """Div and Mod, which cut towards zero; GLSL's % is that of numbers that are not negative."""
        kind, a, b = self.kind(node), self.of(node.a), self.of(node.b)
        if type(node).__name__ == "Div":
            return f"({a} / {b})"
        if kind.computed in ("uint32", "uint64") or self._not_negative(node):
            return f"({a} % {b})"
        return f"({a} - ({a} / {b}) * {b})"

    def _floored(self, node: Any) -> str:
        """FloorDiv and FloorMod."""
        kind, is_mod = self.kind(node), type(node).__name__ == "FloorMod"
        if kind.lanes != 1 or kind.is_float:
            raise StageError(f"a kernel divides {node.ty.dtype} with a floor", "integers, not in vectors")
        a, b, power = self.of(node.a), self.of(node.b), constant_of(node.b) or 0
        if power > 0 and power & (power - 1) == 0:
            return (
                f"({a} & {self.language.int_literal(power - 1, kind)})"
                if is_mod
                else f"({a} >> {power.bit_length() - 1})"
            )
        if kind.computed == "uint32" or self._not_negative(node):
            return f"({a} {'%' if is_mod else '/'} {b})"
        if kind.computed != "int32":
            raise StageError(f"a kernel divides {node.ty.dtype} with a floor", "int32")
        return self._function("floor_mod" if is_mod else "floor_div", a, b)

    def _function(self, name: str, *arguments: str) -> str:
        if name in self.language.functions:
            self.used.functions.add(name)
        return f"{name}({', '.join(arguments)})"

    # -- conditions --

    def _both(self, node: Any) -> str:
        sign = "&&" if type(node).__name__ == "And" else "||"
        return self.language.both(sign, self.kind(node), self.of(node.a), self.of(node.b))

    def _not(self, node: Any) -> str:
        return self.language.negated(self.kind(node), self.of(node.a))

    def _select(self, node: Any) -> str:
        """Select, whose two values may both be computed."""
        condition, yes, no = self.of(node.condition), self.of(node.true_value), self.of(node.false_value)
        return self.language.selected(self.kind(node), condition, type_of(node.condition.ty.dtype).lanes, yes, no)

    def _if(self, node: Any) -> str:
        condition, yes, no = node.args
        return f"({self.of(condition)} ? {self.of(yes)} : {self.of(no)})"

    # -- types and vectors --

    def _cast(self, node: Any) -> str:
        kind, given = self.kind(node), self.kind(node.value)
        text = self.language.converted(kind, given, self.of(node.value))
        fits = (
            given.is_float
            or given.dtype == "bool"
            or (0 < given.narrow_bits < kind.narrow_bits and given.dtype[0] == kind.dtype[0])
        )
        return text if fits else self._wrapped(text, kind)

    def _broadcast(self, node: Any) -> str:
        return self.language.broadcast(self.kind(node), self.of(node.value))

    def _ramp(self, node: Any) -> str:
        kind, base, stride = self.kind(node), self.of(node.base), self.of(node.stride)
        return self.language.vector(kind, [f"{base} + {stride} * {lane}" for lane in range(kind.lanes)])

    def _shuffle(self, node: Any) -> str:
        """Shuffle: elements of vectors, one behind the other."""
        kind, elements = self.kind(node), []
        for vector in node.vectors:
            text, given = self.of(vector), self.kind(vector)
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

    def index(self, expression: Any) -> str:
        """Return an index of memory as an int."""
        text, kind = self.of(expression), type_of(expression.ty.dtype)
        return text if kind.computed == "int32" else self.language.converted(type_of("int32"), kind, text)

    def _at(self, memory: Memory, base: Any) -> str:
        """Return the index of the entry that an element is in: of a vector of four, where memory has those."""
        from tvm import tirx

        if not memory.in_vectors:
            return self.index(base)
        at = self.analyzer.simplify(tirx.floordiv(base, VECTOR))
        if not memory.width:
            return self.index(at)
        x, y = (self.index(self.analyzer.simplify(part(at, memory.width))) for part in (tirx.floormod, tirx.floordiv))
        return self.language.coordinates(x, y)

    def _own(self, memory: Memory, base: Any) -> str:
        """Return what names an entry of a thread's own memory, or of a group's."""
        if not memory.as_variables:
            return f"{memory.name}[{self._at(memory, base)}]"
        at = constant_of(self.analyzer.simplify(base))
        assert at is not None
        return f"{memory.name}_{at // VECTOR if memory.in_vectors else at}"

    def _entry(self, memory: Memory, base: Any, kind: KernelType) -> str:
        """Return what lies at an entry, as a register has it."""
        if memory.scope != "global":
            return self._own(memory, base)
        return self.language.loaded(memory, self._at(memory, base), kind, self.used)

    def _element(self, memory: Memory, base: Any, kind: KernelType) -> str:
        """Return an element, or a vector of memory whose elements are vectors."""
        if not memory.in_vectors:
            return self._entry(memory, base, kind)
        vector = kind.of_lanes(VECTOR)
        return self.language.component(
            vector, self._entry(memory, base, vector), int(self.analyzer.modular_set(base).base) % VECTOR
        )

    def store(self, memory: Memory, base: Any, value: str, kind: KernelType) -> str:
        """Return the statement that stores an entry, or an element of a vector of a thread's own. base: its first
        element.
        """
        if memory.scope == "global":
            return self.language.stored(memory, self._at(memory, base), value, kind, self.used)
        to = self._own(memory, base)
        if memory.in_vectors and kind.lanes == 1:
            to = self.language.component(kind.of_lanes(VECTOR), to, int(self.analyzer.modular_set(base).base) % VECTOR)
        return f"{to} = {value};"

    def _load(self, node: Any) -> str:
        memory, (index,) = self.buffers[node.source], node.indices
        kind = self.kind(node)
        scalar = kind.scalar()
        if type(index).__name__ != "Ramp":
            of_index = type_of(index.ty.dtype)
            if of_index.lanes == 1:
                return self._element(memory, index, kind)
            text = self.of(index)
            lanes = [self.language.component(of_index, text, lane) for lane in range(kind.lanes)]
            elements = [
                f"{memory.name}[{at}]"
                if memory.scope != "global"
                else self.language.loaded(memory, at, scalar, self.used)
                for at in lanes
            ]
        elif memory.in_vectors:
            return self._entry(memory, index.base, kind)
        else:
            elements = [self._element(memory, index.base + index.stride * lane, scalar) for lane in range(kind.lanes)]
        return self.language.vector(kind, elements)

    def _word(self, node: Any) -> str:
        """Return four int8 as a word; as one entry of memory where they are that."""
        entry = self._one_entry(node.args)
        if entry is not None:
            return self.language.loaded_word(*entry, self.used)
        kind = self.kind(node.args[0]).of_lanes(VECTOR)
        return self.language.word(self.language.vector(kind, [self.of(one) for one in node.args]), self.used)

    def _one_entry(self, loads: Any) -> tuple[Memory, str] | None:
        """Return the memory and the index of the vector that loads of four elements are; None where they are none."""
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
        return (memory, self._at(memory, base)) if is_aligned else None

    # -- calls --

    def _call(self, node: Any) -> str:
        name = str(getattr(node.op, "name", node.op))
        short = function_name(node)
        if short in _BITS:
            return self._wrapped(f"({self.of(node.args[0])} {_BITS[short]} {self.of(node.args[1])})", self.kind(node))
        method = _CALLS.get(short)
        if method is not None:
            return method(self, node)
        exact, approximate = self.language.exact, self.language.approximate
        if short in exact:
            return f"{exact[short]}({self.of(node.args[0])})"
        if short not in approximate:
            raise StageError(
                f"a kernel calls {name}, which is not known in {self.language.name}",
                f"one of {', '.join([*exact, *approximate, *_CALLS])}",
            )
        return self._in_float32(node, lambda x: self._function(approximate[short], x))

    def _in_float32(self, node: Any, write: Callable[..., str]) -> str:
        """Return a function of arguments that are float32, in the type of the call."""
        kind = self.kind(node)
        if kind.computed == "float32":
            return write(*(self.of(argument) for argument in node.args))
        wide = FLOAT32.of_lanes(kind.lanes)
        given = (self.language.converted(wide, kind, self.of(argument)) for argument in node.args)
        return self.language.converted(kind, wide, write(*given))

    def _first(self, node: Any) -> str:
        return self.of(node.args[0])

    def _power(self, node: Any) -> str:
        value = getattr(node.args[1], "value", None)
        if isinstance(value, float) and value.is_integer() and 1 <= value <= _MOST_MULTIPLIED:
            return f"({' * '.join([self.of(node.args[0])] * int(value))})"
        return self._in_float32(node, lambda base, exponent: f"pow({base}, {exponent})")

    def _remainder(self, node: Any) -> str:
        return self._in_float32(node, lambda a, b: f"({a} - {b} * trunc({a} / {b}))")

    def _tanh(self, node: Any) -> str:
        least, most = (self.language.float_literal(one, FLOAT32) for one in (-_WHOLE_TANH, _WHOLE_TANH))
        return self._in_float32(node, lambda x: f"tanh(clamp({x}, {least}, {most}))")

    def _sigmoid(self, node: Any) -> str:
        one = self.language.float_literal(1.0, FLOAT32)
        return self._in_float32(node, lambda x: f"({one} / ({one} + exp(-{x})))")

    def _fma(self, node: Any) -> str:
        return f"fma({', '.join(self.of(argument) for argument in node.args)})"

    def _dot4(self, node: Any) -> str:
        kind = self.kind(node)
        if kind.lanes not in (1, VECTOR):
            raise StageError(f"a kernel multiplies {kind.lanes} words at once", f"1 or {VECTOR}")
        name = "dot4" if kind.lanes == 1 else "dot4_in_4"
        self.used.functions.add("dot4")
        return self._function(name, *(self.of(argument) for argument in node.args))

    def _bit_not(self, node: Any) -> str:
        return self._wrapped(f"(~{self.of(node.args[0])})", self.kind(node))

    def _reinterpret(self, node: Any) -> str:
        kind, given = self.kind(node), self.kind(node.args[0])
        text = self.of(node.args[0])
        if kind == given:
            return text
        found = self.language.reinterpreted(kind, given, text) if kind.lanes == 1 else ""
        if not found:
            raise StageError(f"a kernel reinterprets {given.dtype} as {kind.dtype}", "values of 32 bits")
        return found

    def _is(self, node: Any) -> str:
        return f"{function_name(node)}({self.of(node.args[0])})"


def function_name(call: Any) -> str:
    """Return the name of an operator that is called, without the dialect that it is of."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


_NODES: dict[str, Callable[[Expressions, Any], str]] = {
    "Var": Expressions._variable,
    "IntImm": Expressions._integer,
    "FloatImm": Expressions._float,
    "Min": Expressions._least,
    "Max": Expressions._least,
    "Div": Expressions._divided,
    "Mod": Expressions._divided,
    "FloorDiv": Expressions._floored,
    "FloorMod": Expressions._floored,
    "And": Expressions._both,
    "Or": Expressions._both,
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
    "likely": Expressions._first,
    "pow": Expressions._power,
    "fmod": Expressions._remainder,
    "tanh": Expressions._tanh,
    "sigmoid": Expressions._sigmoid,
    "fma": Expressions._fma,
    "bitwise_not": Expressions._bit_not,
    "reinterpret": Expressions._reinterpret,
    "isnan": Expressions._is,
    "isinf": Expressions._is,
    "word": Expressions._word,
    "dot4": Expressions._dot4,
}
