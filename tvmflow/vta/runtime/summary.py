"""Write the files of a program for people and board tools, and the table of the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.instructions import disassemble
from tvmflow.vta.isa.program import Launch, Program
from tvmflow.vta.machine.counters import Counters, count, estimate
from tvmflow.vta.runtime.device import code_digest, code_of, pack_code


@dataclass(frozen=True)
class Part:
    """One region's program. digest: of the bytes that the library for TVM carries, in hex."""

    name: str
    program: Program
    digest: str


def summarize(config: VtaConfig, mode: str, parts: Sequence[Part], notes: dict[str, Any]) -> dict[str, Any]:
    """Return counters, cycles, one row per region and one per launch. cycles are estimates (`counters.estimate`), ms at
    the board's clock.
    """
    layers = [_layer(config, part.name, launch) for part in parts for launch in part.program.launches]
    regions = [
        {
            "name": part.name,
            "digest": part.digest,
            "code_digest": code_digest(pack_code(part.program)[0]).hex(),
            **_sums(layers, part.name),
        }
        for part in parts
    ]
    total = sum((Counters(**region["counters"]) for region in regions), Counters())
    cycles = sum(region["cycles"] for region in regions)
    return {
        "config": config.to_json(),
        "name": config.name,
        "mode": mode,
        "counters": total.to_json(),
        "five_nbytes": total.five_bytes,
        "cycles": cycles,
        "estimated_ms": cycles / config.board.clock_mhz / 1e3,
        "simulated": config.board.is_simulator,
        "gemm_utilization": total.gemm_counter / cycles if cycles else 0.0,
        "operations": sum(layer["operations"] for layer in layers),
        "launches": len(layers),
        "dram_bytes": sum(part.program.dram_bytes for part in parts),
        **limits(config),
        "layers": layers,
        "regions": regions,
        "offloaded": notes.get("layers", []),
        "cpu_reasons": notes.get("reasons", {}),
    }


def _layer(config: VtaConfig, region: str, launch: Launch) -> dict[str, Any]:
    counted, timed = count(config, launch.instructions), estimate(config, launch)
    work = 2 * config.batch * config.block**2 * counted.gemm_counter
    return {
        "name": launch.name.removesuffix("_q"),
        "region": region,
        **counted.to_json(),
        "cycles": timed.to_json(),
        "operations": work,
        "gops": work * config.board.clock_mhz * 1e-3 / timed.total,
        "operations_per_byte": work / counted.dram_nbytes,
    }


def _sums(layers: Sequence[dict[str, Any]], region: str) -> dict[str, Any]:
    own = [layer for layer in layers if layer["region"] == region]
    counters = {field.name: sum(layer[field.name] for layer in own) for field in fields(Counters)}
    return {"counters": counters, "cycles": sum(layer["cycles"]["total"] for layer in own), "launches": len(own)}


def limits(config: VtaConfig) -> dict[str, float]:
    """Return the roofline of a design: operations and bytes per second, in 1e9."""
    clock_ghz = config.board.clock_mhz * 1e-3
    return {
        "peak_gops": 2 * config.batch * config.block**2 * clock_ghz,
        "peak_gbytes": config.board.bus_bytes * clock_ghz,
    }


def write_files(parts: Sequence[Part], summary: dict[str, Any], folder: Path) -> None:
    """Write the static artifact: manifest.json, and a folder for each region.

    There: manifest.json, instructions.bin, constants.bin (weights, biases, micro-ops), listing.txt.
    """
    folder.mkdir(parents=True)
    for part, region in zip(parts, summary["regions"], strict=True):
        _write_program(part.program, region, folder / part.name)
    manifest = {name: summary[name] for name in ("config", "counters", "cycles", "regions")}
    (folder / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, indent=1), encoding="utf-8")


def _write_program(program: Program, region: dict[str, Any], folder: Path) -> None:
    folder.mkdir()
    launches, offset = [], 0
    with (
        (folder / "instructions.bin").open("wb") as words,
        (folder / "listing.txt").open("w", encoding="utf-8") as text,
    ):
        for launch in program.launches:
            words.write(code_of(program.config, launch).tobytes())
            launches.append({"name": launch.name, "first": offset, "count": len(launch.instructions)})
            offset += len(launch.instructions)
            text.write(f"{launch.name}\n" + "".join(f"  {disassemble(i)}\n" for i in launch.instructions))
    (folder / "constants.bin").write_bytes(program.constants.tobytes())
    manifest = {
        "config": program.config.to_json(),
        "launches": launches,
        "dram_bytes": program.dram_bytes,
        "constants": {"address": program.constants_at, "bytes": int(program.constants.size)},
        "tensors": [
            {"name": t.name, "address": t.address, "shape": list(t.shape), "dtype": "int8"} for t in program.values
        ],
        "inputs": _names(program.inputs),
        "outputs": _names(program.outputs),
        "counters": region["counters"],
        "cycles": region["cycles"],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, indent=1), encoding="utf-8")


def _names(tensors: Sequence[Any]) -> list[str]:
    return [tensor.name for tensor in tensors]
