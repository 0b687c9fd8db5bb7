"""Compile for GPUs by OpenCL and Vulkan: the whole network runs on the GPU, submitted by the CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from tvmflow.backends.cpu import CpuBackend
from tvmflow.config.options import Options
from tvmflow.config.value_types import PathText
from tvmflow.support.errors import StageError
from tvmflow.targets.cpu_features import INTEGER_DOT
from tvmflow.targets.gpu_features import GPUS, GpuFeatures
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.clml_sdk import find_headers, headers_digest

if TYPE_CHECKING:
    from tvmflow.config.params import TargetEntry
    from tvmflow.gpu_codegen.executable import Api, GpuExecutable, Widths
    from tvmflow.ir.tvm_compat import IRModule, PrimFunc
    from tvmflow.schedules.registry import Knobs, Template

LONGEST_S = 20.0  # also where the C sources are compiled without this setting
_CHANNELS = 4  # channels of a block: a vector of four


def _check_kind(kind: str) -> str:
    if kind not in GPUS:
        raise ValueError(f"no kind of GPU {kind!a}; legal: {', '.join(GPUS)}")
    return kind


class GpuOptions(Options):
    """Options of a GPU target.

    software: run on this machine by a software driver, built on demand. kind: of the GPU, a row of GPUS. integer_dot:
    multiply int8 by dot products of four; by default as the kind prefers. timeout_s: longest run, the first included,
    in which drivers may still compile; a GPU that takes longer is given up.
    """

    software: bool = False
    kind: Annotated[str, AfterValidator(_check_kind)] = "generic"
    integer_dot: bool | None = None
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = LONGEST_S


class OpenClOptions(GpuOptions):
    """Options of an OpenCL target.

    textures: store tensors in images if all their kernels access whole vectors; by default as the kind prefers.
    clml_sdk: the folder of Qualcomm's OpenCL ML SDK, by whose library for Adreno, CLML, layers are then run.
    """

    textures: bool | None = None
    clml_sdk: PathText | None = None


class GpuBackend(CpuBackend):
    """The backend of a GPU with the target's CPU."""

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

    def winograd_weights(self, dtype: str) -> float:
        return math.inf if dtype == "float32" and self.gpu_features().winograd else 0

    @property
    def integer_dot(self) -> bool:
        wanted = self.target.options.get("integer_dot")
        return self.api in self.gpu_features().integer_dot if wanted is None else bool(wanted)

    def defines(self, name: str, per_second: float) -> tuple[str, ...]:
        """Return the option of the C compiler that sets another time limit of a run, in units of that constant."""
        longest = float(self.target.options.get("timeout_s", LONGEST_S))
        return () if longest == LONGEST_S else (f"-D{name}={round(longest * per_second)}",)

    def gpu_features(self) -> GpuFeatures:
        """Return the features of the GPU that schedules depend on."""
        return GPUS[self.software_driver or self.target.options["kind"]]

    def template_for(self, function: PrimFunc) -> tuple[Template, list[Knobs]] | None:
        from tvmflow.ir.tir.workloads import offloaded
        from tvmflow.schedules.registry import template_for

        return None if offloaded(function) else template_for(function, self.gpu_features(), self.templates())

    @property
    def kernel_kind(self) -> str:
        return self.device_kind

    def tvm_target(self) -> Any:
        import tvm

        keys = ["opencl", "gpu", *([INTEGER_DOT] if self.integer_dot else [])]
        return tvm.target.Target(
            {"kind": "opencl", "max_num_threads": 256, "keys": keys}, host=self.target.tvm_target()
        )

    def pack(self, mod: IRModule, block: int | None) -> tuple[Any, dict[str, Any]]:
        from tvmflow.ir.relax.graph import read_graph
        from tvmflow.ir.relax.recurrent import RECURRENT

        layers = [step.name for step in read_graph(mod).steps if step.op == RECURRENT]
        if layers:
            raise StageError(
                f"{len(layers)} recurrent layers (LSTM, GRU or RNN) in the network, which have no kernels for GPUs",
                "a network without them, or a target of kind llvm",
            )
        return super().pack(mod, block or _CHANNELS)

    def lowering_passes(self, winograd: Mapping[str, int]) -> list[tuple[str, Any]]:
        from tvmflow.passes.pipeline import lowering_passes

        return lowering_passes(self.cpu_features(), winograd, has_gpu=True)

    def templates(self) -> tuple[Template, ...]:
        from tvmflow.schedules.gpu.tiled import GPU_PLAIN, GPU_WINDOW
        from tvmflow.schedules.gpu.winograd import GPU_WINOGRAD

        return (GPU_WINOGRAD, GPU_WINDOW, GPU_PLAIN)

    @property
    def plain(self) -> CpuBackend:
        return CpuBackend(self.target)

    def compile_kernels(self, mod: IRModule) -> GpuExecutable:
        from tvmflow.gpu_codegen.launches import lower_for_device
        from tvmflow.passes.kernel.keep_nan_of_reductions import keep_nan_of_reductions

        target = self.tvm_target()
        return self.executable(lower_for_device(keep_nan_of_reductions(mod, target), target))

    def executable(self, program: Any) -> GpuExecutable:
        raise NotImplementedError

    def export(self, executable: Any, path: Path) -> None:
        raise StageError("a network of a GPU has no form for TVM's virtual machine", "its library without TVM")


