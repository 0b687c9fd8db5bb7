"""Prove that a kernel that TVM's importers made stays inside its buffers.

Their kernels are tensor expressions: nests of loops around one block each, which stores one element of a buffer. Any
other form is refused, and so is an index that TVM's arithmetic does not prove to lie inside, or whose own arithmetic
could overflow. Values that are read from a buffer are unknown here: an index that is data must be clamped.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_walk

from tvmflow.ir.tvm_compat import Expr, PrimFunc, analyzer_class, block_class, buffer_of, dtype_of, load_class, loaded

_MAX_BYTES = 1 << 46
_BITS = {"int32": 31, "int64": 63}
_INEXACT = "LShift RShift BitwiseOr BitwiseXor BitwiseNot".split()
_BINARY = "Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE GT GE And Or BitwiseAnd".split()
_OVERFLOWING, _DIVIDING = ("Add", "Sub", "Mul"), ("Div", "Mod", "FloorDiv", "FloorMod")
_EXACT_CALLS = ("if_then_else", "bitwise_and", "shift_right", "likely")


class UnprovenError(Exception):
    """A kernel may reach outside of its buffers."""


def prove_bounds(function: PrimFunc) -> None:
    """Raise UnprovenError, with its reason, unless each access of a kernel is proven to stay in its buffer."""
    buffers: dict[Any, tuple[int, ...]] = {}
    for parameter in function.params:
        buffer = buffer_of(function, parameter)
        if buffer is None:
            raise UnprovenError(f"the parameter {parameter} that is no tensor")
        buffers[buffer] = _extents(buffer)
    root = function.body
    if type(root).__name__ != "SBlockRealize" or root.block.iter_vars:
        raise UnprovenError("a kernel without a root block")
    _check_plain(root)
    for buffer in root.block.alloc_buffers:
        buffers[buffer] = _extents(buffer)
    for nest in root.block.body.seq if isinstance(root.block.body, tirx.SeqStmt) else [root.block.body]:
        _prove_nest(nest, buffers)


def _extents(buffer: Any) -> tuple[int, ...]:
    """Return the shape of a buffer that lies in memory as its shape says."""
    fixed = [*buffer.shape, *([buffer.elem_offset] if hasattr(buffer.elem_offset, "value") else [])]
    if buffer.strides or buffer.scope() != "global" or not all(hasattr(extent, "value") for extent in fixed):
        raise UnprovenError(f"the buffer {buffer.name} with strides, an offset or sizes that are not fixed")
    extents = tuple(int(extent.value) for extent in buffer.shape)
    size = tvm.DataType(str(buffer.dtype))
    if size.lanes != 1 or math.prod(extents) * max(size.bits, 8) >= 8 * _MAX_BYTES or min(extents, default=1) < 1:
        raise UnprovenError(f"the buffer {buffer.name} of {buffer.dtype} {list(extents)}")
    if hasattr(buffer.elem_offset, "value") and int(buffer.elem_offset.value) != 0:
        raise UnprovenError(f"the buffer {buffer.name} with an offset")
    return extents


def _check_plain(realize: Any) -> None:
    block = realize.block
    if not (hasattr(realize.predicate, "value") and int(realize.predicate.value) == 1) or block.match_buffers:
        raise UnprovenError(f"the block {block.name_hint} with a predicate or views")


def _prove_nest(nest: Any, buffers: Mapping[Any, tuple[int, ...]]) -> None:
    """Prove loops around one block. buffers: with their shapes."""
    loops: dict[Any, int] = {}
    while isinstance(nest, tirx.For):
        if int(nest.kind) != int(tirx.ForKind.SERIAL) or nest.thread_binding is not None or nest.annotations:
            raise UnprovenError("a loop that is not serial")
        if not all(hasattr(value, "value") for value in (nest.min, nest.extent)) or int(nest.min.value) != 0:
            raise UnprovenError("a loop without fixed bounds")
        if nest.loop_var in loops or int(getattr(nest.step, "value", 1) or 1) != 1:
            raise UnprovenError(f"the loop variable {nest.loop_var} twice, or with a step")
        loops[nest.loop_var] = int(nest.extent.value)
        nest = nest.body
    if type(nest).__name__ != "SBlockRealize":
        raise UnprovenError(f"{type(nest).__name__} in place of a block")
    _check_plain(nest)
    block = nest.block
    if block.alloc_buffers or not isinstance(block, block_class()):
        raise UnprovenError(f"the block {block.name_hint} with buffers of its own")
    domains = _domains(nest, loops)
    proof = _Proof(buffers, domains)
    for store in (block.init, block.body):
        if store is not None:
            proof.store(store)


def _domains(realize: Any, loops: Mapping[Any, int]) -> dict[Any, int]:
    """Return the extents of a block's variables, each of which is a loop, or 0."""
    domains: dict[Any, int] = {}
    for variable, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        extent = loops.get(value) if isinstance(value, tirx.Var) else 1 if _is_zero(value) else None
        if extent is None or variable.var in domains or variable.var in loops:
            raise UnprovenError(f"the block variable {variable.var} of {value}")
        if not (_is_zero(variable.dom.min) and int(getattr(variable.dom.extent, "value", -1)) == extent):
            raise UnprovenError(f"the block variable {variable.var} with another range than its loop")
        domains[variable.var] = extent
    if len({value for value in realize.iter_values if isinstance(value, tirx.Var)}) < len(
        [value for value in realize.iter_values if isinstance(value, tirx.Var)]
    ):
        raise UnprovenError(f"two variables of {realize.block.name_hint} for one loop")
    return domains


def _is_zero(value: Any) -> bool:
    return hasattr(value, "value") and int(value.value) == 0


