"""Quantize float32 to int8 by the saturating instructions of arm64 and AVX-512.

The end of an int8 layer, clip(round(x) + zero point), takes nine instructions for four values if rounding, adding,
clamping and narrowing are separate operations. On arm64, fcvtns rounds to 32 bits, sqxtn narrows to 16, sqadd adds the
zero point to eight values, and sqxtn or sqxtun narrows to 8. All of them saturate, so that limits of the type are free,
and other limits cost one instruction for eight values. Sums that their weights bound need not saturate at 16 bits: one
uzp1 takes the place of two sqxtn. Where integers are shifted instead, as at a batch norm or a residual sum, sqshrn
shifts and narrows to 16 bits, and factors per channel are stored in 16 bits, so that smlal takes four of them and of
the values. AVX-512 rounds and converts 16 values in one instruction once they are clamped, where separate rounding
takes two operations; uint8 without a zero point needs the lower limit only, since larger values saturate. A quantized
value that only integer operators read, as at a residual sum, is not narrowed at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmflow.ir.tir.custom_operators import halves_of, register_operator
from tvmflow.ir.tvm_compat import Call, IRModule, constant_value, dtype_of, operator_of, reads_of, type_of
from tvmflow.passes.legalize.sum_bounds import largest_scaled_sum
from tvmflow.targets.cpu_features import has_wide_vectors, multiplies_by_lane

_NEON, _AVX512 = "tvmflow.round_to_byte", "tvmflow.round_to_byte_512"  # arguments: float32, and the zero point as int32
_NEON_SMALL = "tvmflow.round_small_to_byte"  # of numbers that fit 16 bits
_SHIFT = "tvmflow.shift_to_byte"  # arguments: int32, and the shift as int32
_AS_INTEGER = {
    "int8": "tvmflow.round_to_int8_as_integer",
    "uint8": "tvmflow.round_to_uint8_as_integer",
}  # the quantized value in 32 bits
_LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
_FITS = 32000.0  # bound below which numbers with their zero point surely fit 16 bits
_MOST_SHIFT = 16  # of sqshrn
_NARROW = {"int8": "llvm.aarch64.neon.sqxtn", "uint8": "llvm.aarch64.neon.sqxtun"}
Array = np.ndarray[Any, Any]


def _lower_neon(call: Call) -> Any:
    """Lower the operator: to instructions for vectors of 4 or a multiple of 8 values, to operations for others."""
    value, zero = call.args
    name, _, lanes = dtype_of(call).partition("x")
    saturates = operator_of(call) == _NEON
    return _narrow_neon(value, int(getattr(zero, "value", zero)), name, int(lanes or 1), saturates)


def _narrow_neon(value: Any, zero: int, dtype: str, lanes: int, saturates: bool) -> Any:
    """Return a vector as bytes. saturates: whether numbers may exceed 16 bits; uzp1 takes the place of two sqxtn."""
    if lanes % 8 and lanes != 4:
        return _narrow_generic(value, zero, dtype, lanes)

    def to_16_bits(part: Any) -> Any:
        words = tirx.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.fcvtns", part)
        if not saturates:
            return words.astype("int16x4")
        return tirx.call_llvm_pure_intrin("int16x4", "llvm.aarch64.neon.sqxtn", words)

    return _saturate_neon(value, to_16_bits, zero, dtype, lanes)


def _saturate_neon(value: Any, to_16_bits: Callable[[Any], Any], zero: int, dtype: str, lanes: int) -> Any:
    """Return a vector as bytes. to_16_bits: narrows four lanes."""
    if lanes > 8:
        parts = (_saturate_neon(part, to_16_bits, zero, dtype, lanes // 2) for part in halves_of(value))
        return tirx.vectorcombine(f"{dtype}x{lanes}", *parts)
    whole = tirx.vectorcombine("int16x8", *map(to_16_bits, halves_of(value) if lanes == 8 else (value, value)))
    if zero:
        whole = tirx.call_llvm_pure_intrin("int16x8", "llvm.sadd.sat", whole, tirx.const(zero, "int16x8"))
    narrow = tirx.call_llvm_pure_intrin(f"{dtype}x8", _NARROW[dtype], whole)
    return narrow if lanes == 8 else tirx.vectorlow(f"{dtype}x4", narrow)


def _lower_shift(call: Call) -> Any:
    """Lower clip(x >> shift): to instructions for vectors of 4 or a multiple of 8 values, to operations for others."""
    value, shift = call.args[0], int(getattr(call.args[1], "value", call.args[1]))
    dtype, _, words = dtype_of(call).partition("x")
    lanes = int(words or 1)
    if lanes % 8 and lanes != 4:
        low, high = (tirx.const(limit, dtype_of(value)) for limit in _LIMITS[dtype])
        limited = tirx.max(tirx.min(value >> tirx.const(shift, dtype_of(value)), high), low)
        return limited.astype(dtype_of(call))

    def to_16_bits(part: Any) -> Any:
        return tirx.call_llvm_pure_intrin("int16x4", "llvm.aarch64.neon.sqshrn", part, tirx.const(shift, "int32"))

    return _saturate_neon(value, to_16_bits, 0, dtype, lanes)


def _narrow_generic(value: Any, zero: int, dtype: str, lanes: int, result: str = "") -> Any:
    wide, result = dtype_of(value), result or dtype
    low, high = (tirx.const(float(limit), wide) for limit in _LIMITS[dtype])
    limited = tirx.max(tirx.min(tirx.nearbyint(value) + tirx.const(float(zero), wide), high), low)
    return limited.astype(result if lanes == 1 else f"{result}x{lanes}")


def _lower_avx512(call: Call) -> Any:
    """Lower the operator: to instructions for vectors of 16 values, to operations for others."""
    value, zero = call.args[0], int(getattr(call.args[1], "value", call.args[1]))
    dtype, _, lanes = dtype_of(call).partition("x")
    if lanes != "16":
        return _narrow_generic(value, zero, dtype, int(lanes or 1))
    if dtype == "uint8" and not zero:
        words = _convert_avx512("llvm.x86.avx512.mask.cvtps2udq.512", tirx.max(value, tirx.const(0.0, "float32x16")))
        none, all_lanes = tirx.const(0, "uint8x16"), tirx.const(-1, "int16")
        return tirx.call_llvm_pure_intrin("uint8x16", "llvm.x86.avx512.mask.pmovus.db.512", words, none, all_lanes)
    return _round_avx512(value, zero, dtype).astype(f"{dtype}x16")


def _round_avx512(value: Any, zero: int, dtype: str) -> Any:
    """Return 16 quantized values in 32 bits."""
    low, high = (tirx.const(float(limit - zero), "float32x16") for limit in _LIMITS[dtype])
    words = _convert_avx512("llvm.x86.avx512.mask.cvtps2dq.512", tirx.max(tirx.min(value, high), low))
    return words + tirx.const(zero, "int32x16")


def _make_integer_lowering(dtype: str) -> Callable[[Any], Any]:
    """Return the lowering to the quantized value in 32 bits. dtype: its 8-bit type."""

    def lower(call: Call) -> Any:
        value, zero = call.args[0], int(getattr(call.args[1], "value", call.args[1]))
        _, _, lanes = dtype_of(call).partition("x")
        return (
            _round_avx512(value, zero, dtype)
            if lanes == "16"
            else _narrow_generic(value, zero, dtype, int(lanes or 1), "int32")
        )

    return lower


def _convert_avx512(instruction: str, value: Any) -> Any:
    none, all_lanes, as_set = tirx.const(0, "int32x16"), tirx.const(-1, "int16"), tirx.const(4, "int32")
    return tirx.call_llvm_pure_intrin("int32x16", instruction, value, none, all_lanes, as_set)


for _name in (_NEON, _NEON_SMALL):
    register_operator(_name, "clip(round(x) + zero point), to the nearest, ties to even, as a byte", 2, _lower_neon)
register_operator(_AVX512, "clip(round(x) + zero point), to the nearest, ties to even, as a byte", 2, _lower_avx512)
register_operator(_SHIFT, "clip(x >> shift), rounded down, as a byte", 2, _lower_shift)
for _dtype, _name in _AS_INTEGER.items():
    register_operator(
        _name,
        "clip(round(x) + zero point), to the nearest, ties to even, of a byte's limits, as an integer of 32 bits",
        2,
        _make_integer_lowering(_dtype),
    )


@dataclass(frozen=True)
class _Quantize:
    """clip(round(value) + zero, low, high) as dtype; limits are numbers or arrays, None for those of the type."""

    value: Any
    zero: int
    low: Array | None
    high: Array | None
    dtype: str


@dataclass(frozen=True)
class _Shift:
    """clip(value >> shift, low, high) as dtype; value is int32; limits as in _Quantize."""

    value: Any
    shift: int
    low: Array | None
    high: Array | None
    dtype: str


@mutator
class _Narrower(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, operator: str) -> None:
        super().__init__(mod)
        self.operator = operator
        self.uses: Counter[Any] = Counter()
        self.emitted: list[tuple[Any, _Quantize]] = []

    def rewrite(self, function: Any) -> Any:
        """Return a function with its casts to 8 bits lowered to the operator."""
        self.uses = reads_of(function)
        return self.visit_expr(function)

    def visit_call_(self, call: Call) -> Any:
        given = call.args[0] if call.args else None
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.astype":
            return call
        if str(call.attrs.dtype) == "int32" and self.operator == _AVX512 and self.uses[given] == 1:
            made = self._resolve(call.args[0])
            byte = next((byte for one, byte in self.emitted if one.same_as(made)), None)
            return call if byte is None else self._emit(byte, _AS_INTEGER[byte.dtype], "int32")
        shifted = self._match_shift(call) if self.operator == _NEON else None
        if shifted is not None:
            return self._emit_shift(shifted)
        found = self._match_quantize(call)
        if found is None:
            return call
        operator = self.operator
        if operator == _NEON and largest_scaled_sum(self._resolve(found.value), self._resolve) < _FITS:
            operator = _NEON_SMALL
        self.emitted.append((self._emit(found, operator, found.dtype), found))
        return self.emitted[-1][0]

    def _emit(self, found: _Quantize, operator: str, dtype: str) -> Any:
        def narrow(index: tuple[Any, ...], x: Any) -> Any:
            return tirx.call_intrin(dtype, operator, x[index], tirx.const(found.zero, "int32"))

        return self._emit_limited(found, narrow, [found.value], dtype)

    def _emit_shift(self, found: _Shift) -> Any:
        """Emit a shift; products with factors per channel, of 16 bits where they fit, within it."""
        operands = self._match_products(found.value)

        def narrow(index: tuple[Any, ...], x: Any, *more: Any) -> Any:
            value = x[index]
            if more:
                factor, offset = (_value_at(one, index) for one in more)
                value = value.astype("int32") * factor.astype("int32") + offset
            return tirx.call_intrin(found.dtype, _SHIFT, value, tirx.const(found.shift, "int32"))

        return self._emit_limited(found, narrow, operands or [found.value], found.dtype)

    def _emit_limited(
        self, found: _Quantize | _Shift, narrow: Callable[..., Any], operands: list[Any], dtype: str
    ) -> Any:
        """Emit narrow(index, *operands) within the limits."""
        names = [name for name in ("low", "high") if getattr(found, name) is not None]

        def compute(*given: Any) -> Any:
            of = dict(zip(names, given[len(operands) :], strict=True))

            def at(*index: Any) -> Any:
                value = narrow(index, *given[: len(operands)])
                if "high" in of:
                    value = tirx.min(value, _value_at(of["high"], index))
                return tirx.max(value, _value_at(of["low"], index)) if "low" in of else value

            return te.compute(given[0].shape, at, name="compute")

        limits = [relax.const(getattr(found, name).astype(dtype), dtype) for name in names]
        return self.builder_.call_te(compute, *operands, *limits, primfunc_name_hint="narrow")

    def _match_shift(self, call: Call) -> _Shift | None:
        """Match a cast to 8 bits of a shifted and clamped int32, None for anything else."""
        dtype = str(call.attrs.dtype)
        if dtype not in _LIMITS or str(type_of(call.args[0]).dtype) != "int32":
            return None
        limited = self._match_clip(self._resolve(call.args[0]))
        if limited is None or operator_of(limited[0]) != "relax.right_shift":
            return None
        value, low, high = limited
        shift = constant_value(value.args[1])
        kept = _limits_kept(low, high, dtype)
        if shift is None or kept is None or shift.numpy().size != 1:
            return None
        by = int(shift.numpy().reshape(()))
        return _Shift(value.args[0], by, *kept, dtype) if 1 <= by <= _MOST_SHIFT else None

    def _match_products(self, value: Any) -> list[Any]:
        """Match bytes * factors + offsets; return the bytes, the factors as int16 and the offsets, nothing for anything
        else and for factors of more bits.
        """
        total = self._resolve(value)
        if (
            operator_of(total) != "relax.add"
            or operator_of(product := self._resolve(total.args[0])) != "relax.multiply"
        ):
            return []
        wide = self._resolve(product.args[0])
        factors, offsets = constant_value(product.args[1]), constant_value(total.args[1])
        if operator_of(wide) != "relax.astype" or factors is None or offsets is None:
            return []
        numbers = factors.numpy()
        if str(type_of(wide.args[0]).dtype) not in _LIMITS or np.abs(numbers.astype(np.int64)).max() >= 1 << 15:
            return []
        return [wide.args[0], relax.const(numbers.astype(np.int16), "int16"), total.args[1]]

    def _match_quantize(self, call: Call) -> _Quantize | None:
        """Match a cast to 8 bits of a rounded and clamped value, None for anything else."""
        dtype = str(call.attrs.dtype)
        if dtype not in _LIMITS or str(type_of(call.args[0]).dtype) != "float32":
            return None
        limited = self._match_clip(self._resolve(call.args[0]))
        if limited is None:
            return None
        value, low, high = limited
        kept = _limits_kept(low, high, dtype)
        if kept is None:
            return None
        zero = 0.0
        if operator_of(value) == "relax.add":
            number = constant_value(value.args[1])
            if number is None or number.numpy().size != 1:
                return None
            zero, value = float(number.numpy().reshape(())), self._resolve(value.args[0])
        if operator_of(value) != "relax.round" or zero != int(zero) or abs(zero) > 255:
            return None
        return _Quantize(value.args[0], int(zero), *kept, dtype)

    def _match_clip(self, call: Call) -> tuple[Any, Array, Array] | None:
        """Match clip, or maximum of minimum with constants; return the value and the limits."""
        if operator_of(call) == "relax.clip":
            low, high = (np.asarray(float(getattr(one, "value", one)), np.float32) for one in call.args[1:])
            return self._resolve(call.args[0]), low, high
        if operator_of(call) != "relax.maximum":
            return None
        inner = self._resolve(call.args[0])
        if operator_of(inner) != "relax.minimum":
            return None
        limits = [constant_value(one.args[1]) for one in (call, inner)]
        if limits[0] is None or limits[1] is None:
            return None
        return self._resolve(inner.args[0]), limits[0].numpy(), limits[1].numpy()

    def _resolve(self, value: Any) -> Any:
        """Return the expression that a variable is bound to; any other value as it is."""
        found = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        return value if found is None else found


def _limits_kept(low: Array, high: Array, dtype: str) -> tuple[Array | None, Array | None] | None:
    """Return limits as dtype, None for those of the type; None if one of them is not of the type."""
    least, most = _LIMITS[dtype]
    if not all(np.all((limit == np.rint(limit)) & (limit >= least) & (limit <= most)) for limit in (low, high)):
        return None
    return (
        None if np.all(low == least) else low.astype(dtype),
        None if np.all(high == most) else high.astype(dtype),
    )


def _value_at(limit: Any, index: tuple[Any, ...]) -> Any:
    """Return a limit at an index: of a scalar, or of an array whose axes of extent 1 are broadcast."""
    if not limit.shape:
        return limit()
    return limit[tuple(0 if int(extent) == 1 else i for i, extent in zip(index, limit.shape, strict=True))]


@tvm.transform.module_pass(opt_level=0, name="NarrowByInstruction")
class NarrowByInstruction:
    """IRModule -> IRModule; needs a current target, and changes nothing without NEON or AVX-512."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        target = tvm.target.Target.current()
        if not multiplies_by_lane(target) and not has_wide_vectors(target):
            return mod
        narrower = _Narrower(mod, _NEON if multiplies_by_lane(target) else _AVX512)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                narrower.builder_.update_func(variable, narrower.rewrite(function))
        return narrower.builder_.get()
