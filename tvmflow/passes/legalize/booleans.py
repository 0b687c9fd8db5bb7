"""Compute limits, their places and orders of booleans as those of small integers: TVM has no smallest boolean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, relax

from tvmflow.ir.tvm_compat import Call, type_of

Rule = Callable[[Any, Call], Any]
_OPERATORS = ("max", "min", "argmax", "argmin", "sort", "argsort", "topk")


def with_booleans(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return rules of LegalizeOps that also take booleans; operators without a rule keep TVM's."""
    names = [f"relax.{name}" for name in _OPERATORS]
    return {**rules, **{name: _of_booleans(rules.get(name) or _rule_of_tvm(name)) for name in names}}


def _rule_of_tvm(name: str) -> Rule:
    rule: Rule = ir.Op.get(name).get_attr("FLegalize")
    return rule


def _of_booleans(rule: Rule) -> Rule:
    def legalize(builder: Any, call: Call) -> Any:
        if str(type_of(call.args[0]).dtype) != "bool":
            return rule(builder, call)
        numbers = _cast(builder, call.args[0], "int8")
        made = rule(builder, builder.normalize(relax.Call(call.op, [numbers], call.attrs)))
        if not isinstance(type_of(call), relax.TupleType):
            return _cast(builder, builder.emit(made), "bool") if str(type_of(call).dtype) == "bool" else made
        both = builder.emit(made)
        values, places = (builder.emit(relax.TupleGetItem(both, at)) for at in (0, 1))
        return relax.Tuple([_cast(builder, values, "bool"), places])

    return legalize


def _cast(builder: Any, value: Any, dtype: str) -> Any:
    return builder.emit(_rule_of_tvm("relax.astype")(builder, builder.normalize(relax.op.astype(value, dtype))))
