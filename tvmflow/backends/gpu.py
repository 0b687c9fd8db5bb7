"""GPUs through OpenCL and Vulkan: the whole network runs there; the CPU prepares images and submits."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator

from tvmflow.backends.cpu import CpuBackend
from tvmflow.errors import StageError
from tvmflow.options import Options
from tvmflow.targets.gpu_features import GPUS, GpuFeatures

if TYPE_CHECKING:
    from tvmflow.gpu.executable import Api, GpuExecutable
    from tvmflow.templates import Knobs, Template

_CHANNELS = 4  # side by side, a vector of every GPU


def _known(kind: str) -> str:
    if kind not in GPUS:
        raise ValueError(f"no kind of GPU {kind!a}; legal: {', '.join(GPUS)}")
    return kind


class GpuOptions(Options):
    """software: run by a driver in software, made on demand, on this machine. kind: of the GPU, a row of GPUS."""

    software: bool = False
    kind: Annotated[str, AfterValidator(_known)] = "generic"


class GpuBackend(CpuBackend):
    """A GPU beside the target's CPU."""

    options = GpuOptions
    api: ClassVar[Api]
    software_name: ClassVar[str]
    is_cpu = False
    has_own_clock = True
    has_machine = False
    precisions = ("float32", "float16", "float16_acc32", "int8")

    @property
    def software_driver(self) -> str | None:
        return self.software_name if self.target.options["software"] else None

    @property
    def device_kind(self) -> str:
        options = self.target.options
        beside = f"-{self.target.cpu_kind}" if options["software"] else ""
        return f"{self.api}-{self.software_driver or options['kind']}{beside}"

    def gpu_features(self) -> GpuFeatures:
        """Return what schedules must know of the GPU."""
        return GPUS[self.software_driver or self.target.options["kind"]]

    def template_for(self, function: Any) -> tuple[Template, list[Knobs]] | None:
        from tvmflow.templates import template_for

        return template_for(function, self.gpu_features(), self.templates())

    @property
    def kernel_kind(self) -> str:
        return self.device_kind

    def tvm_target(self) -> Any:
        import tvm

        host = self.target.tvm_target()
        return tvm.target.Target({"kind": "opencl", "max_num_threads": 256}, host=host)

    def pack(self, mod: Any, block: int | None) -> tuple[Any, dict[str, Any]]:
        return super().pack(mod, block or _CHANNELS)

    def phases(self, winograd: Mapping[str, int]) -> list[tuple[str, Any]]:
        return [(name, step) for name, step in super().phases({}) if name != "concatenate_in_place"]

    def templates(self) -> tuple[Template, ...]:
        from tvmflow.gpu.templates import GPU_TEMPLATES

        return GPU_TEMPLATES

    @property
    def plain(self) -> CpuBackend:
        return CpuBackend(self.target)

    def compile_kernels(self, mod: Any) -> GpuExecutable:
        from tvmflow.gpu.launches import lowered_for_device

        return self.executable(lowered_for_device(mod, self.tvm_target()))

    def executable(self, program: Any) -> GpuExecutable:
        raise NotImplementedError

    def export(self, executable: Any, path: Path) -> None:
        raise StageError("a network of a GPU has no form for TVM's virtual machine", "its library without TVM")


class OpenClBackend(GpuBackend):
    """OpenCL C by TVM."""

    api = "opencl"
    software_name = "pocl"

    def executable(self, program: Any) -> GpuExecutable:
        from tvmflow.gpu.executable import GpuExecutable
        from tvmflow.gpu.opencl import opencl_source, short_name

        names = {launch.name for kernel in program.kernels.values() for launch in kernel.launches}
        code = opencl_source(program).encode()
        return GpuExecutable("opencl", program, (code,), {name: (0, short_name(name)) for name in names})


class VulkanBackend(GpuBackend):
    """GLSL by us, compiled to SPIR-V."""

    api = "vulkan"
    software_name = "lavapipe"

    def executable(self, program: Any) -> GpuExecutable:
        from tvmflow.gpu.executable import GpuExecutable
        from tvmflow.gpu.glsl import glsl_of
        from tvmflow.gpu.spirv import glslang, spirv_of

        launches = {launch.name: launch for kernel in program.kernels.values() for launch in kernel.launches}
        compiler, gpu = glslang(), self.gpu_features()

        def compile_one(launch: Any) -> bytes:
            glsl = glsl_of(launch.function, gpu.texels, computes_float16=gpu.float16)
            return spirv_of(glsl, compiler)

        with ThreadPoolExecutor() as pool:
            codes = list(pool.map(compile_one, launches.values()))
        return GpuExecutable("vulkan", program, tuple(codes), {name: (at, "main") for at, name in enumerate(launches)})