class OpenClBackend(GpuBackend):
    """The backend of OpenCL, by a code generator of our own."""

    options = OpenClOptions

    api = "opencl"
    software_name = "pocl"

    @classmethod
    def resolve(cls, entry: TargetEntry) -> ResolvedTarget:
        """Resolve as GpuBackend does; the headers of an SDK are part of what a library is made of."""
        target = super().resolve(entry)
        if folder := target.options.get("clml_sdk"):
            target = replace(target, options={**target.options, "clml_headers": headers_digest(folder)})
        return target

    def check_tools(self) -> None:
        if folder := self.target.options.get("clml_sdk"):
            find_headers(folder)

    @property
    def clml_sdk(self) -> str | None:
        folder = self.target.options.get("clml_sdk")
        return str(folder) if folder else None

    def pack(self, mod: IRModule, block: int | None) -> tuple[Any, dict[str, Any]]:
        """Pack as GpuBackend does; count the operators that CLML computes."""
        packed, facts = super().pack(mod, block)
        if not self.clml_sdk:
            return packed, facts
        from tvmflow.ir.relax.graph import read_graph

        return packed, {
            **facts,
            "clml_operators": len(self.plain_steps(mod)),
            "operators": len(read_graph(mod).steps),
        }

    def plain_steps(self, mod: IRModule) -> frozenset[str]:
        if not self.clml_sdk:
            return frozenset()
        from tvmflow.gpu_codegen.clml import find_clml_layers
        from tvmflow.ir.relax.graph import read_graph

        return frozenset(step.name for layer in find_clml_layers(read_graph(mod)) for step in layer.steps)

    def lowering_passes(self, winograd: Mapping[str, int]) -> list[tuple[str, Any]]:
        passes = super().lowering_passes(winograd)
        if not self.clml_sdk:
            return passes
        from tvmflow.passes.fuse.offload_clml import MarkOffloaded, OffloadClml

        return [("offload_clml", OffloadClml()), *passes, ("mark_offloaded", MarkOffloaded())]

    def gpu_features(self) -> GpuFeatures:
        return replace(super().gpu_features(), subgroups=0)

    @property
    def textures(self) -> bool:
        wanted = self.target.options.get("textures")
        return self.gpu_features().textures if wanted is None else bool(wanted)

    @property
    def device_kind(self) -> str:
        other = self.textures != self.gpu_features().textures
        return super().device_kind + (("-textures" if self.textures else "-buffers") if other else "")

    def executable(self, program: Any) -> GpuExecutable:
        from tvmflow.gpu_codegen.executable import GpuCode, GpuExecutable
        from tvmflow.gpu_codegen.kernel_source import parameters_in_vectors
        from tvmflow.gpu_codegen.opencl import opencl_of, short_name

        launches = program.launches
        computes_float16 = self.gpu_features().opencl_float16
        places = {name: (0, short_name(name)) for name in launches}

        def code(widths: Widths) -> GpuCode:
            texts = [
                opencl_of(launch.function, short_name(name), widths.get(name), computes_float16=computes_float16)
                for name, launch in launches.items()
            ]
            return GpuCode(("\n".join(texts).encode(),), places)

        may_be = {name: parameters_in_vectors(one.function) for name, one in launches.items()} if self.textures else {}
        includes = find_headers(self.clml_sdk) if self.clml_sdk else ()
        return GpuExecutable("opencl", program, code, may_be, self.defines("HANGS_MS", 1e3), includes)


class VulkanBackend(GpuBackend):
    """The backend of Vulkan: our GLSL, compiled to SPIR-V."""

    api = "vulkan"
    software_name = "lavapipe"

    def executable(self, program: Any) -> GpuExecutable:
        from tvmflow.gpu_codegen.executable import GpuCode, GpuExecutable
        from tvmflow.gpu_codegen.glsl import glsl_of
        from tvmflow.gpu_codegen.spirv import glslang, spirv_of

        launches = program.launches
        compiler, gpu = glslang(), self.gpu_features()

        def compile_one(launch: Any) -> bytes:
            glsl = glsl_of(launch.function, gpu.texels, computes_float16=gpu.float16)
            return spirv_of(glsl, compiler)

        with ThreadPoolExecutor() as pool:
            codes = tuple(pool.map(compile_one, launches.values()))
        code = GpuCode(codes, {name: (at, "main") for at, name in enumerate(launches)})
        return GpuExecutable("vulkan", program, lambda _: code, defines=self.defines("GPU_TIMEOUT_NS", 1e9))
