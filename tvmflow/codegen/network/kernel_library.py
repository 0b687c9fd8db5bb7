"""Link one scheduled kernel as a library without TVM: a network of one step, for devices without TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import link
from tvmflow.codegen.network.plan import Memory, Plan, Step, Value, launch_step
from tvmflow.codegen.network.textures import choose_textures
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.gpu_codegen.executable import ALIGNMENT, GpuExecutable
from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tvm_compat import PrimFunc, buffer_of
from tvmflow.targets.resolve import ResolvedTarget


def write_kernel(path: Path, executable: Any, function: PrimFunc, target: ResolvedTarget) -> None:
    """Link a kernel whose last parameter is its output. executable: the compiled function `main`, for the CPU or a GPU.

    Raises StageError if the compiler fails, ToolchainError if it is missing.
    """
    buffers = [buffer_of(function, parameter) for parameter in function.params]
    kinds = [(tuple(int(x) for x in b.shape), str(b.dtype)) for b in buffers if b is not None]
    last = len(kinds) - 1
    memories = [
        Memory("output" if at == last else "input", bytes_of(*kind), at % last if last else 0)
        for at, kind in enumerate(kinds)
    ]
    values = [Value(at, 0, *kind) for at, kind in enumerate(kinds)]
    inputs = tuple(TensorSpec(f"p{at}", *kind) for at, kind in enumerate(kinds[:-1]))
    network = Network("kernel", inputs, ("output",), target.threads)
    gpu = executable if isinstance(executable, GpuExecutable) else None
    steps = _launches(gpu, memories, values) if gpu else [Step("main", tuple(range(len(kinds))), 1)]
    textures = choose_textures([one.size for one in memories], values, steps, (), gpu.may_be_images) if gpu else {}
    plan = Plan(tuple(memories), tuple(values), tuple(steps), tuple(range(last)), (last,), (), (), textures=textures)
    link(path, () if gpu else [executable.mod], plan, network, target.compiler, gpu)


def _launches(gpu: GpuExecutable, memories: list[Memory], values: list[Value]) -> list[Step]:
    """Return the launches of a kernel; add its temporary memory."""
    kernel, first, end = gpu.program.kernels["main"], len(values), 0
    for shape, dtype in kernel.own:
        memories.append(Memory("arena", bytes_of(shape, dtype), offset=end))
        values.append(Value(len(memories) - 1, 0, shape, dtype))
        end += -(-bytes_of(shape, dtype) // ALIGNMENT) * ALIGNMENT
    return [
        launch_step(one, lambda place: place.index + (0 if place.kind == "parameter" else first))
        for one in kernel.launches
    ]
