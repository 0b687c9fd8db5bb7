"""Kernels in te with a schedule, through the generator of GLSL, on lavapipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.vulkan_networks import Array, HandMade, Kernel, Value, ran
from tvmflow.gpu.glsl import glsl_of
from tvmflow.gpu.spirv import spirv_of


@dataclass(frozen=True)
class Case:
    """A schedule of a function whose parameters are called x0, x1, ..., then y0; what it is given, and what it is to return."""

    schedule: Any
    given: Sequence[Array]
    wanted: Array
    tolerance: float = 0


def new_schedule_of(*tensors: Any) -> Any:
    """Return a schedule of te's tensors, inputs first."""
    from tvm import te

    from tvmflow.kernels.blocks import new_schedule

    return new_schedule(te.create_prim_func(list(tensors)))


def lowered(schedule: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """Return a schedule's function on the device, its groups and their size."""
    import tvm
    from tvm import tirx
    from tvm.tirx import compilation_pipeline
    from tvm_ffi import structural_walk

    target = tvm.target.Target({"kind": "vulkan"}, host={"kind": "llvm"})
    with target:
        module = tvm.IRModule({"k0": schedule.mod["main"].with_attr("global_symbol", "k0")})
        lower, _, _ = compilation_pipeline.get_tir_pipeline("default")
        function = lower(tirx.transform.BindTarget(target)(module))["k0_kernel"]
    sizes: dict[str, int] = {}

    def note(node: Any) -> None:
        if node.attr_key == "thread_extent":
            sizes[str(node.node.thread_tag)] = int(node.value.value)

    structural_walk(function.body, ((tirx.AttrStmt, note),))
    groups, size = (tuple(sizes.get(f"{kind}.{axis}", 1) for axis in "xyz") for kind in ("blockIdx", "threadIdx"))
    return function, groups, size


def bind_flat(schedule: Any, name: str, threads: int, lanes: int = 1, loops: Sequence[Any] | None = None) -> Any:
    """Fuse the loops over a block's elements (the first ones, as many as it has axes) and give them to threads; returns the loop over threads."""
    block = schedule.get_sblock(name, "main")
    if loops is None:
        spatial = sum(int(axis.iter_type) == 0 for axis in schedule.get(block).iter_vars)
        loops = schedule.get_loops(block)[:spatial]
    fused, vector = schedule.fuse(*loops), None
    if lanes > 1:
        fused, vector = schedule.split(fused, [None, lanes])
    outer, inner = schedule.split(fused, [None, threads])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    if vector is not None:
        schedule.vectorize(vector)
    return inner


def network_of(cases: Sequence[Case], most_texels: int = 0, *, computes_float16: bool = True) -> HandMade:
    """Return a network that runs kernels one after the other, each on inputs of its own."""
    values: list[Value] = []
    steps, inputs, outputs = [], 0, 0
    for case in cases:
        function, groups, size = lowered(case.schedule)
        at = {}
        for i, array in enumerate(case.given):
            at[f"x{i}"] = len(values)
            values.append(Value("INPUT", array.shape, str(array.dtype), inputs))
            inputs += 1
        at["y0"] = len(values)
        values.append(Value("OUTPUT", case.wanted.shape, str(case.wanted.dtype), outputs))
        outputs += 1
        x, y, z = groups
        a, b, c = size
        arguments = tuple(at[str(parameter.name).split("_")[0]] for parameter in function.params)
        steps.append(
            Kernel(
                spirv_of(glsl_of(function, most_texels, computes_float16=computes_float16)),
                (x, y, z),
                (a, b, c),
                arguments,
            )
        )
    return HandMade(values, steps)


def check(folder: Path, cases: Sequence[Case], most_texels: int = 0, *, computes_float16: bool = True) -> None:
    """Run kernels on lavapipe and compare with what they are to return."""
    outputs = ran(
        folder,
        network_of(cases, most_texels, computes_float16=computes_float16),
        [array for case in cases for array in case.given],
    )
    for number, (case, output) in enumerate(zip(cases, outputs, strict=True)):
        np.testing.assert_allclose(output, case.wanted, rtol=0, atol=case.tolerance, err_msg=f"case {number}")
