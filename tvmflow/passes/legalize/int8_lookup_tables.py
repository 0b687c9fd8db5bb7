"""Replace int8 activations by table lookups, on x86 with AVX512-VBMI and on arm64.

Between two int8 tensors, an activation without an integer form (SiLU, GELU, hard-swish, tanh) is computed in float32:
zero point, scale, exponential, divisions and rounding take up to 70 cycles for 16 values. It is a function of 256
values, which the numpy interpreter computes here. Two permutations of 128 bytes look up 64 values at once; on arm64,
four lookups in 64 bytes look up 16.
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

from tvmflow.ir.relax.graph import Array, Step, operators_named
from tvmflow.ir.relax.numpy_interpreter import run_step
from tvmflow.ir.tir.custom_operators import halves_of, register_operator
from tvmflow.ir.tvm_compat import Call, Expr, IRModule, constant_value, dtype_of, operator_of, reads_of, type_of
from tvmflow.targets.cpu_features import looks_up_bytes, multiplies_by_lane

_BYTES = ("int8", "uint8")
_LEAST_STEPS = 6  # a requantization takes about as many instructions
_MOST_READS = 64  # most values visited on the way to an int8 value: residual sums chain through the whole network
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi.512"


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + _erf(wide / math.sqrt(2)))).astype(x.dtype)


def _gelu_tanh(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))).astype(x.dtype)


_EXTRA_OPERATORS: dict[str, Callable[..., Array]] = {
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.log": np.log,
    "relax.negative": np.negative,
    "relax.where": np.where,
    "relax.greater": np.greater,
    "relax.less": np.less,
    "relax.erf": lambda x: _erf(x).astype(x.dtype),
}
_INTERPRETED = operators_named(
    """
    add subtract multiply divide maximum minimum abs sign floor trunc round sqrt exp sigmoid tanh nn.relu
    nn.leakyrelu clip astype left_shift right_shift greater_equal
    """
)


@dataclass(frozen=True)
class _Instructions:
    """The lookup instructions of a processor.

    width: bytes looked up at once; look_up: function of the parts of the table, `width` bytes each, and of the indices.
    """

    operator: str
    width: int
    look_up: Callable[[list[Any], Any], Any]

    def lower(self, call: Call) -> Any:
        """Lower the operator; a scalar is looked up as a vector."""
        value, table = call.args
        dtype, _, lanes = dtype_of(call).partition("x")
        digits = getattr(table, "value", table)  # vectorization has broadcast it
        return self._look_up_vector(value, bytes.fromhex(str(getattr(digits, "value", digits))), dtype, int(lanes or 1))

    def _look_up_vector(self, value: Any, table: bytes, dtype: str, lanes: int) -> Any:
        if lanes > self.width:
            parts = (self._look_up_vector(half, table, dtype, lanes // 2) for half in halves_of(value))
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


def _permute_x86(parts: list[Any], places: Any) -> Any:
    low, high = (tirx.call_llvm_pure_intrin("uint8x64", _PERMUTE, parts[at], places, parts[at + 1]) for at in (0, 2))
    return tirx.Select(places >= tirx.const(128, "uint8x64"), high, low)


def _look_up_arm64(parts: list[Any], places: Any) -> Any:
    """Look up in four registers (tbl4), then in the next four, keeping results whose index is out of range (tbx4)."""
    found = tirx.call_llvm_pure_intrin("uint8x16", "llvm.aarch64.neon.tbl4", *parts[:4], places)
    for at in (4, 8, 12):
        places = places - tirx.const(64, "uint8x16")
        found = tirx.call_llvm_pure_intrin("uint8x16", "llvm.aarch64.neon.tbx4", found, *parts[at : at + 4], places)
    return found


def _type(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


_AVX512 = _Instructions("tvmflow.look_up_byte_512", 64, _permute_x86)
_NEON = _Instructions("tvmflow.look_up_byte_neon", 16, _look_up_arm64)
for _one in (_AVX512, _NEON):  # arguments: a byte, and the 256 entries of the table as hexadecimal digits
    register_operator(_one.operator, "the byte of a table of 256 at the place that a byte's bits say", 2, _one.lower)


class _ByteFunctions:
    """The casts to int8 of a function that are functions of one int8 value.

    found: cast -> the variable of its int8 input, and the table.
    """

    def __init__(self, function: Any) -> None:
        self.made: dict[Any, Any] = {}
        self.uses = reads_of(function)
        casts = []
        for block in function.body.blocks:
            for binding in block.bindings:
                self.made[binding.var] = binding.value
                self.uses[getattr(binding.value, "tuple_value", binding.value)] += 1  # counts variables only
                if operator_of(binding.value) == "relax.astype" and _dtype(binding.value) in _BYTES:
                    casts.append(binding.value)
        self.found = {
            cast: table
            for cast in casts
            if (table := self._build_table(cast, True) or self._build_table(cast, False)) is not None
        }

    def _build_table(self, cast: Any, through_bytes: bool) -> tuple[Any, bytes] | None:
        """Return the int8 input of a cast and its table; None if there is none, or if a value in between has other
        readers.

        through_bytes: whether to go on where an int8 value in between is a function of another one.
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
                values[value] = _evaluate(value if value is cast else self.made[value], values)
        return source, values[cast].view(np.uint8).tobytes()


@dataclass
class _Walk:
    """The values that a value is computed from, operands first, down to int8 values. reads: uses of each variable."""

    made: dict[Any, Any]
    through_bytes: bool
    order: list[Any] = field(default_factory=list)
    reads: Counter[Any] = field(default_factory=Counter)
    sources: set[Any] = field(default_factory=set)

    def enter(self, value: Any) -> bool:
        """Append a value and its operands; return False if they include anything but int8 values and numbers."""
        made: Any = value if isinstance(value, relax.Call) else self.made.get(value)
        if len(self.reads) > _MOST_READS or (
            operator_of(made) not in _INTERPRETED and operator_of(made) not in _EXTRA_OPERATORS
        ):
            return False
        if not all(self._operand(part) for part in made.args):
            return False
        self.order.append(value)
        return True

    def _operand(self, part: Any) -> bool:
        number = constant_value(part)
        if number is not None:
            values = number.numpy().reshape(-1)
            return bool(values.size and (values == values[0]).all())  # booleans included
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


def _dtype(expression: Expr) -> str:
    return str(getattr(type_of(expression), "dtype", ""))


def _evaluate(call: Call, values: dict[Any, Array]) -> Array:
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
    if name in _EXTRA_OPERATORS:
        return np.asarray(_EXTRA_OPERATORS[name](*given))
    return np.asarray(run_step(Step(name, name, (), call, (256,), _dtype(call)), given))


@mutator
class _TableRewriter(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, operator: str) -> None:
        super().__init__(mod)
        self.operator = operator
        self.found: dict[Any, tuple[Any, bytes]] = {}

    def rewrite(self, function: Any) -> Any:
        self.found = _ByteFunctions(function).found
        return self.visit_expr(function) if self.found else function

    def visit_call_(self, call: Call) -> Any:
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
    """IRModule -> IRModule; needs a current target, and changes nothing without AVX512-VBMI or arm64."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        target = tvm.target.Target.current()
        if not looks_up_bytes(target) and not multiplies_by_lane(target):
            return mod
        rewriter = _TableRewriter(mod, (_NEON if multiplies_by_lane(target) else _AVX512).operator)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                rewriter.builder_.update_func(variable, rewriter.rewrite(function))
        return rewriter.builder_.get()
