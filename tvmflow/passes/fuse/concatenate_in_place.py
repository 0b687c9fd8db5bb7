"""Write the inputs of a concat along channels directly into its output, and remove the copy.

With packed channels, the parts of an image of batch 1 are contiguous in the output. TVM's memory planner gives each
value its own storage, so that a concat costs a pass over memory, and its readers miss the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tir.workloads import count_calls
from tvmflow.ir.tvm_compat import IRModule, object_type, return_type, type_of, variable_name
from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT, allocate_tensors


@dataclass(frozen=True)
class _Slice:
    """A part of a larger value: the value, and the offset of the part in bytes."""

    whole: Any
    offset: int


@tvm.transform.module_pass(opt_level=0, name="ConcatInPlace")
class ConcatInPlace:
    """IRModule of kernels -> IRModule whose main allocates its tensors; unchanged if no concat can be removed."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        lowered = allocate_tensors(mod)
        main = lowered["main"]
        if len(main.body.blocks) != 1:
            return mod
        bindings = list(main.body.blocks[0].bindings)
        slices, joined = _find_slices(bindings, main.body.body)
        if not joined:
            return mod
        body = relax.SeqExpr([relax.BindingBlock(_allocate_slices(bindings, slices, joined))], main.body.body)
        lowered["main"] = relax.Function(main.params, body, return_type(main), main.is_pure, main.attrs)
        called = count_calls(lowered)
        for kernel in {bindings[index].value.op for index in joined}:
            if kernel.name_hint not in called:
                del lowered[kernel]
        return lowered


def _find_slices(bindings: list[Any], output: Any) -> tuple[dict[Any, _Slice], set[int]]:
    """Return the slice of each part, by the variable of its allocation, and the positions of the concats to remove."""
    aliases: dict[Any, Any] = {}  # a variable -> the allocation whose memory it aliases
    for binding in bindings:
        value = binding.value
        if _is(value, "relax.builtin.alloc_tensor"):
            aliases[binding.var] = binding.var
        elif isinstance(value, relax.Var) and value in aliases:
            aliases[binding.var] = aliases[value]
        elif _is(value, "relax.reshape") and value.args[0] in aliases:
            aliases[binding.var] = aliases[value.args[0]]
    slices: dict[Any, _Slice] = {}
    joined: set[int] = set()
    for position, binding in enumerate(bindings):
        if not _concatenates(binding.value):
            continue
        *parts, whole = binding.value.args
        storage = [aliases.get(part) for part in parts]
        offsets = [sum(_bytes(part) for part in parts[:index]) for index in range(len(parts))]
        free = all(part is not None and part not in slices for part in storage) and len(set(storage)) == len(storage)
        returned = {aliases.get(whole), *storage} & {aliases.get(output)}
        if free and not returned and not any(offset % ALIGNMENT for offset in offsets):
            slices.update((part, _Slice(whole, offset)) for part, offset in zip(storage, offsets, strict=True))
            joined.add(position)
    return slices, joined


def _concatenates(value: Any) -> bool:
    """Whether a kernel call only concatenates images of batch 1 along their channels."""
    if not (isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)):
        return False
    if not value.op.name_hint.startswith("concatenate") or len(value.args) < 3:
        return False
    if not all(isinstance(argument, relax.Var) for argument in value.args):
        return False
    *parts, whole = ([int(d) for d in type_of(argument).shape] for argument in value.args)
    rest = {(shape[0], *shape[2:]) for shape in (*parts, whole) if len(shape) > 1}
    return len(rest) == 1 and whole[0] == 1 and sum(shape[1] for shape in parts) == whole[1]


def _allocate_slices(bindings: list[Any], slices: dict[Any, _Slice], joined: set[int]) -> list[Any]:
    """Return the bindings without the removed concats; the parts are allocated in the storage of the output."""
    memory: dict[Any, Any] = {}
    wholes = {part.whole for part in slices.values()}
    rewritten: list[Any] = []
    for index, binding in enumerate(bindings):
        if index in joined:
            continue
        variable, offset = binding.var, 0
        if variable not in slices and variable not in wholes:
            rewritten.append(binding)
            continue
        while variable in slices:
            offset, variable = offset + slices[variable].offset, slices[variable].whole
        if variable not in memory:
            size = relax.ShapeExpr([_bytes(variable)])
            storage = relax.op.memory.alloc_storage(size, 0, "global", "uint8")
            memory[variable] = relax.Var(f"joined{len(memory)}", object_type())
            rewritten.append(relax.VarBinding(memory[variable], storage))
        shape, dtype = type_of(binding.var).shape, str(type_of(binding.var).dtype)
        tensor = relax.op.memory.alloc_tensor(memory[variable], offset, shape, dtype)
        if offset:  # kernels require tensors with byte_offset 0
            part = relax.Var(f"{variable_name(binding.var)}_at_{offset}", type_of(binding.var))
            rewritten.append(relax.VarBinding(part, tensor))
            tensor = relax.op.memory.ensure_zero_offset(part)
        rewritten.append(relax.VarBinding(binding.var, tensor))
    return rewritten


def _bytes(value: Any) -> int:
    kind = type_of(value)
    return bytes_of(kind.shape, kind.dtype)


def _is(value: Any, operator: str) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == operator
