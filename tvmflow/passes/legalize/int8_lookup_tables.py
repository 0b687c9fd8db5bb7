"""Int8LookupTables: look up what a layer in 8 bits computes of each of its bytes, on x86 with AVX512-VBMI and on arm64.

Between a byte and the byte that the next layer reads, an activation without an integer form (SiLU, GELU, hard-swish,
tanh) is computed in float32: the zero point, the scale, an exponential, quotients, a rounding, up to 70 cycles for 16
values. It is a function of 256 values, which the numpy definition computes here; two permutations of 128 bytes each
look 64 of them up at once, four lookups in 64 bytes each 16 of them on arm64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmflow.ir.relax.graph import Array, Step
from tvmflow.ir.relax.numpy_interpreter import run_step
from tvmflow.ir.tir.custom_operators import halves_of, register_operator
from tvmflow.ir.tvm_compat import constant_value, dtype_of, operator_of, reads_of, type_of
from tvmflow.targets.cpu_features import looks_up_bytes, multiplies_by_lane

_BYTES = ("int8", "uint8")
_LEAST_STEPS = 6  # a change of scale is about as many instructions
_MOST_READS = 64  # of values on the way to a byte: residual sums of bytes go on through all of a network
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi.512"


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + _erf(wide / math.sqrt(2)))).astype(x.dtype)


def _gelu_tanh(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))).astype(x.dtype)


_HERE: dict[str, Callable[..., Array]] = {
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.log": np.log,
    "relax.negative": np.negative,
    "relax.where": np.where,
    "relax.greater": np.greater,
    "relax.less": np.less,
    "relax.erf": lambda x: _erf(x).astype(x.dtype),
}
_DEFINED = frozenset(
    f"relax.{name}"
    for name in (
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "abs",
        "sign",
        "floor",
        "trunc",
        "round",
        "sqrt",
        "exp",
        "sigmoid",
        "tanh",
        "nn.relu",
        "nn.leakyrelu",
        "clip",
        "astype",
        "left_shift",
        "right_shift",
        "greater_equal",
    )
)


@dataclass(frozen=True)
class _Instructions:
    """How a processor looks bytes up: so many at once, by a function of the parts of the table, as many bytes each, and
    of the places.
    """

    operator: str
    width: int
    look_up: Callable[[list[Any], Any], Any]

    def lower(self, call: Any) -> Any:
        """Return what the operator becomes: of one byte what it is of a vector."""
        value, table = call.args
        dtype, _, lanes = dtype_of(call).partition("x")
        digits = getattr(table, "value", table)  # a loop that became a vector has spread it
        return self._looked_up(value, bytes.fromhex(str(getattr(digits, "value", digits))), dtype, int(lanes or 1))

    def _looked_up(self, value: Any, table: bytes, dtype: str, lanes: int) -> Any:
        if lanes > self.width:
            parts = (self._looked_up(half, table, dtype, lanes // 2) for half in halves_of(value))
            return tirx.vectorcombine(_type(dtype, lanes), *parts)
        bits = tirx.reinterpret(_type("uint8", lanes), value)
        every = list(range(self.width))
        places = (
            tirx.Broadcast(bits, self.width) if lanes == 1 else tirx.Shuffle([bits] * -(-self.width // lanes), every)
        )
        numbers = [
            tirx.Shuffle([tirx.const(one, "uint8") for one in table[at : at + self.width]], every)
            for at in range(0, 256, self.width)
        ]
        return tirx.reinterpret(_type(dtype, lanes), tirx.Shuffle([self.look_up(numbers, places)], list(range(lanes))))


def _by_permutations(parts: list[Any], places: Any) -> Any:
    low, high = (tirx.call_llvm_pure_intrin("uint8x64", _PERMUTE, parts[at], places, parts[at + 1]) for at in (0, 2))
    return tirx.Select(places >= tirx.const(128, "uint8x64"), high, low)


def _by_tables(parts: list[Any], places: Any) -> Any:
    """Look up in four registers, and keep what was found where the place lies outside of the next four."""
    found = tirx.call_llvm_pure_intrin("uint8x16", "llvm.aarch64.neon.tbl4", *parts[:4], places)
    for at in (4, 8, 12):
        places = places - tirx.const(64, "uint8x16")
        found = tirx.call_llvm_pure_intrin("uint8x16", "llvm.aarch64.neon.tbx4", found, *parts[at : at + 4], places)
    return found


def _type(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


_AVX512 = _Instructions("tvmflow.look_up_byte_512", 64, _by_permutations)
_NEON = _Instructions("tvmflow.look_up_byte_neon", 16, _by_tables)
for _one in (_AVX512, _NEON):  # of a byte, and a table of 256 in hexadecimal digits, by the byte's bits
    register_operator(_one.operator, "the byte of a table of 256 at the place that a byte's bits say", 2, _one.lower)


class _Chains:
    """What a function computes, by variable. found: cast to a byte -> the variable of the byte that it is a function
    of, and the table.
    """

    def __init__(self, function: Any) -> None:
        self.made: dict[Any, Any] = {}
        self.uses = reads_of(function)
        casts = []
        for block in function.body.blocks:
            for binding in block.bindings:
                self.made[binding.var] = binding.value
                self.uses[getattr(binding.value, "tuple_value", binding.value)] += 1  # counts where it is a variable
                if operator_of(binding.value) == "relax.astype" and _dtype(binding.value) in _BYTES:
                    casts.append(binding.value)
        self.found = {
            cast: table for cast in casts if (table := self._table(cast, True) or self._table(cast, False)) is not None
        }

    def _table(self, cast: Any, through_bytes: bool) -> tuple[Any, bytes] | None:
        """Return the byte that a cast's value is a function of, and its table; None where it is none, or others read a
        value in between.

        through_bytes: whether to go on where a byte in between is a function of another one.
        """
        walk = _Walk(self.made, through_bytes)
        if not walk.enter(cast) or len(walk.sources) != 1 or len(walk.order) < _LEAST_STEPS:
            return None
        (source,) = walk.sources
        if any(self.uses[value] != count for value, count in walk.reads.items() if value is not source):
            return None
        dtype = _dtype(source)
        values: dict[Any, Array] = {source: np.arange(256, dtype=np.uint8).view(dtype)}
        with np.errstate(all="ignore"):
            for value in walk.order:
                values[value] = _computed(value if value is cast else self.made[value], values)
        return source, values[cast].view(np.uint8).tobytes()


@dataclass
class _Walk:
    """What a value is computed of, operands first, down to bytes. reads: how often each variable is read."""

    made: dict[Any, Any]
    through_bytes: bool
    order: list[Any] = field(default_factory=list)
    reads: Counter[Any] = field(default_factory=Counter)
    sources: set[Any] = field(default_factory=set)

    def enter(self, value: Any) -> bool:
        """Append a value, a call or a variable, and its operands; False where they are more than bytes and numbers."""
        made: Any = value if isinstance(value, relax.Call) else self.made.get(value)
        if len(self.reads) > _MOST_READS or (operator_of(made) not in _DEFINED and operator_of(made) not in _HERE):
            return False
        if not all(self._operand(part) for part in made.args):
            return False
        self.order.append(value)
        return True

    def _operand(self, part: Any) -> bool:
        number = constant_value(part)
        if number is not None:
            values = number.numpy().reshape(-1)
            return bool(values.size and (values == values[0]).all())  # of booleans, too
        if not isinstance(part, relax.Var):
            return isinstance(getattr(part, "value", None), int | float)
        self.reads[part] += 1
        if self.reads[part] > 1 or _dtype(part) not in _BYTES:
            return self.reads[part] > 1 or self.enter(part)
        before = len(self.order), Counter(self.reads), set(self.sources)
        if not self.through_bytes or not self.enter(part):
            del self.order[before[0] :]
            self.reads, self.sources = before[1], before[2] | {part}
        return True


def _dtype(expression: Any) -> str:
    return str(getattr(type_of(expression), "dtype", ""))


def _computed(call: Any, values: dict[Any, Array]) -> Array:
    name = operator_of(call)
    given: list[Any] = []
    for part in call.args:
        number = constant_value(part)
        given.append(
            number.numpy().reshape(-1)[0]
            if number is not None
            else values[part]
            if isinstance(part, relax.Var)
            else part
        )
    if name in _HERE:
        return np.asarray(_HERE[name](*given))
    return np.asarray(run_step(Step(name, name, (), call, (256,), _dtype(call)), given))


@mutator
class _Tabulator(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: Any, operator: str) -> None:
        super().__init__(mod)
        self.operator = operator
        self.found: dict[Any, tuple[Any, bytes]] = {}

    def tabulated(self, function: Any) -> Any:
        self.found = _Chains(function).found
        return self.visit_expr(function) if self.found else function

    def visit_call_(self, call: Any) -> Any:
        if call not in self.found:
            return self.visit_expr_post_order(call)
        source, table = self.found[call]
        dtype = _dtype(call)

        def look_up(x: Any) -> Any:
            digits = tvm.ir.StringImm(table.hex())
            return te.compute(
                x.shape, lambda *at: tirx.call_intrin(dtype, self.operator, x[at], digits), name="compute"
            )

        return self.builder_.call_te(look_up, self.visit_expr(source), primfunc_name_hint="look_up")


@tvm.transform.module_pass(opt_level=0, name="Int8LookupTables")
class Int8LookupTables:
    """IRModule -> IRModule; needs a target in scope, and changes nothing for those with neither AVX512-VBMI nor NEON of
    64 bits.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        target = tvm.target.Target.current()
        if not looks_up_bytes(target) and not multiplies_by_lane(target):
            return mod
        tabulator = _Tabulator(mod, (_NEON if multiplies_by_lane(target) else _AVX512).operator)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                tabulator.builder_.update_func(variable, tabulator.tabulated(function))
        return tabulator.builder_.get()
