"""Lower relu, clip, maximum and minimum with constants to arm64's fmax and fmin, which return NaN for NaN.

TVM compares and selects, which is one instruction on x86 and two on arm64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tirx

from tvmflow.ir.tir.custom_operators import register_operator
from tvmflow.ir.tvm_compat import Call, constant_value, dtype_of, type_of
from tvmflow.targets.cpu_features import multiplies_by_lane

_LARGER, _SMALLER = "tvmflow.larger", "tvmflow.smaller"
_LLVM = {_LARGER: "llvm.maximum", _SMALLER: "llvm.minimum"}
_FLOATS = ("float32", "float16")
Legalize = Callable[[Any, Any], Any]


def _make_lowering(name: str) -> Callable[[Any], Any]:
    return lambda call: tirx.call_llvm_pure_intrin(dtype_of(call), _LLVM[name], *call.args)


for _name in _LLVM:
    register_operator(
        _name,
        "the larger or the smaller of two numbers, NaN where one of them is NaN",
        2,
        _make_lowering(_name),
    )


def has_limits_of_nan(dtype: str, target: Any) -> bool:
    """Whether the processor of a tvm.target.Target has an instruction for limits that returns NaN for NaN."""
    return dtype in _FLOATS and multiplies_by_lane(target)


def limit_with_nan(is_larger: bool, one: Any, other: Any) -> Any:
    """Return the larger or the smaller of two numbers by the instruction, NaN where one of them is NaN."""
    return tirx.call_intrin(dtype_of(one), _LARGER if is_larger else _SMALLER, one, other)


def reduce_max(values: Any, axis: list[Any]) -> Any:
    """Return the maximum of values over te axes, NaN if one is NaN; by fmax on arm64."""
    dtype = dtype_of(values)
    if not has_limits_of_nan(dtype, tvm.target.Target.current()):
        return te.max(values, axis=axis)

    def start(_: str) -> Any:
        return tirx.const(-math.inf, dtype) if dtype == "float16" else tirx.min_value(dtype)

    reducer = te.comm_reducer(lambda x, y: tirx.call_intrin(dtype, _LARGER, x, y), start, name="max")
    return reducer(values, axis=axis)


def _clamp(value: Any, limit: Any, name: str, dtype: str) -> Any:
    return tirx.call_intrin(dtype, name, value, limit)


def clip_legalizers() -> dict[str, Legalize]:
    """Return the lowering of the operators; needs a current target. Other targets than arm64 use TVM's lowering."""
    return {
        "relax.nn.relu": _for_arm64_floats(_relu),
        "relax.clip": _for_arm64_floats(_clip),
        "relax.maximum": _for_arm64_floats(_with_constant(_LARGER)),
        "relax.minimum": _for_arm64_floats(_with_constant(_SMALLER)),
    }


def _for_arm64_floats(lower: Legalize) -> Legalize:
    def legalize(builder: Any, call: Call) -> Any:
        is_float = str(type_of(call.args[0]).dtype) in _FLOATS
        found = lower(builder, call) if is_float and multiplies_by_lane(tvm.target.Target.current()) else None
        return call.op.get_attr("FLegalize")(builder, call) if found is None else found

    return legalize


def _relu(builder: Any, call: Call) -> Any:
    def relu(x: Any) -> Any:
        return te.compute(
            x.shape, lambda *at: _clamp(x[at], tirx.const(0, x.dtype), _LARGER, str(x.dtype)), name="compute"
        )

    return builder.call_te(relu, call.args[0], primfunc_name_hint="relu")


def _clip(builder: Any, call: Call) -> Any:
    low, high = (float(getattr(argument, "value", argument)) for argument in call.args[1:])

    def clip(x: Any) -> Any:
        def at(*index: Any) -> Any:
            below = _clamp(x[index], tirx.const(high, x.dtype), _SMALLER, str(x.dtype))
            return _clamp(below, tirx.const(low, x.dtype), _LARGER, str(x.dtype))

        return te.compute(x.shape, at, name="compute")

    return builder.call_te(clip, call.args[0], primfunc_name_hint="tir_clip")


def _with_constant(name: str) -> Legalize:
    def legalize(builder: Any, call: Call) -> Any:
        data, limit = call.args
        values = constant_value(limit)
        shape, wanted = [int(d) for d in type_of(data).shape], [int(d) for d in type_of(call).shape]
        if values is None or shape != wanted:
            return None
        extents = [int(d) for d in values.shape]
        if len(extents) not in (0, len(shape)):
            return None

        def compute(x: Any, y: Any) -> Any:
            def at(*index: Any) -> Any:
                places = [0 if extent == 1 else i for i, extent in zip(index, extents, strict=False)]
                return _clamp(x[index], y[tuple(places)] if places else y(), name, str(x.dtype))

            return te.compute(x.shape, at, name="compute")

        return builder.call_te(compute, data, limit, primfunc_name_hint=call.op.name.removeprefix("relax."))

    return legalize
