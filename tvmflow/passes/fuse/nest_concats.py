"""Let a concat read an earlier one that joins some of its parts.

A dense block joins all values before each layer: (a, b), (a, b, c), ... Read as ((a, b), c), each value lies in one
concat, so that all are written in place (`concatenate_in_place`), and what follows reads one image instead of up to
forty.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tvm_compat import IRModule, return_type, type_of
from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT

_Parts = tuple[Any, ...]


@tvm.transform.module_pass(opt_level=0, name="NestConcats")
class NestConcats:
    """IRModule -> IRModule; unchanged if no concat along channels has the parts of another one, side by side."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        main = mod["main"]
        if len(main.body.blocks) != 1:
            return mod
        [block] = main.body.blocks
        nested = _nest(list(block.bindings), main.body.body)
        if not nested:
            return mod
        builder, bindings = relax.BlockBuilder(), []
        for binding in block.bindings:
            if binding.var in nested:
                joined = builder.normalize(relax.op.concat(list(nested[binding.var]), axis=1))
                binding = relax.VarBinding(binding.var, joined)
            bindings.append(binding)
        body = relax.SeqExpr([type(block)(bindings)], main.body.body)
        changed = relax.Function(main.params, body, return_type(main), main.is_pure, main.attrs)
        return tvm.IRModule({**mod.functions, mod.get_global_var("main"): changed}, attrs=mod.attrs)


def _nest(bindings: list[Any], output: Any) -> dict[Any, _Parts]:
    """Return the new parts of concats that can read an earlier one, by their variables; none of a part that lies in
    several concats even then, since that is not written in place.
    """
    numbers = {binding.var: at for at, binding in enumerate(bindings)}  # hashed faster than variables
    known: dict[tuple[int, ...], Any] = {}
    parts: dict[Any, _Parts] = {}
    nested: set[Any] = set()
    for binding in bindings:
        found = _parts_of(binding.value)
        if not found or not all(part in numbers and not part.same_as(output) for part in found):
            continue
        keys = tuple(numbers[part] for part in found)
        spans = ((at, at + count) for count in range(len(keys) - 1, 1, -1) for at in range(len(keys) - count + 1))
        begin, end = next((span for span in spans if keys[slice(*span)] in known), (0, 0))
        parts[binding.var] = (*found[:begin], known[keys[begin:end]], *found[end:]) if end else found
        known[keys] = binding.var
        if end and all(map(_is_aligned, parts[binding.var])):
            nested.add(binding.var)
    uses = Counter(part for one in parts.values() for part in one)
    return {var: parts[var] for var in nested if all(uses[part] == 1 for part in parts[var])}


def _parts_of(value: Any) -> _Parts:
    """Return the parts of a concat of images of batch 1 along channels; () for another value."""
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.concat":
        return ()
    [joined] = value.args
    if not isinstance(joined, relax.Tuple) or value.attrs.axis is None or int(value.attrs.axis) != 1:
        return ()
    parts = tuple(joined.fields)
    if not all(isinstance(part, relax.Var) and _is_static(part) for part in parts):
        return ()
    return parts if int(type_of(parts[0]).shape[0]) == 1 else ()


def _is_static(part: Any) -> bool:
    shape = type_of(part).shape
    return shape is not None and all(hasattr(size, "value") for size in shape)


def _is_aligned(part: Any) -> bool:
    kind = type_of(part)
    return bytes_of(kind.shape, kind.dtype) % ALIGNMENT == 0
