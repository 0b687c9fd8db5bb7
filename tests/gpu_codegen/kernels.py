"""Compile scheduled TE kernels by the generators: GLSL on lavapipe, OpenCL C on PoCL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu_codegen.drivers import run_on
from tests.gpu_codegen.test_networks import gpu_backend
from tests.gpu_codegen.vulkan_networks import Array, HandMade, Kernel, Value, ran
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import link
from tvmflow.codegen.network.plan import Memory, Plan, launch_step
from tvmflow.codegen.network.plan import Value as PlanValue
from tvmflow.codegen.network.textures import choose_textures
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.gpu_codegen.glsl import glsl_of
from tvmflow.gpu_codegen.launches import Argument, DeviceKernel, DeviceProgram, Launch
from tvmflow.gpu_codegen.spirv import spirv_of
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import software_drivers


@dataclass(frozen=True)
class Case:
    """A schedule of a function whose parameters are called x0, x1, ..., then y0; what it is given, and what it is to
    return.
    """

    schedule: Any
    given: Sequence[Array]
    wanted: Array
    tolerance: float = 0


def new_schedule_of(*tensors: Any) -> Any:
    """Return a schedule of te's tensors, inputs first."""
    from tvm import te

    from tvmflow.ir.tir.blocks import new_schedule

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
    """Fuse the loops over a block's elements (the first ones, as many as it has axes) and give them to threads; returns
    the loop over threads.
    """
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
    """Run kernels on lavapipe and on PoCL, and compare with what they are to return. most_texels: more than 0 has
    textures on PoCL, too.
    """
    given = [array for case in cases for array in case.given]
    _compare(cases, ran(folder, network_of(cases, most_texels, computes_float16=computes_float16), given))
    library = folder / "opencl.so"
    write_opencl(library, cases, textures=most_texels > 0)
    _compare(cases, run_on(software_drivers().pocl, library, tuple(given), folder, 1))


def _compare(cases: Sequence[Case], outputs: Sequence[Array]) -> None:
    for number, (case, output) in enumerate(zip(cases, outputs, strict=True)):
        np.testing.assert_allclose(output, case.wanted, rtol=0, atol=case.tolerance, err_msg=f"case {number}")


def write_opencl(path: Path, cases: Sequence[Case], *, textures: bool) -> None:
    """Link a network that runs kernels one after the other, each on inputs of its own, by OpenCL; PoCL has no float16
    to compute with.
    """
    memories: list[Memory] = []
    values: list[PlanValue] = []
    inputs: list[int] = []
    outputs: list[int] = []
    launches = []
    for number, case in enumerate(cases):
        function, groups, size = lowered(case.schedule)
        at: dict[str, int] = {}
        for name, array in (*((f"x{i}", array) for i, array in enumerate(case.given)), ("y0", case.wanted)):
            at[name] = len(values)
            held = outputs if name == "y0" else inputs
            memories.append(Memory("output" if name == "y0" else "input", array.nbytes, len(held)))
            values.append(PlanValue(len(memories) - 1, 0, array.shape, str(array.dtype)))
            held.append(at[name])
        named = [str(parameter.name).split("_")[0] for parameter in function.params]
        arguments = tuple(Argument("parameter", at[name]) for name in named)
        written = tuple(name == "y0" for name in named)
        launches.append(Launch(f"k{number}", arguments, written, _three(groups), _three(size), function))
    program = DeviceProgram({launch.name: DeviceKernel((launch,), ()) for launch in launches})
    gpu = gpu_backend("opencl", textures=textures).executable(program)
    steps = tuple(launch_step(launch, lambda one: one.index) for launch in launches)
    found = choose_textures([memory.size for memory in memories], values, steps, (), gpu.may_be_images)
    plan = Plan(tuple(memories), tuple(values), steps, tuple(inputs), tuple(outputs), (), (), textures=found)
    specs = tuple(TensorSpec(f"x{i}", values[at].shape, values[at].dtype) for i, at in enumerate(inputs))
    network = Network("cases@opencl:any", specs, tuple(f"y{i}" for i in range(len(outputs))), 1)
    link(path, (), plan, network, Command(("gcc",)), gpu=gpu)


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = sizes
    return x, y, z
