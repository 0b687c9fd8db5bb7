"""build: compile the packed model with the best measured schedules into a library for the target.

In:  the packed model, best.json of tune, golden inputs and answers
Out: library.so, manifest.json (what it is, for whom, made of what), ir/ (the module after each phase); of a target with a VTA
     also vta/ (its program as files: instructions, constants, a listing)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.golden import GOLDEN, check_form, read_description
from tasks.run_alone import main
from tvmflow.artifacts import describe_file
from tvmflow.building.ir_files import IR_NAME, WEIGHTS_NAME, load_module
from tvmflow.params import Cell
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import VtaTarget, from_json, resolve
from tvmflow.toolchain import versions
from tvmflow.workspace import Workspace

if TYPE_CHECKING:
    from tvmflow.passes.schedule_kernels import Choice


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    return {
        "target": resolve(workspace.params.targets[cell.target]).to_json(),
        "max_relative_error": workspace.params.build.max_relative_error[cell.precision],
        "precision": cell.precision,
    }


def _toolchain(settings: dict[str, Any]) -> tuple[str, ...]:
    return ("tvm", "ffi", "llvm", f"cc:{settings['target']['cc']}")


def build(context: StageContext) -> dict[str, Any]:
    """Compile, export, and check the library itself where this machine can run it."""
    from tvmflow.building.library import LoadedLibrary, build_scheduled, export
    from tvmflow.building.lower import phases as lowering

    settings, target = context.settings, from_json(context.settings["target"])
    best = json.loads((context.inputs["tune"] / "best.json").read_text(encoding="utf-8"))
    records = {record["workload"]: record for record in best["records"] if best["device_kind"] == target.cpu_kind}
    folder = context.out / "ir"
    folder.mkdir()
    phases: list[str] = []
    total = len(lowering({})) + 1  # and scheduling

    def dump(name: str, module: Any) -> None:
        (folder / f"{len(phases):02d}_{name}.txt").write_text(module.script(show_meta=False), encoding="utf-8")
        phases.append(name)
        context.progress(f"building: {name}", len(phases), total)

    packed, winograd = load_module(context.inputs["graph_pack"]), best["winograd"] if records else {}
    vta = None
    if target.vta is not None:
        packed, vta = _with_program(context, packed, target.vta, best["tiles"])
    executable, choices = build_scheduled(packed, target, records, dump, winograd)
    library = context.out / "library.so"
    export(executable, library, target)
    covered = _coverage(choices)
    facts: dict[str, Any] = {"library_bytes": library.stat().st_size, **covered}
    if target.runs_here:
        golden = check_form(context, "build", LoadedLibrary(library, target.threads), settings["max_relative_error"])
        facts["golden"] = golden.to_json()
    _write_manifest(context, library, choices, covered["coverage"], target.to_json(), vta)
    if vta is not None:
        facts["vta"] = {name: vta[name] for name in ("counters", "cycles", "estimated_ms", "launches")}
    return facts


def _with_program(
    context: StageContext, packed: Any, vta: VtaTarget, tiles: list[dict[str, Any]]
) -> tuple[Any, dict[str, Any]]:
    """Compile the accelerator's part, check it without running it, and put it in the place of its definition."""
    from tvmflow.passes.offload_vta import blob_of, with_blob
    from tvmflow.vta.compiler import compile_region, mode_named
    from tvmflow.vta.lint import check_program
    from tvmflow.vta.region import from_blob, region_from
    from tvmflow.vta.runtime import program_to_blob, register
    from tvmflow.vta.summary import summarize, write_files
    from tvmflow.vta.tiles import TileRecord

    context.progress("compiling the accelerator's program", 0, 0)
    text, arrays = from_blob(blob_of(packed))
    records = {
        tile["workload"]: TileRecord.from_json({k: v for k, v in tile.items() if k != "layer"}) for tile in tiles
    }
    program = compile_region(vta.config, region_from(text, arrays), mode_named(vta.mode), records)
    check_program(program)
    summary = summarize(program, vta.mode, text["notes"])
    write_files(program, summary, context.out / "vta")
    register(vta.config)
    return with_blob(packed, program_to_blob(program)), summary


def _coverage(choices: list[Choice]) -> dict[str, Any]:
    from tvmflow.passes.schedule_kernels import coverage

    counts = {how: sum(choice.how == how for choice in choices) for how in ("record", "default", "none")}
    return {"kernels": len(choices), "coverage": coverage(choices), "kernels_tuned": counts["record"], "kernels_default": counts["default"],
            "kernels_unscheduled": counts["none"]}  # fmt: skip


def _write_manifest(
    context: StageContext, library: Path, choices: list[Choice], coverage: float, target: dict[str, Any],
    vta: dict[str, Any] | None,
) -> None:  # fmt: skip
    description, file = read_description(context.inputs["fetch"]), describe_file(library)
    manifest: dict[str, Any] = {
        "schema": 1,
        "cell": {"model": context.cell.model, "target": context.cell.target, "precision": context.cell.precision},
        "library": {"file": library.name, "sha256": file.sha256, "size": file.size, "entry": "main"},
        "input": {"name": description.input_name, "shape": list(description.input_shape), "dtype": "float32"},
        "target": target,
        "coverage": coverage,
        "toolchain": versions(_toolchain(context.settings)),
        "kernels": sorted(({"name": c.kernel, "workload": c.workload, "schedule": c.how, "template": c.template, "operations": c.work}
                           for c in choices), key=lambda kernel: str(kernel["name"])),
    }  # fmt: skip
    if vta is not None:
        manifest["vta"] = vta
    (context.out / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, indent=1), encoding="utf-8")


STAGE = Stage(
    name="build", module="tasks.build", settings=_settings, toolchain=_toolchain, run=build,
    inputs={**GOLDEN, "graph_pack": (IR_NAME, WEIGHTS_NAME), "tune": ("best.json",)},
)  # fmt: skip

if __name__ == "__main__":
    main("build")
