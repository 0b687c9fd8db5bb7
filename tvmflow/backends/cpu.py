"""Compile for CPUs by LLVM: x86-64 and Arm."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.backends.backend import Backend
from tvmflow.config.options import read_options
from tvmflow.support.errors import ToolchainError, last_words
from tvmflow.targets.cpu_features import TILES_FOR, CpuFeatures, cpu_features_of
from tvmflow.targets.processors import architecture_of, check_processor
from tvmflow.targets.resolve import ResolvedTarget, host_target, processor_of
from tvmflow.toolchain.compilers import compiler_for

if TYPE_CHECKING:
    from tvmflow.config.params import TargetEntry
    from tvmflow.ir.tvm_compat import IRModule
    from tvmflow.schedules.registry import Template


class CpuBackend(Backend):
    """The backend of CPUs, and of the CPU's share of all other targets."""

    @classmethod
    def resolve(cls, entry: TargetEntry) -> ResolvedTarget:
        processor = processor_of(entry)
        check_processor(processor.mcpu, processor.mtriple, processor.mattr)
        return ResolvedTarget(
            kind=entry.kind,
            **vars(processor),
            threads=entry.threads,
            cc=entry.cc or compiler_for(processor.mtriple),
            options=read_options(cls.options, entry.options, entry.kind).model_dump(mode="json"),
        )

    def tvm_target(self) -> Any:
        return self.target.tvm_target()

    def tvm_device(self, remote: Any) -> Any:
        return remote.cpu(0)

    @property
    def device_kind(self) -> str:
        return self.target.cpu_kind

    @property
    def kernel_kind(self) -> str:
        return self.target.cpu_kind

    def pack(self, mod: IRModule, block: int | None) -> tuple[Any, dict[str, Any]]:
        """Pack (N, C, H, W) to (N, C/block, H, W, block), with the weights."""
        from tvmflow.passes.layout.pack_channels import PackChannels
        from tvmflow.passes.legalize.convolutions import count_packed_convolutions

        channel_block = block or self.cpu_features().channel_block
        is_x86 = architecture_of(self.target.mtriple) == "x86_64"  # arm64 has an interleaving store
        step: Any = PackChannels(
            channel_block,
            few_as_words=is_x86,
            lane_moves=self.target.kind == "llvm",
            tiles=TILES_FOR["int8"] in self.cpu_features().dots,
            plain=self.plain_steps(mod),
        )
        mod = step(mod)
        packed, convolutions = count_packed_convolutions(mod)
        return mod, {"packed_convolutions": packed, "convolutions": convolutions, "block": channel_block}

    def plain_steps(self, mod: IRModule) -> frozenset[str]:
        """Return the operators of a network that keep the plain layout, whatever they compute."""
        return frozenset()

    def lowering_passes(self, winograd: Mapping[str, int]) -> list[tuple[str, Any]]:
        from tvmflow.passes.pipeline import lowering_passes

        return lowering_passes(self.cpu_features(), winograd, has_gpu=False)

    def winograd_weights(self, dtype: str) -> float:
        cpu = self.cpu_features()
        if dtype == "bfloat16":
            return math.inf if "avx512bf16" in cpu.dots and TILES_FOR[dtype] not in cpu.dots else 0
        if dtype == "float16":
            return math.inf if "fp16" in cpu.dots else 0
        return math.inf if cpu.lanes >= 8 or "neon" in cpu.dots else 0

    def cpu_features(self) -> CpuFeatures:
        return cpu_features_of(self.target)

    def templates(self) -> tuple[Template, ...]:
        from tvmflow.schedules.registry import TEMPLATES

        return TEMPLATES

    def export(self, executable: Any, path: Path) -> None:
        """Link the executable into a shared library with the target's compiler."""
        compiler = self.target.compiler

        def link(output: str, objects: Any, options: Any = None, **_ignored: Any) -> None:
            # Without a build id, the same objects give the same bytes.
            given = [*(options or []), "-Wl,--build-id=none"]
            files = [objects] if isinstance(objects, str) else list(objects)
            process = subprocess.run(
                compiler.line("-shared", "-fPIC", "-o", output, *given, *files), capture_output=True, check=False
            )
            if process.returncode:
                message = last_words(process.stderr or process.stdout)
                raise ToolchainError(
                    f"{self.target.cc} does not link the library: {message}", "a linker for the target"
                )

        link.output_format = "so"  # type: ignore[attr-defined]
        executable.export_library(str(path), fcompile=link)


def host_backend() -> CpuBackend:
    """Return the backend of this machine's CPU with two threads, for checks between stages only."""
    return CpuBackend(host_target())
