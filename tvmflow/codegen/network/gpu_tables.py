"""Generate the C tables of a network on a GPU, and include its programs by assembly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tvmflow.codegen.network.plan import Plan
from tvmflow.gpu_codegen.executable import Api, GpuCode, GpuExecutable
from tvmflow.support.errors import StageError

SOURCES = ("program_cache.c",)  # of runtime/gpu, in addition to those of the API
CLML, NO_CLML = "clml.c", "no_clml.c"  # of runtime/gpu: where layers are CLML's, and where none are
API_SOURCES: dict[Api, tuple[str, ...]] = {
    "opencl": ("opencl.c", "network_opencl.c", NO_CLML),
    "vulkan": ("vulkan.c", "network_vulkan.c", "network_vulkan_memory.c", "network_vulkan_programs.c"),
}

_ASSEMBLY = """\
    .section .rodata.tvmflow_gpu,"a"
    .balign 16
    .globl plan_gpu_code{at}
    .hidden plan_gpu_code{at}
plan_gpu_code{at}:
    .incbin "{file}"
    .byte 0
"""


def sources_of(api: Api, has_layers: bool = False) -> Iterable[str]:
    """Return the files of runtime/gpu that a network needs, but for CLML, which is compiled with headers of its own."""
    return (*SOURCES, *(source for source in API_SOURCES[api] if source != NO_CLML or not has_layers))


def write_codes(folder: Path, gpu: GpuCode) -> str:
    """Write all programs to files of a folder; return the assembly that includes them."""
    parts = []
    for at, code in enumerate(gpu.codes):
        (folder / f"gpu{at}.bin").write_bytes(code)
        parts.append(_ASSEMBLY.format(at=at, file=f"gpu{at}.bin"))
    return "".join(parts)


def gpu_tables(plan: Plan, gpu: GpuExecutable, code: GpuCode, c_string: Callable[[str], str]) -> Iterable[str]:
    """Yield the lines of C that describe the GPU's launches. Raises StageError for a step on the CPU."""
    yield '#include "network_gpu.h"'
    for at in range(len(code.codes)):
        yield f"extern const unsigned char plan_gpu_code{at}[];"
    yield "static const plan_gpu_kernel gpu_kernels[] = {"
    for step in plan.steps:
        if step.layer:
            yield "  {0},"
            continue
        if step.launch is None:
            raise StageError(f"{step.kernel} runs on the CPU", "a network whose kernels all run on the GPU")
        at, name = code.places[step.launch.name]
        groups, size = (", ".join(map(str, three)) for three in (step.launch.groups, step.launch.group_size))
        yield f"  {{{c_string(name)}, plan_gpu_code{at}, {len(code.codes[at])}, {{{groups}}}, {{{size}}}}},"
    if not plan.steps:
        yield "  {0}"
    yield "};"
    if plan.textures:
        yield "static const plan_texture gpu_textures[] = {"
        for value in plan.values:
            texture = plan.textures.get(value.memory)
            yield f"  {{{texture.width}, {texture.height}}}," if texture else "  {0, 0},"
        yield "};"
    has_layers = any(step.layer for step in plan.steps)
    if has_layers:
        yield "static const plan_layer gpu_layers[] = {"
        for step in plan.steps:
            yield f"  {step.layer.to_c() if step.layer else '{0}'},"
        yield "};"
        yield f"static const uint8_t gpu_inner[] = {{{', '.join(map(str, map(int, inner_values(plan))))}}};"
    textures = "gpu_textures" if plan.textures else "(void *)0"
    layers = "gpu_layers, gpu_inner" if has_layers else "(void *)0, (void *)0"
    yield f"static const plan_gpu gpu = {{&gpu_{gpu.api}, gpu_kernels, {textures}, {layers}}};"


def inner_values(plan: Plan) -> list[bool]:
    """Return for each value whether only layers of CLML touch its memory, which then has their layout."""
    outer = {value.memory for value in plan.values if plan.memories[value.memory].place in ("input", "output")}
    outer |= {plan.values[at].memory for pair in plan.copies for at in pair}
    outer |= {plan.values[at].memory for step in plan.steps if not step.layer for at in step.arguments}
    sizes: dict[int, set[tuple[int, ...]]] = {}
    for value in plan.values:  # two views of one memory have one layout if their four axes are the same
        sizes.setdefault(value.memory, set()).add((*value.shape, 1, 1, 1, 1)[:4])
    return [value.memory not in outer and len(sizes[value.memory]) == 1 for value in plan.values]
