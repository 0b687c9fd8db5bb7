"""build: compile the packed model with the best measured schedules into a library for the target.

In:  the packed model, best.json of tune, golden inputs and outputs Out: library.so, which needs TVM (where it has no
form for that, network.so under this name, too); network.so, which needs nothing, and rpc.so, through which devices run
it; manifest.json (what they are,
     for whom, made of what), ir/ (the module after each phase); and as files what the device computes beside kernels,
     in a folder that the backend names
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.golden import GOLDEN, check_any_size, check_outputs, golden_outputs
from tvmflow.backends.registry import backend_of, resolve
from tvmflow.codegen.network.runtime_sources import digest_of_runtime
from tvmflow.config.buckets import Sizes, axes_from
from tvmflow.config.params import Cell, Preprocess
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.agreement import check_equal
from tvmflow.frontends.source_model import OUTPUTS_NAME, Arrays, SourceDescription, TensorSpec, read_description
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME, load_module, load_others
from tvmflow.pipeline.stage import Stage, StageContext, no_limits
from tvmflow.sources.data.labels import class_names
from tvmflow.sources.data.preprocessing import recipe_for, value_table
from tvmflow.support.errors import SourceError
from tvmflow.targets.resolve import TARGET_READS, ResolvedTarget
from tvmflow.toolchain.versions import versions

if TYPE_CHECKING:
    from tvmflow.codegen.network.bucket_tables import Bucket
    from tvmflow.codegen.network.description import Network


@dataclass(frozen=True)
class BuildSettings:
    """runtime: digest of the C sources linked into a library without TVM; preprocess: its image preprocessing."""

    target: ResolvedTarget
    max_relative_error: float
    precision: str
    runtime: str
    preprocess: Preprocess


def _settings(workspace: Workspace, cell: Cell) -> BuildSettings:
    params = workspace.params
    bound = params.build.max_relative_error[cell.precision]
    preprocess = params.models[cell.model].preprocess
    return BuildSettings(resolve(params.targets[cell.target]), bound, cell.precision, digest_of_runtime(), preprocess)


def _toolchain(settings: BuildSettings) -> tuple[str, ...]:
    return ("tvm", "ffi", "llvm", f"cc:{settings.target.cc}")


def build(context: StageContext[BuildSettings, None]) -> dict[str, Any]:
    """Compile and export the library, and check it if this machine can run it."""
    from tvmflow.codegen.compile import LoadedLibrary, build_scheduled, export
    from tvmflow.codegen.manifest import count_coverage, manifest_of
    from tvmflow.codegen.network.link import OpenedNetwork, link_rpc, write_network

    settings, target = context.settings, context.settings.target
    backend = backend_of(target)
    best = json.loads((context.inputs["tune"] / "best.json").read_text(encoding="utf-8"))
    records = {record["workload"]: record for record in best["records"] if best["device_kind"] == backend.kernel_kind}
    folder = context.out / "ir"
    folder.mkdir()
    phases: list[str] = []
    total = len(backend.lowering_passes({})) + 1  # and scheduling

    def dump(name: str, module: Any) -> None:
        (folder / f"{len(phases):02d}_{name}.txt").write_text(module.script(show_meta=False), encoding="utf-8")
        phases.append(name)
        context.progress(f"building: {name}", len(phases), total)

    winograd = best["winograd"] if best["device_kind"] == backend.kernel_kind else {}
    packed = load_module(context.inputs["graph_pack"])
    packed, part = backend.compile_part(packed, best["part"], context.out, context.progress)
    scheduled = build_scheduled(packed, backend, records, dump, winograd)
    library = context.out / "library.so"
    if backend.has_machine:
        export(scheduled, library)
    facts: dict[str, Any] = dict(count_coverage(scheduled.choices))
    golden: Arrays | None = None
    if target.runs_here and backend.has_machine:
        golden = golden_outputs(context, LoadedLibrary(library, target.threads))
        facts["golden"] = check_outputs(context, "build", golden, settings.max_relative_error).to_json()
    description = read_description(context.inputs["fetch"])
    outputs = json.loads((context.inputs["import_model"] / OUTPUTS_NAME).read_text(encoding="utf-8"))
    tools = versions(_toolchain(settings))
    context.progress("building: network.so", 0, 0)
    path = context.out / "network.so"
    buckets = _smaller(context, description.sizes, records, winograd)
    network = write_network(path, scheduled, _network_of(context, description, outputs), target.compiler, buckets)
    if not backend.has_machine:
        library.hardlink_to(path)  # the only form there is
    facts["library_bytes"] = library.stat().st_size
    manifest = manifest_of(context.cell, library, description, target, scheduled.choices, outputs, tools)
    manifest |= {"part": part, "network": network}
    if description.sizes:
        manifest["sizes"] = description.sizes.to_json()
    link_rpc(context.out / "rpc.so", target.compiler)
    if golden is not None:
        opened = OpenedNetwork(path, target.threads)
        check_equal("build", golden, golden_outputs(context, opened))
        facts |= check_any_size(context, "build", lambda _sizes: opened, settings.max_relative_error)
    (context.out / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, indent=1), encoding="utf-8")
    return facts | ({"part": part["metrics"]} if part else {})


def _smaller(
    context: StageContext[BuildSettings, None], sizes: Sizes | None, records: dict[str, Any], winograd: dict[str, int]
) -> list[Bucket]:
    """Return the network scheduled and compiled for each bucket but the largest."""
    from tvmflow.codegen.compile import build_scheduled
    from tvmflow.codegen.network.bucket_tables import Bucket

    backend, modules, found = backend_of(context.settings.target), load_others(context.inputs["graph_pack"]), []
    for at, bucket in enumerate(sizes.all[:-1] if sizes else ()):
        assert sizes is not None
        label = sizes.label(bucket)
        context.progress(f"building: {label}", 0, 0)
        found.append(
            Bucket(bucket, build_scheduled(modules[label], backend, records, None, winograd, prefix=f"at{at}_"))
        )
    return found


def _network_of(
    context: StageContext[BuildSettings, None], description: SourceDescription, outputs: list[dict[str, Any]]
) -> Network:
    """Return the description in the library without TVM."""
    from tvmflow.codegen.network.bucket_tables import SizedOutputs
    from tvmflow.codegen.network.description import Network

    classes = outputs[0]["shape"][-1] if len(outputs[0]["shape"]) == 2 else 0
    labels = tuple(class_names(context.inputs["fetch"], classes) or ()) if classes else ()
    names = tuple(one["name"] for one in outputs)
    image = _image_input(description.inputs, context.settings.preprocess)
    settings = context.settings
    return Network(
        str(context.cell),
        description.inputs,
        names,
        settings.target.threads,
        labels,
        image,
        settings.max_relative_error,
        SizedOutputs(description.sizes, axes_from(outputs)) if description.sizes else None,
    )


def _image_input(inputs: tuple[TensorSpec, ...], how: Preprocess) -> Any:
    """Return the preprocessing of the image input; None for another input, or for integers that the entry does not
    convert.
    """
    from tvmflow.codegen.network.image_tables import ImageInput

    try:
        recipe = recipe_for([spec.shape for spec in inputs], how)
        return ImageInput(recipe, value_table(inputs[0].shape[1], how, inputs[0].dtype))
    except SourceError:
        return None


STAGE = Stage(
    name="build",
    settings=_settings,
    limits=no_limits,
    toolchain=_toolchain,
    run=build,
    inputs={
        **GOLDEN,
        "fetch": (*GOLDEN["fetch"], "labels.json"),
        "import_model": GOLDEN["import_model"],
        "graph_pack": (IR_NAME, WEIGHTS_NAME),
        "tune": ("best.json",),
    },
    reads=(*TARGET_READS, "build.max_relative_error.{precision}", "models.{model}.preprocess"),
)