class _Proof:
    """Proves what one block reads and writes. domains: extents of its variables."""

    def __init__(self, buffers: Mapping[Any, tuple[int, ...]], domains: Mapping[Any, int]) -> None:
        self.buffers, self.domains = buffers, domains
        self.analyzer = analyzer_class()()
        for variable, extent in domains.items():
            zero, end = (tirx.const(number, dtype_of(variable)) for number in (0, extent))
            self.analyzer.bind(variable, tvm.ir.Range(zero, end))

    def store(self, store: Any) -> None:
        """Prove a store to one element per variable: with other passes, a kernel may be inlined into its readers, so
        all elements must be written.
        """
        if not isinstance(store, tirx.BufferStore) or getattr(store, "predicate", None) is not None:
            raise UnprovenError(f"{type(store).__name__} in place of a store")
        extents = self._extents_of(store.buffer)
        taken = set()
        for index, extent in zip(store.indices, extents, strict=True):
            if (_is_zero(index) and extent == 1) or (self.domains.get(index) == extent and index not in taken):
                taken.add(index)
                continue
            raise UnprovenError(f"a store to {store.buffer.name} at {index}")
        self.value(store.value)

    def _extents_of(self, buffer: Any) -> tuple[int, ...]:
        if buffer not in self.buffers:
            raise UnprovenError(f"a buffer {getattr(buffer, 'name', '')} that was not declared")
        return self.buffers[buffer]

    def value(self, value: Expr) -> None:
        """Prove all loads of an expression."""
        name = type(value).__name__
        if isinstance(value, load_class()):
            extents = self._extents_of(loaded(value))
            if len(extents) != len(value.indices):
                raise UnprovenError(f"{len(value.indices)} indices of {len(extents)}")
            for index, extent in zip(value.indices, extents, strict=True):
                self.value(index)
                self._index(index, extent)
        elif name == "Call" and not isinstance(value.op, tvm.ir.Op):
            raise UnprovenError("a call of another kernel")
        elif name == "Call" and str(value.op.name).endswith(".if_then_else"):
            condition, then, other = value.args
            self.value(condition)
            self._under(condition, then)
            self._under(tirx.Not(condition), other)
        else:
            for part in _parts(value, name, self.domains):
                self.value(part)

    def _under(self, condition: Expr, value: Expr) -> None:
        """Prove an expression that is computed only where a condition holds; one of data may change meanwhile."""
        known = not _reads(condition) and self._is_exact(condition)
        with self.analyzer.constraint_scope(condition) if known else contextlib.nullcontext():
            self.value(value)

    def _index(self, index: Expr, extent: int) -> None:
        bound = self.analyzer.const_int_bound(index)
        if self._is_exact(index):
            if 0 <= int(bound.min_value) and int(bound.max_value) < extent:
                return
            inside = tirx.all(index >= 0, index < extent)
            if not _reads(index) and self.analyzer.can_prove(inside):
                return
        raise UnprovenError(f"an index {str(index)[:200]} that may lie outside of 0 to {extent - 1}")

    def _is_exact(self, value: Expr) -> bool:
        """Return whether integers stay in their type, so that what is proven of numbers holds for words. What a
        constant clamps is any word.
        """
        name = type(value).__name__
        if isinstance(value, load_class()) or self._is_clamped(value):
            return True
        if name == "Cast" and not dtype_of(value.value).startswith(("int", "uint", "bool")):
            return True  # any word, of which nothing is known
        if name in _INEXACT:
            return False
        if name in _OVERFLOWING and not self._fits(value, dtype_of(value)):
            return False
        if name == "Cast" and not self._fits(value.value, dtype_of(value)):
            return False
        if name in _DIVIDING and int(getattr(value.b, "value", 0)) < 1:
            return False
        if name == "Call" and str(value.op.name).partition(".")[2] not in _EXACT_CALLS:
            return False
        return all(self._is_exact(part) for part in _parts(value, name, self.domains))

    def _fits(self, value: Expr, dtype: str) -> bool:
        bits, bound = _BITS.get(dtype), self.analyzer.const_int_bound(value)
        return bits is not None and -(1 << bits) <= int(bound.min_value) <= int(bound.max_value) < 1 << bits

    def _is_clamped(self, value: Expr) -> bool:
        """Return whether a value is max(min(x, constant), constant) or min(max(...), ...) of a signed integer."""
        inner = _variable_operand(value)
        names = {type(value).__name__, type(inner).__name__}
        return names == {"Min", "Max"} and _variable_operand(inner) is not None and dtype_of(value) in _BITS


def _variable_operand(value: Any) -> Any:
    """Return the operand of a binary expression with one constant, None for any other."""
    operands = [part for part in (getattr(value, "a", None), getattr(value, "b", None)) if part is not None]
    others = [part for part in operands if not hasattr(part, "value")]
    return others[0] if len(operands) == 2 and len(others) == 1 else None


def _parts(value: Expr, name: str, known: Mapping[Any, int]) -> Sequence[Any]:
    """Return the operands of an expression of a block. known: its variables."""
    if name in ("Not", "BitwiseNot"):
        return (value.a,)
    if name in _BINARY or name in _INEXACT:
        return (value.a, value.b)
    if name in ("IntImm", "FloatImm") or (name == "Var" and value in known):
        return ()
    if name == "Cast":
        return (value.value,)
    if name == "Select":
        return (value.condition, value.true_value, value.false_value)
    if name == "Call":
        return tuple(value.args)
    raise UnprovenError(f"{name} in a kernel")


def _reads(value: Expr) -> bool:
    found: list[Any] = []
    structural_walk(value, (load_class(), lambda one: found.append(one)))
    return bool(found)
