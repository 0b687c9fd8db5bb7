"""List the kinds of GPUs and the features by which candidates are ordered; they predict no times."""

from __future__ import annotations

import re
from dataclasses import dataclass

GPU_KINDS = ("opencl", "vulkan")  # kinds of targets


@dataclass(frozen=True)
class GpuFeatures:
    """The features of a GPU that schedules depend on.

    threads: number that fills the GPU; warp: threads that run together; group: threads of a workgroup that are tried
    first; registers: float32 values of a thread. texels: Vulkan reads tensors of at most so many elements as texel
    buffers; llvmpipe loads storage buffers lane by lane. float16, opencl_float16: otherwise Vulkan shaders, or OpenCL
    kernels, compute float16 in float32 and round when they store. textures: OpenCL stores tensors as images if
    possible. winograd: unmeasured 3x3 convolutions of float32 use Winograd's algorithm; the tuner tries it on all.
    integer_dot: APIs that multiply int8 by dot products of words; OpenCL kernels multiply separately if the driver
    lacks the function, Vulkan's do not run there. subgroups: threads that share reductions by Vulkan's subgroups for
    few outputs of long sums: the size of a subgroup; other sizes cost time only. 0: none. rows: a row of the window is
    loaded once; otherwise the tuner tries that later. Sources: vendors' optimization guides and TFLite's delegate
    (workgroups by vendor); software drivers were measured.
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


def _adreno(warp: int, threads: int) -> GpuFeatures:
    """Return the features of a generation of Adreno. warp: half a wave, which leaves a thread more registers."""
    return GpuFeatures(
        threads=threads, warp=warp, group=64, registers=64, textures=True, integer_dot=("opencl",) if warp > 32 else ()
    )


GPUS: dict[str, GpuFeatures] = {
    "generic": GpuFeatures(threads=4096, warp=16, group=64, registers=64),
    "mali": GpuFeatures(threads=6144, warp=16, group=16, registers=64, integer_dot=("opencl",)),
    "adreno": _adreno(warp=64, threads=6144),  # of any generation
    "adreno-5xx": _adreno(warp=32, threads=2048),  # waves of 64 or 32; OpenCL 2.0, no integer dot products
    "adreno-6xx": _adreno(warp=64, threads=3072),  # waves of 128 or 64, 16 of them on each of up to 3 units
    "adreno-7xx": _adreno(warp=64, threads=6144),  # the same on up to 6 units
    "adreno-8xx": _adreno(warp=64, threads=12288),  # waves of 64
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


def gpu_kind_of(name: str, version: str = "") -> str | None:
    """Return the kind of GPU that a driver describes, None for one without a row of its own.

    name: of the device; version: its OpenCL version, where Qualcomm's drivers have the number: "OpenCL 3.0 Adreno(TM)
    740".
    """
    text = f"{name} {version}".lower()
    if "adreno" in text:
        number = re.search(r"adreno\D{0,6}([5-8])\d\d\b", text)
        return f"adreno-{number[1]}xx" if number else "adreno"
    return next((kind for kind in ("mali", "nvidia") if kind in text), None)
