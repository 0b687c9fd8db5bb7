"""Expressions of TIR in GLSL, in parentheses wherever that could matter. What is not listed here is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmflow.errors import StageError
from tvmflow.gpu.glsl_memory import VECTOR, Memory, constant_of
from tvmflow.gpu.glsl_types import FUNCTIONS, LANES, GlslType, float_literal, int_literal, type_of

_BINARY = {"Add": "+", "Sub": "-", "Mul": "*"}
_COMPARED = {
    "EQ": ("==", "equal"), "NE": ("!=", "notEqual"), "LT": ("<", "lessThan"), "LE": ("<=", "lessThanEqual"), "GT": (">", "greaterThan"),
    "GE": (">=", "greaterThanEqual"),
}  # fmt: skip
_BITS = {
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "shift_left": "<<", "shift_right": ">>",
    "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "LShift": "<<", "RShift": ">>",
}  # fmt: skip
# Functions of one argument that GLSL has under these names.
_EXACT = {
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "roundEven",
    "nearbyint": "roundEven",
    "fabs": "abs",
}
# Those that are approximations; float16 is computed in float32: half of the bits would be wrong, and llvmpipe ends the process.
_APPROXIMATE = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "rsqrt": "inversesqrt", "sin": "sin", "cos": "cos", "tan": "tan", "atan": "atan",
    "asin": "asin", "acos": "acos", "sinh": "sinh", "cosh": "cosh", "erf": "erf",
}  # fmt: skip
_MOST_MULTIPLIED = 8  # the highest power that is written as products
_WHOLE_TANH = 10.0  # from there on tanh is 1 in float32; some drivers return NaN for large numbers


class Expressions:
    """Writes expressions. names: of variables; buffers: as memory_of finds them. After it: `functions`, `types` in registers and `stored` ones that what was written uses."""

    def __init__(self, buffers: dict[Any, Memory], analyzer: Any, *, is_wide: bool) -> None:
        self.buffers, self.analyzer, self.is_wide = buffers, analyzer, is_wide
        self.names: dict[Any, str] = {}
        self.functions: set[str] = set()
        self.types: set[GlslType] = set()
        self.stored: set[GlslType] = set()

    def of(self, node: Any) -> str:
        """Return an expression of the type of its register. Raises StageError for one that is not known."""
        name = type(node).__name__
        if name in _BINARY:
            return self._wrapped(f"({self.of(node.a)} {_BINARY[name]} {self.of(node.b)})", self.kind(node))
        if name in _COMPARED:
            return self._compared(node, *_COMPARED[name])
        if name in _BITS:
            return self._wrapped(f"({self.of(node.a)} {_BITS[name]} {self.of(node.b)})", self.kind(node))
        method = _NODES.get(name)
        if method is None:
            raise StageError(
                f"a kernel has {name}, which is not known in GLSL: {str(node)[:120]}", f"one of {', '.join(_NODES)}"
            )
        return method(self, node)

    def kind(self, node: Any) -> GlslType:
        found = type_of(node.ty.dtype, self.is_wide)
        self.types.add(found)
        return found

    def _wrapped(self, text: str, kind: GlslType) -> str:
        """Return what an integer of fewer bits than its register has would be."""
        if not kind.narrow_bits:
            return text
        if kind.dtype.startswith("u"):
            return f"({text} & {kind.register}({(1 << kind.narrow_bits) - 1}u))"
        shift = 32 - kind.narrow_bits
        return f"(({text} << {shift}) >> {shift})"

    # -- leaves --

    def _variable(self, node: Any) -> str:
        if node not in self.names:
            raise StageError(f"a kernel uses {node.name}, which nothing in it defines", "loops, threads and lets")
        return self.names[node]

    def _integer(self, node: Any) -> str:
        return int_literal(int(node.value), self.kind(node))

    def _float(self, node: Any) -> str:
        return float_literal(float(node.value), self.kind(node))

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
        if kind.register in ("uint", "uint64_t") or self._not_negative(node):
            return f"({a} % {b})"
        return f"({a} - ({a} / {b}) * {b})"

    def _floored(self, node: Any) -> str:
        """FloorDiv and FloorMod."""
        kind, is_mod = self.kind(node), type(node).__name__ == "FloorMod"
        if kind.lanes != 1 or kind.is_float:
            raise StageError(f"a kernel divides {node.ty.dtype} with a floor", "integers, not in vectors")
        a, b, power = self.of(node.a), self.of(node.b), constant_of(node.b) or 0
        if power > 0 and power & (power - 1) == 0:
            return f"({a} & {int_literal(power - 1, kind)})" if is_mod else f"({a} >> {power.bit_length() - 1})"
        if kind.register == "uint" or self._not_negative(node):
            return f"({a} {'%' if is_mod else '/'} {b})"
        if kind.register != "int":
            raise StageError(f"a kernel divides {node.ty.dtype} with a floor", "int32")
        return self._function("floor_mod" if is_mod else "floor_div", a, b)

    def _function(self, name: str, *arguments: str) -> str:
        if name in FUNCTIONS:
            self.functions.add(name)
        return f"{name}({', '.join(arguments)})"

    # -- conditions --

    def _compared(self, node: Any, sign: str, function: str) -> str:
        a, b = self.of(node.a), self.of(node.b)
        return f"({a} {sign} {b})" if self.kind(node).lanes == 1 else f"{function}({a}, {b})"

    def _both(self, node: Any) -> str:
        sign = "&&" if type(node).__name__ == "And" else "||"
        kind, a, b = self.kind(node), self.of(node.a), self.of(node.b)
        if kind.lanes == 1:
            return f"({a} {sign} {b})"
        return f"{kind.register}({', '.join(f'{a}.{c} {sign} {b}.{c}' for c in LANES[: kind.lanes])})"

    def _not(self, node: Any) -> str:
        return f"(!{self.of(node.a)})" if self.kind(node).lanes == 1 else f"not({self.of(node.a)})"

    def _select(self, node: Any) -> str:
        """Select, whose two values may both be computed."""
        kind = self.kind(node)
        condition, yes, no = self.of(node.condition), self.of(node.true_value), self.of(node.false_value)
        if kind.register in ("int64_t", "uint64_t"):
            return f"({condition} ? {yes} : {no})"
        if kind.lanes != 1 and type_of(node.condition.ty.dtype).lanes == 1:
            condition = f"bvec{kind.lanes}({condition})"
        return f"mix({no}, {yes}, {condition})"

    def _if(self, node: Any) -> str:
        condition, yes, no = node.args
        return f"({self.of(condition)} ? {self.of(yes)} : {self.of(no)})"

    # -- types and vectors --

    def _cast(self, node: Any) -> str:
        kind, given = self.kind(node), self.kind(node.value)
        text = f"{kind.register}({self.of(node.value)})"
        fits = (
            given.is_float
            or given.dtype == "bool"
            or (0 < given.narrow_bits < kind.narrow_bits and given.dtype[0] == kind.dtype[0])
        )
        return text if fits else self._wrapped(text, kind)

    def _broadcast(self, node: Any) -> str:
        return f"{self.kind(node).register}({self.of(node.value)})"

    def _ramp(self, node: Any) -> str:
        kind, base, stride = self.kind(node), self.of(node.base), self.of(node.stride)
        return f"{kind.register}({', '.join(f'{base} + {stride} * {lane}' for lane in range(kind.lanes))})"

    def _shuffle(self, node: Any) -> str:
        """Shuffle: elements of vectors, one behind the other."""
        kind, elements = self.kind(node), []
        for vector in node.vectors:
            text, lanes = self.of(vector), self.kind(vector).lanes
            elements += [text] if lanes == 1 else [f"{text}.{c}" for c in LANES[:lanes]]
        picked = []
        for index in node.indices:
            at = constant_of(index)
            if at is None or not 0 <= at < len(elements):
                raise StageError(f"a kernel shuffles by {index}", "numbers")
            picked.append(elements[at])
        return picked[0] if kind.lanes == 1 else f"{kind.register}({', '.join(picked)})"

    # -- memory --

    def index(self, expression: Any) -> str:
        """Return an index of memory as GLSL's int."""
        text = self.of(expression)
        return text if type_of(expression.ty.dtype).register == "int" else f"int({text})"

    def vector_index(self, base: Any) -> str:
        """Return which vector of four an element is in."""
        from tvm import tirx

        return self.index(self.analyzer.simplify(tirx.floordiv(base, VECTOR)))

    def element(self, memory: Memory, base: Any) -> str:
        """Return what names an element of memory, or a vector of memory whose elements are vectors."""
        if memory.in_vectors:
            at = int(self.analyzer.modular_set(base).base) % VECTOR
            return f"{self.vector(memory, base)}.{LANES[at]}"
        if memory.as_variables:
            return f"{memory.name}_{constant_of(self.analyzer.simplify(base))}"
        return _at(memory, self.index(base))

    def vector(self, memory: Memory, base: Any) -> str:
        """Return what names four elements of memory that is in vectors."""
        if memory.as_variables:
            at = constant_of(self.analyzer.simplify(base))
            assert at is not None
            return f"{memory.name}_{at // VECTOR}"
        return _at(memory, self.vector_index(base))

    def _load(self, node: Any) -> str:
        memory, (index,) = self.buffers[node.source], node.indices
        kind = self.kind(node)
        if type(index).__name__ != "Ramp":
            if type_of(index.ty.dtype).lanes == 1:
                return self._loaded(memory, self.element(memory, index), kind)
            text = self.of(index)
            elements = [_at(memory, f"{text}.{c}") for c in LANES[: kind.lanes]]
        elif memory.in_vectors:
            return self._loaded(memory, self.vector(memory, index.base), kind)
        else:
            elements = [self.element(memory, index.base + index.stride * lane) for lane in range(kind.lanes)]
        scalar = kind.scalar()
        return f"{kind.register}({', '.join(self._loaded(memory, one, scalar) for one in elements)})"

    def _loaded(self, memory: Memory, text: str, kind: GlslType) -> str:
        """Return what lies in memory, in its register's type."""
        if memory.scope != "global":
            return text
        if memory.texel_lanes:
            return (
                f"{kind.register}({text})" if kind.register.startswith("f16") or kind.register == "float16_t" else text
            )
        if memory.in_words:
            word, dot, element = text.partition("].")
            return self._function(f"unpack_{memory.kind.dtype}", f"{word}]" if dot else word) + (
                f".{element}" if dot else ""
            )
        if memory.kind.dtype == "bool":
            return (
                f"(uint({text}) != 0u)"
                if kind.lanes == 1
                else f"notEqual(uvec{kind.lanes}({text}), uvec{kind.lanes}(0u))"
            )
        return text if memory.kind.memory == memory.kind.register else f"{kind.register}({text})"

    # -- calls --

    def _call(self, node: Any) -> str:
        name = str(getattr(node.op, "name", node.op))
        short = function_name(node)
        if short in _BITS:
            return self._wrapped(f"({self.of(node.args[0])} {_BITS[short]} {self.of(node.args[1])})", self.kind(node))
        method = _CALLS.get(short)
        if method is not None:
            return method(self, node)
        if short in _EXACT:
            return f"{_EXACT[short]}({self.of(node.args[0])})"
        if short not in _APPROXIMATE:
            raise StageError(
                f"a kernel calls {name}, which is not known in GLSL",
                f"one of {', '.join([*_EXACT, *_APPROXIMATE, *_CALLS])}",
            )
        return self._in_float32(node, lambda x: self._function(_APPROXIMATE[short], x))

    def _in_float32(self, node: Any, write: Callable[..., str]) -> str:
        """Return a function of arguments that are float32, in the type of the call."""
        kind = self.kind(node)
        wide = GlslType("float32", kind.lanes).register
        if kind.register == wide:
            return write(*(self.of(argument) for argument in node.args))
        return f"{kind.register}({write(*(f'{wide}({self.of(argument)})' for argument in node.args))})"

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
        return self._in_float32(node, lambda x: f"tanh(clamp({x}, -{_WHOLE_TANH}, {_WHOLE_TANH}))")

    def _sigmoid(self, node: Any) -> str:
        return self._in_float32(node, lambda x: f"(1.0 / (1.0 + exp(-{x})))")

    def _fma(self, node: Any) -> str:
        return f"fma({', '.join(self.of(argument) for argument in node.args)})"

    def _bit_not(self, node: Any) -> str:
        return self._wrapped(f"(~{self.of(node.args[0])})", self.kind(node))

    def _reinterpret(self, node: Any) -> str:
        kind, given = self.kind(node), self.kind(node.args[0])
        text = self.of(node.args[0])
        functions = {("float32", "int32"): "intBitsToFloat", ("float32", "uint32"): "uintBitsToFloat", ("int32", "float32"): "floatBitsToInt",
                     ("uint32", "float32"): "floatBitsToUint", ("int32", "uint32"): "int", ("uint32", "int32"): "uint"}  # fmt: skip
        function = functions.get((kind.dtype, given.dtype))
        if kind == given:
            return text
        if function is None or kind.lanes != 1:
            raise StageError(f"a kernel reinterprets {given.dtype} as {kind.dtype}", "values of 32 bits")
        return f"{function}({text})"

    def _is(self, node: Any) -> str:
        return f"{function_name(node)}({self.of(node.args[0])})"


