"""ChannelsLastForAmx: images between convolutions in matrix tiles have all channels of a pixel side by side, as tiles
read them.

Packed channels are (N, C/b, H, W, b), and a convolution in tiles copies such an image before it multiplies. What only
such convolutions make and read lies as (N, H, W, C/b, b) instead, where one of them has a filter of one pixel: it needs
no copy then. Made by a larger filter it stays: what that writes to parts of lines of the cache costs more than a copy
(docs/log/amx.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.tir.blocks import block_ref, extents, look_at, new_schedule, region_buffer
from tvmflow.ir.tvm_compat import buffer_of, operator_of, shape_of, type_of, variable_name, with_bindings
from tvmflow.passes.kernel.apply_schedules import copy_attributes
from tvmflow.schedules.cpu.amx_convolution import is_flat, is_in_tiles

_RANK = 5


@tvm.transform.module_pass(opt_level=0, name="ChannelsLastForAmx")
class ChannelsLastForAmx:
    """IRModule of kernels -> IRModule, some of whose images between kernels are (N, H, W, C/b, b)."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        main = mod["main"]
        if len(main.body.blocks) != 1:
            return mod
        block = main.body.blocks[0]
        calls = [_call(mod, binding) for binding in block.bindings]
        chosen = _chosen(list(block.bindings), calls, main.body.body)
        return _Rewriter(mod, chosen).rewritten(main, calls) if chosen else mod


@dataclass(frozen=True)
class _Call:
    """A call of a convolution in tiles. image: the position of what it multiplies, -1 where it pads that; of_pixels:
    whether its filter is one pixel.
    """

    kernel: Any
    arguments: list[Any]
    image: int
    of_pixels: bool


def _call(mod: Any, binding: Any) -> _Call | None:
    """Return the convolution in tiles that a binding calls, None where it is anything else."""
    value = binding.value
    if operator_of(value) != "relax.call_tir":
        return None
    function = mod[value.args[0]]
    schedule = new_schedule(function)
    kernel = look_at(schedule)
    if not is_in_tiles(kernel) or is_flat(kernel):
        return None
    assert kernel.anchor is not None
    anchor = block_ref(schedule, kernel.anchor)
    image = region_buffer(schedule.get(anchor).reads[0])
    buffers = [buffer_of(function, parameter) for parameter in function.params]
    places = (at for at, buffer in enumerate(buffers) if buffer is not None and buffer.same_as(image))
    rows, columns = extents(schedule, schedule.get_loops(anchor))[5:7]
    return _Call(value.args[0], list(value.args[1].fields), next(places, -1), rows * columns == 1)


def _chosen(bindings: list[Any], calls: list[_Call | None], output: Any) -> set[Any]:
    """Return the variables that convolutions in tiles alone read, one of them without a copy then, and one of single
    pixels makes.
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
    """Whether a value is an image of several pixels along each axis, of several blocks of channels."""
    kind = type_of(variable)
    if getattr(kind, "ndim", 0) != _RANK:
        return False
    _, blocks, height, width, _ = shape_of(variable)
    return min(blocks, height, width) > 1


class _Rewriter:
    def __init__(self, mod: Any, chosen: set[Any]) -> None:
        self.mod, self.chosen, self.builder = mod, chosen, relax.BlockBuilder(mod)
        self.variables: dict[Any, Any] = {}
        self.kernels: dict[tuple[Any, tuple[int, ...]], Any] = {}

    def rewritten(self, main: Any, calls: list[_Call | None]) -> Any:
        """Return the module with the chosen values and the kernels that make and read them in their new layout."""
        block = main.body.blocks[0]
        bindings = [
            binding if call is None else self._binding(binding, call)
            for binding, call in zip(block.bindings, calls, strict=True)
        ]
        self.builder.update_func(self.mod.get_global_var("main"), with_bindings(main, bindings))
        return relax.transform.DeadCodeElimination(["main"])(self.builder.get())

    def _binding(self, binding: Any, call: _Call) -> Any:
        operands = [*call.arguments, binding.var]
        moved = tuple(
            at for at, operand in enumerate(operands) if isinstance(operand, relax.Var) and operand in self.chosen
        )
        if not moved:
            return binding
        if (call.kernel, moved) not in self.kernels:
            function = _with_layouts(self.mod[call.kernel], moved)
            self.kernels[call.kernel, moved] = self.builder.add_func(function, call.kernel.name_hint)
        *arguments, output = (
            self._variable(operand) if at in moved else operand for at, operand in enumerate(operands)
        )
        value = relax.call_tir(self.kernels[call.kernel, moved], arguments, type_of(output))
        return relax.VarBinding(output, value)

    def _variable(self, variable: Any) -> Any:
        if variable not in self.variables:
            n, c, h, w, b = shape_of(variable)
            kind = relax.TensorType((n, h, w, c, b), type_of(variable).dtype)
            self.variables[variable] = type(variable)(variable_name(variable), kind)
        return self.variables[variable]


def _with_layouts(function: Any, moved: tuple[int, ...]) -> Any:
    """Return a kernel whose parameters at these positions are (N, H, W, C/b, b)."""
    schedule = new_schedule(function)
    for at in moved:
        kernel = look_at(schedule)
        parameter = buffer_of(schedule.mod["main"], schedule.mod["main"].params[at])
        assert kernel.anchor is not None
        for name in (*kernel.before, kernel.anchor, *kernel.after):
            block = schedule.get(block_ref(schedule, name))
            place = _place(block, parameter)
            if place is not None:
                schedule.transform_layout(block_ref(schedule, name), place, lambda n, c, h, w, b: (n, h, w, c, b))
                break
    return copy_attributes(schedule.mod["main"], function)


def _place(block: Any, buffer: Any) -> tuple[str, int] | None:
    """Return where a block reads or writes a buffer, None where it does not."""
    for kind, regions in (("read", block.reads), ("write", block.writes)):
        for at, region in enumerate(regions):
            if region_buffer(region).same_as(buffer):
                return kind, at
    return None
