"""Compile for the VTA accelerator with a CPU: `vta_int8` only; the CPU computes all other operators."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from tvmflow.backends.backend import Call, Progress
from tvmflow.backends.cpu import CpuBackend
from tvmflow.backends.device_program import DeviceProgram, Span
from tvmflow.config.options import Options
from tvmflow.config.value_types import PathText
from tvmflow.support.errors import ProgramError, StageError, UsageError
from tvmflow.vta.isa.config import COUNTERS_FUNCTION, RUN_FUNCTION, VtaConfig

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule


class VtaOptions(Options):
    """Options of a VTA target.

    config: fields of vta_config.json in lower case; VTA's defaults for others. mode: `optimized`, or `reference` for
    the schedules of the original stack. start: the first layer on the accelerator, or an operator (`nn.max_pool2d`)
    behind whose first call it begins; stop: the first layer behind it, or an operator (`nn.global_avg_pool2d`) before
    which it ends; auto for all supported runs of layers. bitstream: the file with which the FPGA of a board is
    programmed before a session; without one, what is loaded there stays.
    """

    config: dict[str, int | str] = Field(default_factory=dict)
    mode: Literal["optimized", "reference"] = "optimized"
    start: str = "auto"
    stop: str = "auto"
    bitstream: PathText | None = None

    @model_validator(mode="after")
    def _check_config(self) -> VtaOptions:
        try:
            VtaConfig.from_json(self.config)
        except UsageError as error:
            raise ValueError(f"{error.found}; expected: {error.expected}") from None
        return self


class VtaBackend(CpuBackend):
    """The backend of VTA: one program for each region of the network, called through `tvmflow.vta.run`."""

    options = VtaOptions
    precisions = ("vta_int8",)
    is_cpu = False

    @cached_property
    def design(self) -> VtaConfig:
        """Return the accelerator's design."""
        return VtaConfig.from_json(self.target.options["config"])

    @property
    def accelerator(self) -> str:
        return self.design.name

    @property
    def device_kind(self) -> str:
        return f"vta-{self.design.name}"

    def pack(self, mod: IRModule, block: int | None) -> tuple[Any, dict[str, Any]]:
        """Partition the regions of the accelerator, in its layout NCHW{batch}n{block}c, and pack the
        rest for the CPU.
        """
        from tvmflow.vta.compiler.offload import offload_vta

        offloaded, parts = offload_vta(mod, self.design, self.target.options["start"], self.target.options["stop"])
        self.provide()
        mod, facts = super().pack(offloaded, block)
        return mod, {**facts, "vta_layers": [list(layers) for layers in parts.layers], "cpu_reasons": parts.reasons}

    def search_part(self, packed: IRModule, progress: Progress) -> list[dict[str, Any]]:
        """Return the best tile of every convolution on the accelerator; `reference` schedules have fixed tiles."""
        from tvmflow.vta.compiler.compiler import conv_workloads
        from tvmflow.vta.compiler.offload import regions_of
        from tvmflow.vta.compiler.tile_search import search

        if self.target.options["mode"] == "reference":
            return []
        regions = regions_of(packed)
        workloads = {key: job for region in regions for key, job in conv_workloads(self.design, region).items()}
        tiles = []
        for done, (name, job) in enumerate(workloads.values()):
            progress(f"searching tiles: {name}", done, len(workloads))
            tiles.append({**search(self.design, job).to_json(), "layer": name})
        return tiles

    def compile_part(
        self, packed: IRModule, schedules: list[dict[str, Any]], folder: Path, progress: Progress
    ) -> tuple[Any, dict[str, Any] | None]:
        from tvmflow.vta.compiler.compiler import compile_region, get_mode
        from tvmflow.vta.compiler.offload import blobs_of, replace_blobs
        from tvmflow.vta.compiler.tile_search import TileRecord
        from tvmflow.vta.isa.region import from_blob, notes_from, region_from
        from tvmflow.vta.machine.lint import check_program
        from tvmflow.vta.runtime.runtime import program_to_blob
        from tvmflow.vta.runtime.summary import Part, summarize, write_files

        progress("compiling the accelerator's programs", 0, 0)
        mode = self.target.options["mode"]
        records = {
            tile["workload"]: TileRecord.from_json({k: v for k, v in tile.items() if k != "layer"})
            for tile in schedules
        }
        parts: list[Part] = []
        blobs: dict[bytes, bytes] = {}
        notes: dict[str, Any] = {"layers": [], "reasons": {}}
        for blob in blobs_of(packed):
            text, arrays = from_blob(blob)
            own = notes_from(text)
            notes = {"layers": notes["layers"] + own["layers"], "reasons": notes["reasons"] | own["reasons"]}
            program = compile_region(self.design, region_from(text, arrays), get_mode(mode), records)
            check_program(program)
            blobs[blob] = program_to_blob(program)
            parts.append(Part(f"vta{len(parts)}", program, blobs[blob][:32].hex()))
        summary = summarize(self.design, mode, parts, notes)
        write_files(parts, summary, folder / "vta")
        self.provide()
        costs = {name: summary[name] for name in ("cycles", "estimated_ms", "gemm_utilization", "five_nbytes")}
        metrics = {f"vta.{name}": value for name, value in {**summary["counters"], **costs}.items()}
        return replace_blobs(packed, blobs), {**summary, "metrics": metrics}

    def device_program(self, function: str, blob: bytes) -> DeviceProgram:
        """Return the program in a blob that `build` embedded in a network."""
        from tvmflow.vta.isa.region import from_blob
        from tvmflow.vta.runtime.device import pack_code
        from tvmflow.vta.runtime.runtime import program_from

        if function != RUN_FUNCTION:
            return super().device_program(function, blob)
        try:
            program = program_from(*from_blob(blob))
        except ProgramError as error:
            raise StageError(f"a call of the accelerator without a program: {error.found}", error.expected) from None
        code, places = pack_code(program)
        launches = zip(places, (len(launch.instructions) for launch in program.launches), strict=True)
        inputs, outputs = (
            tuple(Span(one.address, one.nbytes) for one in group) for group in (program.inputs, program.outputs)
        )
        return DeviceProgram(
            program.config.name,
            program.dram_bytes,
            program.constants_at,
            program.constants,
            code,
            tuple(launches),
            inputs,
            outputs,
        )

    @classmethod
    def simulated_driver(cls, design: str) -> Any:
        from tvmflow.vta.runtime.device import SimulatorDriver
        from tvmflow.vta.runtime.driver_bridge import DriverSeam, find_design

        config = find_design(design)
        return DriverSeam(config, SimulatorDriver(), {}).driver if config else None

    def provide(self) -> None:
        """Register a simulated accelerator in this process."""
        from tvmflow.vta.runtime.runtime import register

        register(self.design)

    def configure(self, call: Callable[..., Any], upload: Callable[[Path], str]) -> dict[str, Any]:
        """Configure the server for the design, and program the FPGA if the target names a bitstream."""
        from tvmflow.vta.runtime.configure import configure_device

        return configure_device(self.design, self.target.options.get("bitstream"), call, upload)

    def verify(self, part: dict[str, Any] | None, call: Call) -> dict[str, Any] | None:
        """Compare the executed programs and the device's counters with the plan of `build`."""
        if part is None:
            return None
        from tvmflow.vta.runtime.audit import check_ran

        return {**part, **check_ran(part["regions"], json.loads(str(call(COUNTERS_FUNCTION))))}

    def cost(self, call: Call) -> int | None:
        """Return estimated cycles of a simulated design, whose times are meaningless; None for hardware."""
        from tvmflow.vta.runtime.audit import sum_cycles

        return sum_cycles(json.loads(str(call(COUNTERS_FUNCTION)))) if self.design.board.is_simulator else None
