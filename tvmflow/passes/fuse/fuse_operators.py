"""Fuse operators by TVM's FuseOps, and keep which steps of the packed network each kernel call computes.

FuseOps gives the calls of fused functions new variables, so that nothing leads from a kernel back to a layer. Here an
attribute of main lists the steps of each call. Kernels stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.tvm_compat import IRModule, constant_value, variable_name

# Attributes of main, a text for each call in order. STEPS: variable and steps of the call; CALLS: kernel and steps.
STEPS, CALLS = "tvmflow.steps", "tvmflow.calls"

_Key = tuple[Any, ...]


@tvm.transform.module_pass(opt_level=0, name="FuseOperators")
class FuseOperators:
    """IRModule with operators as kernels -> IRModule with groups of kernels as functions, and STEPS."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        fuse: Any = relax.transform.FuseOps()
        fused, before = fuse(mod), mod["main"]
        found = _steps_of_calls(before, fused)
        lines = [" ".join([variable_name(variable), *names]) for variable, names in found.items()]
        fused[fused.get_global_var("main")] = fused["main"].with_attr(STEPS, lines)
        return fused


@tvm.transform.module_pass(opt_level=0, name="NoteCalls")
class NoteCalls:
    """IRModule of fused kernels with STEPS -> the same with CALLS: passes behind it keep the order of calls only."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        main = mod["main"]
        if not main.attrs or STEPS not in main.attrs:
            return mod
        left = iter([str(line).split() for line in main.attrs[STEPS]])
        calls = []
        for binding in _bindings(main):
            if (kernel := _callee(binding.value)) is not None:
                name = variable_name(binding.var)  # passes since then may have removed calls, and added none
                names = next((steps for variable, *steps in left if variable == name), [])
                calls.append(" ".join([kernel.name_hint, *names]))
        mod[mod.get_global_var("main")] = main.without_attr(STEPS).with_attr(CALLS, calls)
        return mod


def read_calls(mod: IRModule) -> list[tuple[str, tuple[str, ...]]]:
    """Return kernel and steps of each call of a lowered module, in order; empty if they were not kept."""
    attributes = mod["main"].attrs
    calls = attributes[CALLS] if attributes and CALLS in attributes else ()
    return [(kernel, tuple(steps)) for kernel, *steps in (str(call).split() for call in calls)]


def _bindings(function: Any) -> Iterator[Any]:
    for block in function.body.blocks:
        yield from block.bindings


def _callee(value: Any) -> Any:
    """Return the kernel or the function that a call calls, None for another value."""
    if not isinstance(value, relax.Call):
        return None
    if isinstance(value.op, tvm.ir.GlobalVar):
        return value.op
    return value.args[0] if getattr(value.op, "name", "") == "relax.call_tir" else None


def _key(value: Any, known: Mapping[Any, _Key]) -> _Key:
    """Return what a value computes, of which values. known: a variable -> the key that stands for it."""
    if isinstance(value, relax.Var):
        return known.get(value, ("value", value))
    if (constant := constant_value(value)) is not None:
        return ("constant", constant.__chandle__())  # passes share constants
    if isinstance(value, relax.Tuple):
        return ("tuple", *(_key(field, known) for field in value.fields))
    if isinstance(value, relax.TupleGetItem):
        return ("item", int(value.index), _key(value.tuple_value, known))
    if not isinstance(value, relax.Call):
        return ("other", str(value))
    return ("call", getattr(value.op, "name", ""), *(_key(argument, known) for argument in value.args))


def _steps_of_calls(before: Any, after: IRModule) -> dict[Any, list[str]]:
    """Return the variable of each call of main -> the names that its steps had in `before`, the main of FuseOps' input.

    Functions are followed with the call's arguments for their parameters: each step in them is that step of the input
    which computes the same of the same values.
    """
    steps: dict[_Key, Any] = {}
    for binding in _bindings(before):
        steps.setdefault(_key(binding.value, {}), binding.var)
    main = after["main"]
    known = {mine: ("value", theirs) for mine, theirs in zip(main.params, before.params, strict=True)}
    found: dict[Any, list[str]] = {}
    for binding in _bindings(main):
        inner = after[callee] if (callee := _callee(binding.value)) is not None else None
        if not isinstance(inner, relax.Function):
            if (step := steps.get(_key(binding.value, known))) is not None:
                known[binding.var], found[binding.var] = ("value", step), [variable_name(step)]
            continue
        local = {mine: _key(given, known) for mine, given in zip(inner.params, binding.value.args, strict=True)}
        found[binding.var] = names = []
        for each in _bindings(inner):
            if (step := steps.get(_key(each.value, local))) is not None:
                local[each.var] = ("value", step)
                names.append(variable_name(step))
        known[binding.var] = _key(inner.body.body, local)
    return found
