"""What kinds of GPUs schedules know, a row each: few numbers by which candidates are ordered; none predicts a time."""

from __future__ import annotations

from dataclasses import dataclass

GPU_KINDS = ("opencl", "vulkan")  # of targets


@dataclass(frozen=True)
class GpuFeatures:
    """threads: as many fill it; warp: threads that run together; group: threads of a group that are tried first;
    registers: float32 values of a thread.

    texels: Vulkan reads tensors of at most so many elements as buffers of texels; llvmpipe loads storage buffers lane
    by lane. float16, opencl_float16: else Vulkan's shaders, or OpenCL's kernels, compute float16 in float32, and round
    where they store. textures: OpenCL reads and writes tensors as images where it can. winograd: 3x3 convolutions of
    float32 are computed by Winograd's algorithm where nothing is measured; the tuner tries it on all. integer_dot: APIs
    by which int8 is multiplied in words, four products an instruction; kernels of OpenCL multiply one by one where the
    driver has no such function, Vulkan's do not run there. subgroups: threads that share sums by Vulkan's subgroups,
    where outputs are few and sums long: as many as a subgroup has; other sizes cost time, not outputs. 0: none do.
    rows: what a row of a window reads is loaded once; else the tuner tries that later. Sources: vendors' optimization
    guides and TFLite's delegate (work-groups by vendor); software drivers, measured.
    """

    threads: int
    warp: int
    group: int
    registers: int
    texels: int = 0
    float16: bool = True
    opencl_float16: bool = True
    textures: bool = False
    rows: bool = True
    winograd: bool = False
    integer_dot: tuple[str, ...] = ()
    subgroups: int = 0


GPUS: dict[str, GpuFeatures] = {
    "generic": GpuFeatures(threads=4096, warp=16, group=64, registers=64),
    "mali": GpuFeatures(threads=6144, warp=16, group=16, registers=64, integer_dot=("opencl",)),
    "adreno": GpuFeatures(threads=6144, warp=64, group=64, registers=64, textures=True, integer_dot=("opencl",)),
    "nvidia": GpuFeatures(
        threads=131072,
        warp=32,
        group=64,
        registers=128,
        opencl_float16=False,
        rows=False,
        integer_dot=("opencl", "vulkan"),
        subgroups=32,
    ),
    "pocl": GpuFeatures(threads=64, warp=1, group=16, registers=128, opencl_float16=False, rows=False, winograd=True),
    "lavapipe": GpuFeatures(
        threads=512,
        warp=8,
        group=32,
        registers=128,
        texels=1 << 27,
        float16=False,
        winograd=True,
        integer_dot=("vulkan",),
        subgroups=8,
    ),
}
