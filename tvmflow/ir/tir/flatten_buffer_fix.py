"""Lower kernels with correct indices: TVM's FlattenBuffer simplifies some divisions incorrectly.

TVM 0.27 (`iter_map_simplify`) decomposes quotients and remainders of loop variables into digits. It pads a dividend to
a multiple of the divisor, and loses or confuses the padding if the dividend has an offset: ((b + 1) % 16 + 4) % 8
becomes (b + 4) % 8, and (b + 1) // 2 * 2 + b // 2 becomes (b + 1) // 2 * 3; b % 64 % 7 becomes b % 7. FlattenBuffer is
the only lowering pass that does so. Such divisions are hidden from it behind variables; later passes simplify them
correctly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.instrument import pass_instrument
from tvm_ffi import structural_map, structural_walk

from tvmflow.ir.tir.blocks import region_buffer, transform_kernels
from tvmflow.ir.tvm_compat import Expr, IRModule, dtype_of, load_class

_FLATTEN = "tirx.FlattenBuffer"
_DIGITS = (tirx.FloorDiv, tirx.FloorMod)
_SUMS = (tirx.Add, tirx.Sub)


def lower_with_fixed_indices(lower: Any) -> Any:
    """Return a pass that lowers modules as TVM's pass `lower`, which includes FlattenBuffer, with correct indices."""

    def lower_correctly(mod: IRModule, _context: Any) -> Any:
        hidden: dict[Any, Any] = {}
        with _filter_passes(lambda names: _FLATTEN not in names):
            mod = lower(mod)
        mod = _map_nodes(mod, lambda node: _hide_unsafe_indices(node, hidden), (load_class(), tirx.BufferStore))
        mod = tirx.transform.FlattenBuffer()(mod)
        if hidden:
            mod = _map_nodes(mod, lambda variable: hidden.get(variable, variable), tvm.ir.Var)
        with _filter_passes(lambda names: _FLATTEN in names[:-1]):
            return lower(mod)

    return tvm.transform.module_pass(lower_correctly, opt_level=0, name="LowerSoundly")


def _filter_passes(wanted: Callable[[list[str]], bool]) -> Any:
    """Return a context in which only the passes that `wanted` selects run, by the names of all passes so far, the
    current one last.
    """
    names: list[str] = []

    @pass_instrument
    class Chosen:
        def should_run(self, _mod: Any, info: Any) -> bool:
            if "." not in info.name:  # a composite pass
                return True
            names.append(info.name)
            return wanted(names)

    now = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        now.opt_level, now.required_pass, now.disabled_pass, [*now.instruments, Chosen()], now.config
    )


def _map_nodes(mod: IRModule, change: Callable[[Any], Any], kinds: Any) -> Any:
    return transform_kernels(
        mod,
        lambda _: True,
        lambda kernel: kernel.with_body(structural_map(kernel.body, ((kinds, change),), order="pre")),
    )


def _hide_unsafe_indices(node: Expr, hidden: dict[Any, Any]) -> Any:
    """Return a buffer access with variables for unsafe divisions; `hidden` gets their values."""
    if not any(_is_unsafe(index) for index in node.indices):
        return node
    indices = [_hide(index, hidden) for index in node.indices]
    if isinstance(node, tirx.BufferStore):
        return tirx.BufferStore(node.buffer, node.value, indices)
    return tirx.BufferLoad(region_buffer(node), indices)


def _hide(index: Any, hidden: dict[Any, Any]) -> Any:
    if not isinstance(index, (*_DIGITS, *_SUMS, tirx.Mul)) or not _is_unsafe(index):
        return index
    if not isinstance(index, _DIGITS) or _reads(index):  # the loads inside must be flattened, too
        return type(index)(_hide(index.a, hidden), _hide(index.b, hidden))
    variable = tirx.Var(f"hidden_{len(hidden)}", dtype_of(index))
    hidden[variable] = index
    return variable


def _reads(index: Any) -> bool:
    loads: list[Any] = []
    structural_walk(index, ((load_class(), loads.append),))
    return bool(loads)


def _is_unsafe(index: Any) -> bool:
    """Whether TVM may decompose a division in an index incorrectly.

    It is one of a sum with an offset, or of a remainder by a divisor that does not divide its modulus.
    """
    if isinstance(index, _DIGITS):
        inner = index.a
        uneven = isinstance(inner, tirx.FloorMod) and not (
            _constant(inner.b) and _constant(index.b) and _constant(inner.b) % _constant(index.b) == 0
        )
        return uneven or _has_offset(inner) or _is_unsafe(inner)
    return isinstance(index, (*_SUMS, tirx.Mul)) and (_is_unsafe(index.a) or _is_unsafe(index.b))


def _constant(expression: Expr) -> int:
    return int(expression.value) if isinstance(expression, tirx.IntImm) else 0


def _has_offset(expression: Expr) -> bool:
    """Whether a constant is a term of a sum, or of a dividend inside."""
    if isinstance(expression, _SUMS):
        return _has_offset(expression.a) or _has_offset(expression.b)
    if isinstance(expression, tirx.Mul):
        return any(_has_offset(part) for part in (expression.a, expression.b) if not _constant(part))
    return _has_offset(expression.a) if isinstance(expression, _DIGITS) else _constant(expression) != 0
