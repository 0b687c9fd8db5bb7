"""Fuse a 1x1 convolution with the depthwise convolution that alone reads its output.

Inverted residuals (MobileNetV2 and its successors) widen an image to several times its channels, apply a depthwise
convolution and narrow it again. The wide image is the largest value of such a network, larger than the L2 cache, and
its memory traffic costs more than its arithmetic. In one kernel, each thread computes some rows of a few channels and
reads them while they are in its cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.tir.blocks import Kernel, block_ref, classify_blocks, extents, new_schedule, region_buffer
from tvmflow.ir.tvm_compat import Expr, IRModule, Schedule, buffer_of, operator_of, type_of, with_bindings
from tvmflow.schedules.cpu.inverted_residual import DEPTHWISE, EXPANSION, is_expansion, pays, shape_of
from tvmflow.targets.cpu_features import CpuFeatures


@tvm.transform.module_pass(opt_level=0, name="FuseInvertedResiduals")
class FuseInvertedResiduals:
    """IRModule of kernels -> IRModule. cpu: the CPU whose threads divide the fused kernels."""

    def __init__(self, cpu: CpuFeatures) -> None:
        self.cpu = cpu

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        main = mod["main"]
        if len(main.body.blocks) != 1:
            return mod
        block = main.body.blocks[0]
        pairs = _find_pairs(mod, list(block.bindings), main.body.body, self.cpu)
        return _fuse(mod, main, pairs) if pairs else mod


@dataclass(frozen=True)
class _Pair:
    """The calls of an expansion and of the depthwise convolution that reads it as argument number `image`."""

    expansion: Any
    depthwise: Any
    image: int


def _find_pairs(mod: IRModule, bindings: list[Any], output: Any, cpu: CpuFeatures) -> dict[Any, _Pair]:
    """Return the pairs, by the output variable of the depthwise convolution."""
    calls = {binding.var: binding for binding in bindings if operator_of(binding.value) == "relax.call_tir"}
    reads = Counter(
        variable
        for expression in (*(binding.value for binding in bindings), output)
        for variable in _variables(expression)
    )
    pairs: dict[Any, _Pair] = {}
    for binding in calls.values():
        image = _image_parameter(mod[binding.value.args[0]], cpu)
        if image is None:
            continue
        wide = calls.get(binding.value.args[1].fields[image])
        if wide is None or reads[wide.var] != 1 or wide.var in pairs:
            continue
        if _is_fusable_expansion(mod[wide.value.args[0]]):
            pairs[binding.var] = _Pair(wide, binding, image)
    return pairs


def _variables(expression: Expr) -> list[Any]:
    """Return the variables that an expression reads; a call repeats those that it is passed twice."""
    if operator_of(expression) == "relax.call_tir":
        return [argument for argument in expression.args[1].fields if isinstance(argument, relax.Var)]
    return list(relax.analysis.free_vars(expression))


def _image_parameter(function: Any, cpu: CpuFeatures) -> int | None:
    """Return the index of the parameter that a float32 depthwise convolution pads and reads.

    None if the kernel computes anything else or should stay separate.
    """
    schedule = new_schedule(function)
    kernel = classify_blocks(schedule)
    if kernel.anchor != DEPTHWISE or len(kernel.before) != 1 or not _keeps_pixels(schedule, kernel):
        return None
    read = region_buffer(schedule.get(block_ref(schedule, kernel.before[0])).reads[0])
    if str(read.dtype) != "float32" or not pays(shape_of(schedule, kernel.before[0]), cpu):
        return None
    others = (schedule.get(block_ref(schedule, name)).reads for name in (kernel.anchor, *kernel.after))
    if any(region_buffer(region).same_as(read) for reads in others for region in reads):
        return None
    buffers = [buffer_of(function, parameter) for parameter in function.params]
    return next((at for at, buffer in enumerate(buffers) if buffer is not None and buffer.same_as(read)), None)


def _is_fusable_expansion(function: Any) -> bool:
    """Whether a kernel is a float32 1x1 convolution on packed channels with an elementwise epilogue."""
    schedule = new_schedule(function)
    kernel = classify_blocks(schedule)
    return kernel.anchor is not None and _keeps_pixels(schedule, kernel) and is_expansion(schedule, kernel)


def _keeps_pixels(schedule: Schedule, kernel: Kernel) -> bool:
    """Whether the epilogue of a convolution has the same pixels, all of them; False if their number is unknown."""
    assert kernel.anchor is not None
    loops = (schedule.get_loops(block_ref(schedule, name))[:5] for name in (kernel.anchor, *kernel.after))
    try:
        sizes = [extents(schedule, of_block) for of_block in loops]
    except ValueError:
        return False
    return all(size == sizes[0] for size in sizes)


def _fuse(mod: IRModule, main: Any, pairs: dict[Any, _Pair]) -> Any:
    """Return the module in which each pair is one kernel call."""
    builder = relax.BlockBuilder(mod)
    functions: dict[tuple[Any, Any], Any] = {}
    gone = {pair.expansion.var for pair in pairs.values()}
    bindings = []
    for binding in main.body.blocks[0].bindings:
        pair = pairs.get(binding.var)
        if pair is not None:
            binding = relax.VarBinding(binding.var, _call_fused(builder, functions, pair))
        if binding.var not in gone:
            bindings.append(binding)
    builder.update_func(mod.get_global_var("main"), with_bindings(main, bindings))
    fused = relax.transform.FuseTIR()(builder.get())
    return relax.transform.DeadCodeElimination(["main"])(fused)


def _call_fused(builder: Any, functions: dict[tuple[Any, Any], Any], pair: _Pair) -> Any:
    """Return the call of the fused function of both kernels; create the function on first use."""
    first, second = pair.expansion.value, pair.depthwise.value
    own, others = list(first.args[1].fields), list(second.args[1].fields)
    del others[pair.image]
    kernels = (first.args[0], second.args[0])
    if kernels not in functions:
        parameters = [relax.Var(f"p{at}", type_of(value)) for at, value in enumerate([*own, *others])]
        given, rest = parameters[: len(own)], parameters[len(own) :]
        name = (
            f"{EXPANSION}_{kernels[0].name_hint.removeprefix('fused_')}_{kernels[1].name_hint.removeprefix('fused_')}"
        )
        with builder.function(f"fused_{name}", parameters, attrs={"Primitive": True}, private=True):
            with builder.dataflow():
                wide = builder.emit(relax.call_tir(kernels[0], given, type_of(pair.expansion.var)))
                read = [*rest[: pair.image], wide, *rest[pair.image :]]
                output = builder.emit_output(relax.call_tir(kernels[1], read, type_of(pair.depthwise.var)))
            functions[kernels] = builder.emit_func_output(output)
    return relax.Call(functions[kernels], [*own, *others])