def _at(memory: Memory, index: str) -> str:
    """Return what names an entry of a buffer or array."""
    if not memory.texel_lanes:
        return f"{memory.name}[{index}]"
    return f"texelFetch({memory.name}, {index})" + (".x" if memory.texel_lanes == 1 else "")


def function_name(call: Any) -> str:
    """Return the name of an operator that is called, without the dialect that it is of."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


_NODES: dict[str, Callable[[Expressions, Any], str]] = {
    "Var": Expressions._variable, "IntImm": Expressions._integer, "FloatImm": Expressions._float, "Min": Expressions._least, "Max": Expressions._least,
    "Div": Expressions._divided, "Mod": Expressions._divided, "FloorDiv": Expressions._floored, "FloorMod": Expressions._floored,
    "And": Expressions._both, "Or": Expressions._both, "Not": Expressions._not, "Select": Expressions._select, "Cast": Expressions._cast,
    "Broadcast": Expressions._broadcast, "Ramp": Expressions._ramp, "Shuffle": Expressions._shuffle, "TensorLoad": Expressions._load,
    "Call": Expressions._call,
}  # fmt: skip
_CALLS: dict[str, Callable[[Expressions, Any], str]] = {
    "if_then_else": Expressions._if, "likely": Expressions._first, "pow": Expressions._power, "fmod": Expressions._remainder,
    "tanh": Expressions._tanh, "sigmoid": Expressions._sigmoid, "fma": Expressions._fma, "bitwise_not": Expressions._bit_not,
    "reinterpret": Expressions._reinterpret, "isnan": Expressions._is, "isinf": Expressions._is,
}  # fmt: skip
