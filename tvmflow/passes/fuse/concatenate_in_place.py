"""ConcatInPlace: what is only joined along channels is written where the whole will lie, and not copied.

On packed channels the parts of an image of batch 1 lie one behind the other in memory. TVM's memory planner gives each
value a storage of its own, so a concatenation costs a pass over memory, and its readers find nothing in their caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tir.workloads import count_calls
from tvmflow.ir.tvm_compat import object_type, return_type, type_of, variable_name
from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT, with_allocations


@dataclass(frozen=True)
class _Place:
    """A part of a larger value: in which, and how many bytes from its beginning."""

    whole: Any
    offset: int


@tvm.transform.module_pass(opt_level=0, name="ConcatInPlace")
class ConcatInPlace:
    """IRModule of kernels -> IRModule whose main has its tensors allocated; as it came where nothing is joined in
    place.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        lowered = with_allocations(mod)
        main = lowered["main"]
        if len(main.body.blocks) != 1:
            return mod
        bindings = list(main.body.blocks[0].bindings)
        places, joined = _places(bindings, main.body.body)
        if not joined:
            return mod
        body = relax.SeqExpr([relax.BindingBlock(_with_places(bindings, places, joined))], main.body.body)
        lowered["main"] = relax.Function(main.params, body, return_type(main), main.is_pure, main.attrs)
        called = count_calls(lowered)
        for kernel in {bindings[index].value.op for index in joined}:
            if kernel.name_hint not in called:
                del lowered[kernel]
        return lowered


def _places(bindings: list[Any], output: Any) -> tuple[dict[Any, _Place], set[int]]:
    """Return where parts lie, by the variable of their allocation, and the positions of concatenations that go away."""
    seen_as: dict[Any, Any] = {}  # a variable -> the allocation whose memory it shows
    for binding in bindings:
        value = binding.value
        if _is(value, "relax.builtin.alloc_tensor"):
            seen_as[binding.var] = binding.var
        elif isinstance(value, relax.Var) and value in seen_as:
            seen_as[binding.var] = seen_as[value]
        elif _is(value, "relax.reshape") and value.args[0] in seen_as:
            seen_as[binding.var] = seen_as[value.args[0]]
    places: dict[Any, _Place] = {}
    joined: set[int] = set()
    for position, binding in enumerate(bindings):
        if not _concatenates(binding.value):
            continue
        *parts, whole = binding.value.args
        held = [seen_as.get(part) for part in parts]
        offsets = [sum(_bytes(part) for part in parts[:index]) for index in range(len(parts))]
        free = all(part is not None and part not in places for part in held) and len(set(held)) == len(held)
        returned = {seen_as.get(whole), *held} & {seen_as.get(output)}
        if free and not returned and not any(offset % ALIGNMENT for offset in offsets):
            places.update((part, _Place(whole, offset)) for part, offset in zip(held, offsets, strict=True))
            joined.add(position)
    return places, joined


def _concatenates(value: Any) -> bool:
    """Whether a call of a kernel only joins images of batch 1 along their channels."""
    if not (isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)):
        return False
    if not value.op.name_hint.startswith("concatenate") or len(value.args) < 3:
        return False
    if not all(isinstance(argument, relax.Var) for argument in value.args):
        return False
    *parts, whole = ([int(d) for d in type_of(argument).shape] for argument in value.args)
    rest = {(shape[0], *shape[2:]) for shape in (*parts, whole) if len(shape) > 1}
    return len(rest) == 1 and whole[0] == 1 and sum(shape[1] for shape in parts) == whole[1]


def _with_places(bindings: list[Any], places: dict[Any, _Place], joined: set[int]) -> list[Any]:
    """Return the bindings without these concatenations; what is joined is allocated in one storage."""
    memory: dict[Any, Any] = {}
    wholes = {place.whole for place in places.values()}
    rewritten: list[Any] = []
    for index, binding in enumerate(bindings):
        if index in joined:
            continue
        variable, offset = binding.var, 0
        if variable not in places and variable not in wholes:
            rewritten.append(binding)
            continue
        while variable in places:
            offset, variable = offset + places[variable].offset, places[variable].whole
        if variable not in memory:
            size = relax.ShapeExpr([_bytes(variable)])
            storage = relax.op.memory.alloc_storage(size, 0, "global", "uint8")
            memory[variable] = relax.Var(f"joined{len(memory)}", object_type())
            rewritten.append(relax.VarBinding(memory[variable], storage))
        shape, dtype = type_of(binding.var).shape, str(type_of(binding.var).dtype)
        tensor = relax.op.memory.alloc_tensor(memory[variable], offset, shape, dtype)
        if offset:  # kernels take tensors whose data pointer is their beginning
            part = relax.Var(f"{variable_name(binding.var)}_at_{offset}", type_of(binding.var))
            rewritten.append(relax.VarBinding(part, tensor))
            tensor = relax.op.memory.ensure_zero_offset(part)
        rewritten.append(relax.VarBinding(binding.var, tensor))
    return rewritten


def _bytes(value: Any) -> int:
    held = type_of(value)
    return bytes_of(held.shape, held.dtype)


def _is(value: Any, operator: str) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == operator
