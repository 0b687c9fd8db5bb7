"""build: compile the packed model with the best measured schedules into a library for the target.

In:  the packed model, best.json of tune, golden inputs and outputs
Out: library.so, which needs TVM (where it has no form for that, network.so under this name, too); network.so, which
     needs nothing, and rpc.so, through which devices run it; manifest.json (what they are, for whom, made of what), ir/
     (the module after each phase); and as files what the device computes beside kernels, in a folder that the backend
     names
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.golden import GOLDEN, check_any_size, check_outputs, golden_outputs
from tvmflow.backends.backend import Backend
from tvmflow.backends.manifest import MANIFEST_NAME, LibraryFile, Manifest, NetworkFile
from tvmflow.backends.registry import backend_of, resolve
from tvmflow.codegen.network.runtime_sources import digest_of_runtime
from tvmflow.config.params import Cell, Preprocess
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.agreement import check_equal
from tvmflow.frontends.source_model import (
    OutputSpec,
    SourceDescription,
    State,
    TensorSpec,
    dynamic_axes,
    read_description,
    read_outputs,
)
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME, load_module, load_others
from tvmflow.ir.tir.kernel_schedules import BestSchedule, BestSchedules, count_coverage, coverage
from tvmflow.pipeline.stage import Stage, StageContext, no_limits
from tvmflow.sources.data.labels import class_names
from tvmflow.sources.data.preprocessing import recipe_for, value_table
from tvmflow.support.errors import SourceError, UsageError
from tvmflow.support.files import describe_file
from tvmflow.support.json_values import read_json, write_json
from tvmflow.targets.processor_flags import judged_flags
from tvmflow.targets.resolve import TARGET_READS, ResolvedTarget
from tvmflow.toolchain.versions import versions

if TYPE_CHECKING:
    from tvmflow.codegen.compile import Scheduled
    from tvmflow.codegen.network.bucket_tables import Bucket
    from tvmflow.codegen.network.description import Network


@dataclass(frozen=True)
class BuildSettings:
    """cell: its name is in the library, so that a cell with the same model under another name has its own; runtime:
    digest of the C sources linked into a library without TVM; preprocess: its image preprocessing; state: inputs that
    it carries from run to run, with the outputs that they are.
    """

    cell: str
    target: ResolvedTarget
    max_relative_error: float
    precision: str
    runtime: str
    preprocess: Preprocess
    state: Mapping[str, str]


def _settings(workspace: Workspace, cell: Cell) -> BuildSettings:
    params = workspace.params
    bound = params.build.max_relative_error[cell.precision]
    model = params.models[cell.model]
    target = resolve(params.targets[cell.target])
    runtime = digest_of_runtime()
    return BuildSettings(str(cell), target, bound, cell.precision, runtime, model.preprocess, model.state)


def _toolchain(settings: BuildSettings) -> tuple[str, ...]:
    return ("tvm", "ffi", "llvm", f"cc:{settings.target.cc}")


Context = StageContext[BuildSettings, None]


@dataclass(frozen=True)
class LibraryDescription:
    """What the stages before say of the library to build. schedules: workload key -> schedule; winograd: convolution
    key -> tile size; part: the schedules of what an accelerator computes; labels: of classes, or none.
    """

    source: SourceDescription
    outputs: tuple[OutputSpec, ...]
    schedules: Mapping[str, BestSchedule]
    winograd: Mapping[str, int]
    part: list[dict[str, Any]]
    labels: tuple[str, ...]


def _read_library(context: Context, backend: Backend) -> LibraryDescription:
    best = read_json(BestSchedules, context.inputs["tune"] / "best.json")
    outputs = read_outputs(context.inputs["import_model"])
    classes = outputs[0].shape[-1] if len(outputs[0].shape) == 2 else 0
    labels = class_names(context.inputs["fetch"], classes) if classes else None
    source = read_description(context.inputs["fetch"])
    return LibraryDescription(source, outputs, *best.on(backend.kernel_kind), best.part, tuple(labels or ()))


def build(context: Context) -> dict[str, Any]:
    """Compile and export the library, and check it if this machine can run it."""
    backend = backend_of(context.settings.target)
    library = _read_library(context, backend)
    scheduled, part = _compile(context, library, backend)
    network = _write_libraries(context, library, scheduled)
    agreement = _check_libraries(context, backend)
    file = describe_file(context.out / "library.so")
    manifest = Manifest(
        cell=context.cell,
        library=LibraryFile("library.so", file.sha256, file.size, "main"),
        network=network,
        inputs=library.source.inputs,
        outputs=library.outputs,
        target=context.settings.target,
        coverage=coverage(scheduled.kernels),
        coverage_estimated=coverage(scheduled.kernels, "estimate"),
        toolchain=versions(_toolchain(context.settings)),
        kernels=scheduled.kernels,
        part=part,
        sizes=library.source.sizes,
    )
    write_json(context.out / MANIFEST_NAME, manifest)
    metrics = {"part": part["metrics"]} if part else {}
    return {**count_coverage(scheduled.kernels), "library_bytes": file.size, **agreement, **metrics}


def _compile(
    context: Context, library: LibraryDescription, backend: Backend
) -> tuple[Scheduled, dict[str, Any] | None]:
    """Return the scheduled network, and the description of the accelerator's part. Writes the module after each phase
    to ir/.
    """
    from tvmflow.codegen.compile import build_scheduled

    folder = context.out / "ir"
    folder.mkdir()
    phases: list[str] = []
    total = len(backend.lowering_passes({})) + 1  # and scheduling

    def dump(name: str, module: Any) -> None:
        (folder / f"{len(phases):02d}_{name}.txt").write_text(module.script(show_meta=False), encoding="utf-8")
        phases.append(name)
        context.progress(f"building: {name}", len(phases), total)

    packed = load_module(context.inputs["graph_pack"], is_packed=True)
    packed, part = backend.compile_part(packed, library.part, context.out, context.progress)
    return build_scheduled(packed, backend, library.schedules, dump, library.winograd), part


def _write_libraries(context: Context, library: LibraryDescription, scheduled: Scheduled) -> NetworkFile:
    """Write library.so, network.so and rpc.so."""
    from tvmflow.codegen.compile import export
    from tvmflow.codegen.network.link import link_rpc, write_network

    compiler, path = context.settings.target.compiler, context.out / "network.so"
    if scheduled.backend.has_machine:
        export(scheduled, context.out / "library.so")
    context.progress("building: network.so", 0, 0)
    buckets = _compile_smaller(context, library, scheduled.backend)
    network = write_network(path, scheduled, _describe_network(context, library), compiler, buckets)
    if not scheduled.backend.has_machine:
        (context.out / "library.so").hardlink_to(path)  # the only form there is
    if compiler.makes_shared_objects:
        link_rpc(context.out / "rpc.so", compiler)
    return network


def _compile_smaller(context: Context, library: LibraryDescription, backend: Backend) -> list[Bucket]:
    """Return the network scheduled and compiled for each bucket but the largest."""
    from tvmflow.codegen.compile import build_scheduled
    from tvmflow.codegen.network.bucket_tables import Bucket

    modules, found, sizes = load_others(context.inputs["graph_pack"], is_packed=True), [], library.source.sizes
    for at, bucket in enumerate(sizes.all[:-1] if sizes else ()):
        assert sizes is not None
        label = sizes.label(bucket)
        context.progress(f"building: {label}", 0, 0)
        scheduled = build_scheduled(
            modules[label], backend, library.schedules, None, library.winograd, prefix=f"at{at}_"
        )
        found.append(Bucket(bucket, scheduled))
    return found


def _check_libraries(context: Context, backend: Backend) -> dict[str, Any]:
    """Return the agreement of the libraries with the quantized module, empty if they do not run here."""
    from tvmflow.codegen.compile import LoadedLibrary
    from tvmflow.codegen.network.opened_network import OpenedNetwork

    target, bound = context.settings.target, context.settings.max_relative_error
    if not (target.runs_here and backend.has_machine):
        return {}
    golden = golden_outputs(context, LoadedLibrary(context.out / "library.so", target.threads))
    agreement = check_outputs(context, "build", golden, bound)
    network = OpenedNetwork(context.out / "network.so", target.threads)
    check_equal("build", golden, golden_outputs(context, network))
    return {"golden": agreement.to_json(), **check_any_size(context, "build", lambda _sizes: network, bound)}


def _describe_network(context: Context, library: LibraryDescription) -> Network:
    """Return the description in the library without TVM."""
    from tvmflow.codegen.network.bucket_tables import SizedOutputs
    from tvmflow.codegen.network.description import Network

    source, settings = library.source, context.settings
    return Network(
        str(context.cell),
        source.inputs,
        tuple(output.name for output in library.outputs),
        settings.target.threads,
        library.labels,
        _image_input(source.inputs, settings.preprocess),
        settings.max_relative_error,
        SizedOutputs(source.sizes, dynamic_axes(library.outputs)) if source.sizes else None,
        _states((*source.states, *(State(*pair) for pair in settings.state.items())), source.inputs, library.outputs),
        judged_flags(settings.target),
    )


def _states(
    states: tuple[State, ...], inputs: tuple[TensorSpec, ...], outputs: tuple[OutputSpec, ...]
) -> tuple[State, ...]:
    """Return the states in the order of the inputs. Raises UsageError for an output that is not like its input."""
    made = {one.name: (one.shape, one.dtype) for one in outputs}
    given = {spec.name: (spec.shape, spec.dtype) for spec in inputs}
    for state in states:
        if made.get(state.output) != given[state.input]:
            shape, dtype = given[state.input]
            raise UsageError(
                f"state: {{{state.input}: {state.output}}}: no output {state.output} of {dtype} {list(shape)}",
                "an output like the input: one of "
                + ", ".join(f"{name} ({dtype} {list(shape)})" for name, (shape, dtype) in made.items()),
            )
    return tuple(sorted(states, key=lambda state: list(given).index(state.input)))


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
    reads=(*TARGET_READS, "build.max_relative_error.{precision}", "models.{model}.preprocess", "models.{model}.state"),
)
