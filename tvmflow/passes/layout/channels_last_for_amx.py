"""Store images between AMX convolutions channels-last, the layout that AMX tiles read.

Packed channels are (N, C/b, H, W, b), and an AMX convolution copies its image to channels-last before it multiplies.
Values that only such convolutions write and read are stored as (N, H, W, C/b, b) if a 1x1 convolution reads them: it
then needs no copy. Outputs of larger filters stay packed: their writes to parts of cache lines cost more than the copy
(docs/log/amx.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.tir.blocks import block_ref, classify_blocks, extents, new_schedule, region_buffer
from tvmflow.ir.tvm_compat import IRModule, buffer_of, operator_of, shape_of, type_of, variable_name, with_bindings
from tvmflow.passes.kernel.apply_schedules import copy_attributes
from tvmflow.schedules.cpu.amx_convolution import is_amx_convolution, is_flat

_RANK = 5


@tvm.transform.module_pass(opt_level=0, name="ChannelsLastForAmx")
class ChannelsLastForAmx:
    """IRModule of kernels -> IRModule, some of whose values are (N, H, W, C/b, b)."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        main = mod["main"]
        if len(main.body.blocks) != 1:
            return mod
        block = main.body.blocks[0]
        calls = [_find_convolution(mod, binding) for binding in block.bindings]
        chosen = _choose_values(list(block.bindings), calls, main.body.body)
        return _Rewriter(mod, chosen).rewrite(main, calls) if chosen else mod


@dataclass(frozen=True)
class _Call:
    """A call of an AMX convolution.

    image: index of the image argument, -1 if the kernel pads it; of_pixels: whether the filter is 1x1.
    """

    kernel: Any
    arguments: list[Any]
    image: int
    of_pixels: bool


def _find_convolution(mod: IRModule, binding: Any) -> _Call | None:
    """Return the AMX convolution that a binding calls, None for anything else."""
    value = binding.value
    if operator_of(value) != "relax.call_tir":
        return None
    function = mod[value.args[0]]
    schedule = new_schedule(function)
    kernel = classify_blocks(schedule)
    if not is_amx_convolution(kernel) or is_flat(kernel):
        return None
    assert kernel.anchor is not None
    anchor = block_ref(schedule, kernel.anchor)
    image = region_buffer(schedule.get(anchor).reads[0])
    buffers = [buffer_of(function, parameter) for parameter in function.params]
    places = (at for at, buffer in enumerate(buffers) if buffer is not None and buffer.same_as(image))
    rows, columns = extents(schedule, schedule.get_loops(anchor))[5:7]
    return _Call(value.args[0], list(value.args[1].fields), next(places, -1), rows * columns == 1)


def _choose_values(bindings: list[Any], calls: list[_Call | None], output: Any) -> set[Any]:
    """Return the variables that only AMX convolutions access, written by a 1x1 one and read by a 1x1 one without
    padding.
    """
    made, images = set(), set()
    kept = set(relax.analysis.free_vars(output))
    for binding, call in zip(bindings, calls, strict=True):
        if call is None:
            kept.update(relax.analysis.free_vars(binding.value))
            continue
        if call.of_pixels and _has_pixels(binding.var):
            made.add(binding.var)
        if call.of_pixels and call.image >= 0:
            images.add(call.arguments[call.image])
    return (made & images) - kept


def _has_pixels(variable: Any) -> bool:
    """Whether a value is an image of several rows, columns and blocks of channels."""
    kind = type_of(variable)
    if getattr(kind, "ndim", 0) != _RANK:
        return False
    _, blocks, height, width, _ = shape_of(variable)
    return min(blocks, height, width) > 1


class _Rewriter:
    def __init__(self, mod: IRModule, chosen: set[Any]) -> None:
        self.mod, self.chosen, self.builder = mod, chosen, relax.BlockBuilder(mod)
        self.variables: dict[Any, Any] = {}
        self.kernels: dict[tuple[Any, tuple[int, ...]], Any] = {}

    def rewrite(self, main: Any, calls: list[_Call | None]) -> Any:
        """Return the module with the chosen values, and the kernels that access them, in the channels-last layout."""
        block = main.body.blocks[0]
        bindings = [
            binding if call is None else self._rewrite_binding(binding, call)
            for binding, call in zip(block.bindings, calls, strict=True)
        ]
        self.builder.update_func(self.mod.get_global_var("main"), with_bindings(main, bindings))
        return relax.transform.DeadCodeElimination(["main"])(self.builder.get())

    def _rewrite_binding(self, binding: Any, call: _Call) -> Any:
        operands = [*call.arguments, binding.var]
        moved = tuple(
            at for at, operand in enumerate(operands) if isinstance(operand, relax.Var) and operand in self.chosen
        )
        if not moved:
            return binding
        if (call.kernel, moved) not in self.kernels:
            function = _transform_layouts(self.mod[call.kernel], moved)
            self.kernels[call.kernel, moved] = self.builder.add_func(function, call.kernel.name_hint)
        *arguments, output = (
            self._convert_variable(operand) if at in moved else operand for at, operand in enumerate(operands)
        )
        value = relax.call_tir(self.kernels[call.kernel, moved], arguments, type_of(output))
        return relax.VarBinding(output, value)

    def _convert_variable(self, variable: Any) -> Any:
        if variable not in self.variables:
            n, c, h, w, b = shape_of(variable)
            kind = relax.TensorType((n, h, w, c, b), type_of(variable).dtype)
            self.variables[variable] = type(variable)(variable_name(variable), kind)
        return self.variables[variable]


def _transform_layouts(function: Any, moved: tuple[int, ...]) -> Any:
    """Return a kernel whose parameters at these positions are (N, H, W, C/b, b)."""
    schedule = new_schedule(function)
    for at in moved:
        kernel = classify_blocks(schedule)
        parameter = buffer_of(schedule.mod["main"], schedule.mod["main"].params[at])
        assert kernel.anchor is not None
        for name in (*kernel.before, kernel.anchor, *kernel.after):
            block = schedule.get(block_ref(schedule, name))
            place = _find_access(block, parameter)
            if place is not None:
                schedule.transform_layout(block_ref(schedule, name), place, lambda n, c, h, w, b: (n, h, w, c, b))
                break
    return copy_attributes(schedule.mod["main"], function)


def _find_access(block: Any, buffer: Any) -> tuple[str, int] | None:
    """Return the kind and index of a block's region of a buffer, None if it does not access it."""
    for kind, regions in (("read", block.reads), ("write", block.writes)):
        for at, region in enumerate(regions):
            if region_buffer(region).same_as(buffer):
                return kind, at
    return None
