"""Lowering whose indices are right: TVM's pass FlattenBuffer simplifies quotients and remainders as no index may be.

TVM 0.27 (`iter_map_simplify`) takes quotients and remainders of loop variables apart into digits. It pads a dividend to
a multiple of the divisor there, and loses or confuses the padding where an offset is within: ((b + 1) % 16 + 4) % 8
becomes (b + 4) % 8, and (b + 1) // 2 * 2 + b // 2 becomes (b + 1) // 2 * 3; b % 64 % 7 becomes b % 7. FlattenBuffer is
the only pass of lowering that does so. Such quotients and remainders are hidden from it behind variables; the passes
after it simplify them by rules that hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.instrument import pass_instrument
from tvm_ffi import structural_map, structural_walk

from tvmflow.ir.tir.blocks import kernels_changed, region_buffer
from tvmflow.ir.tvm_compat import dtype_of, load_class

_FLATTEN = "tirx.FlattenBuffer"
_DIGITS = (tirx.FloorDiv, tirx.FloorMod)
_SUMS = (tirx.Add, tirx.Sub)


def lower_with_fixed_indices(lower: Any) -> Any:
    """Return a pass that lowers modules as TVM's pass `lower` does, which runs FlattenBuffer among others, with right
    indices.
    """

    def soundly(mod: Any, _context: Any) -> Any:
        hidden: dict[Any, Any] = {}
        with _only(lambda names: _FLATTEN not in names):
            mod = lower(mod)
        mod = _changed(mod, lambda node: _with_indices(node, hidden), (load_class(), tirx.BufferStore))
        mod = tirx.transform.FlattenBuffer()(mod)
        if hidden:
            mod = _changed(mod, lambda variable: hidden.get(variable, variable), tvm.ir.Var)
        with _only(lambda names: _FLATTEN in names[:-1]):
            return lower(mod)

    return tvm.transform.module_pass(soundly, opt_level=0, name="LowerSoundly")


def _only(wanted: Callable[[list[str]], bool]) -> Any:
    """Return a context in which those passes of TVM run that are wanted. wanted: of the names of all passes up to one,
    that one last.
    """
    names: list[str] = []

    @pass_instrument
    class Chosen:
        def should_run(self, _mod: Any, info: Any) -> bool:
            if "." not in info.name:  # one that is made of others
                return True
            names.append(info.name)
            return wanted(names)

    now = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        now.opt_level, now.required_pass, now.disabled_pass, [*now.instruments, Chosen()], now.config
    )


def _changed(mod: Any, change: Callable[[Any], Any], kinds: Any) -> Any:
    return kernels_changed(
        mod,
        lambda _: True,
        lambda kernel: kernel.with_body(structural_map(kernel.body, ((kinds, change),), order="pre")),
    )


def _with_indices(node: Any, hidden: dict[Any, Any]) -> Any:
    """Return an access of a buffer whose unsafe quotients and remainders are variables. hidden: gains what each stands
    for.
    """
    if not any(_is_unsafe(index) for index in node.indices):
        return node
    indices = [_hiding(index, hidden) for index in node.indices]
    if isinstance(node, tirx.BufferStore):
        return tirx.BufferStore(node.buffer, node.value, indices)
    return tirx.BufferLoad(region_buffer(node), indices)


def _hiding(index: Any, hidden: dict[Any, Any]) -> Any:
    if not isinstance(index, (*_DIGITS, *_SUMS, tirx.Mul)) or not _is_unsafe(index):
        return index
    if not isinstance(index, _DIGITS) or _reads(index):  # what it reads is to be flattened too
        return type(index)(_hiding(index.a, hidden), _hiding(index.b, hidden))
    variable = tirx.Var(f"hidden_{len(hidden)}", dtype_of(index))
    hidden[variable] = index
    return variable


def _reads(index: Any) -> bool:
    loads: list[Any] = []
    structural_walk(index, ((load_class(), loads.append),))
    return bool(loads)


def _is_unsafe(index: Any) -> bool:
    """Whether TVM may take a quotient or a remainder in an index apart wrongly: of a sum with an offset, or of a
    remainder by what does not divide it.
    """
    if isinstance(index, _DIGITS):
        inner = index.a
        uneven = isinstance(inner, tirx.FloorMod) and not (
            _constant(inner.b) and _constant(index.b) and _constant(inner.b) % _constant(index.b) == 0
        )
        return uneven or _has_offset(inner) or _is_unsafe(inner)
    return isinstance(index, (*_SUMS, tirx.Mul)) and (_is_unsafe(index.a) or _is_unsafe(index.b))


def _constant(expression: Any) -> int:
    return int(expression.value) if isinstance(expression, tirx.IntImm) else 0


def _has_offset(expression: Any) -> bool:
    """Whether a constant is a term of a sum, or of a dividend within."""
    if isinstance(expression, _SUMS):
        return _has_offset(expression.a) or _has_offset(expression.b)
    if isinstance(expression, tirx.Mul):
        return any(_has_offset(part) for part in (expression.a, expression.b) if not _constant(part))
    return _has_offset(expression.a) if isinstance(expression, _DIGITS) else _constant(expression) != 0
