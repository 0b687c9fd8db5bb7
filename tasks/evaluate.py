"""evaluate: run the evaluation set on the device, and measure the latency of the library for apps beside baselines.

In:  the built library, the evaluation set, the source framework's outputs
Out: scorecard.json (everything), metrics.json (the numbers, for DVC), confusion.csv, latency.csv
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.agreement import INPUTS, add_first_kernel, agreement_on
from tasks.device import LIMIT_READS, DeviceLimits, device_limits, session_of
from tvmflow.backends.manifest import Manifest, read_manifest
from tvmflow.backends.registry import backend_of, resolve
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.devices.network_forms import network_library, vm_library
from tvmflow.devices.registry import transport_of
from tvmflow.evaluation import machine_state, roofline
from tvmflow.evaluation.baselines import Baselines, open_baselines
from tvmflow.evaluation.conditioning import read_warnings
from tvmflow.evaluation.latency import LatencyRules
from tvmflow.evaluation.on_device import DeviceNumbers, DeviceRules, measure_on_device
from tvmflow.evaluation.quality import measure_quality, write_scorecard
from tvmflow.evaluation.quality_warnings import QualityWarning
from tvmflow.evaluation.roofline import Bounds, NoBounds, measure_bounds
from tvmflow.evaluation.scorecard import AcceleratorPart, Device, Scorecard
from tvmflow.frontends.registry import tools_of
from tvmflow.frontends.source_model import read_description
from tvmflow.pipeline.recipe_key import FRONTENDS
from tvmflow.pipeline.stage import Output, Stage, StageContext, settings_from_block
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import AgreementError
from tvmflow.support.files import sha256_of
from tvmflow.support.json_values import from_json
from tvmflow.targets.gpu_drivers import known_drivers
from tvmflow.targets.resolve import TARGET_READS, ResolvedTarget
from tvmflow.toolchain.versions import probe

CONFUSION = {"x": "actual", "y": "predicted", "template": "confusion", "title": "confusion"}
LATENCY = {"x": "median_ms", "y": "what", "template": "bar_horizontal", "title": "median latency"}


@dataclass(frozen=True)
class EvaluateSettings(LatencyRules):
    """emulated: the device is emulated, and its clock is not a time. host_cpu: of this machine, if baselines run on it
    and it is the device. gpu_driver: of the device's units, "" if it has no GPU or was never asked. ceilings,
    machine_state: digests of the measuring C sources.
    """

    target: ResolvedTarget
    device_key: str
    on_this_host: bool
    emulated: bool
    host_cpu: str
    framework: str
    network: str | None
    metric: str | None
    max_relative_error: float
    cold_starts: int
    peers: tuple[str, ...]
    gpu_driver: str
    ceilings: str
    machine_state: str


def _settings(workspace: Workspace, cell: Cell) -> EvaluateSettings:
    entry, model = workspace.params.targets[cell.target], workspace.params.models[cell.model]
    return settings_from_block(
        EvaluateSettings,
        workspace.params.evaluate,
        target=resolve(entry),
        device_key=entry.device.key,
        on_this_host=transport_of(entry.device).is_this_host,
        emulated=transport_of(entry.device).is_emulated,
        host_cpu=probe()["host_cpu"],
        framework=model.framework,
        network=model.network,
        metric=model.metric,
        max_relative_error=workspace.params.build.max_relative_error[cell.precision],
        gpu_driver=known_drivers(workspace.root, cell.target, entry.kind),
        ceilings=sha256_of(roofline.SOURCE),
        machine_state=sha256_of(machine_state.SOURCE),
    )


def _toolchain(settings: EvaluateSettings) -> tuple[str, ...]:
    return ("tvm", "ffi", "llvm", "onnxruntime", *tools_of(settings.framework, settings.network))


Context = StageContext[EvaluateSettings, DeviceLimits]


def evaluate(context: Context) -> dict[str, Any]:
    """Measure everything; return the disturbances of the latency."""
    settings, backend = context.settings, backend_of(context.settings.target)
    samples = Samples.load(context.inputs["fetch"] / "evaluation.npz")
    folder = context.inputs["build"]
    manifest = read_manifest(folder)
    ships = network_library(folder, manifest.outputs, manifest.network.device)
    description = read_description(context.inputs["fetch"])
    batch, task = description.batch, description.task
    with _baselines(context) as loaded, session_of(context.limits, settings.target) as session:
        peers, threads, here = loaded(), settings.target.threads, _is_this_cpu(settings)
        rules = DeviceRules(
            settings,
            settings.cold_starts,
            threads,
            here,
            peers.models,
            settings.emulated,
            settings.emulated or backend.cost(session.call) is not None,
            description.sizes,
        )
        machine = vm_library(folder) if session.has_tvm and backend.has_machine else ships
        numbers = measure_on_device(session, ships, machine, samples.inputs, batch, rules, context.progress)
        part, unit = backend.verify(manifest.part, session.call), session.unit
        agreement = agreement_on(session, context, backend)
    try:
        quality = measure_quality(
            context.inputs, numbers.outputs, samples, settings.max_relative_error, task, settings.metric
        )
    except AgreementError as error:
        raise add_first_kernel(error, agreement) from None
    kind = transport_of(context.limits.device).kind_of(backend.device_kind)
    quantization = json.loads((context.inputs["quantize"] / "quantization.json").read_text(encoding="utf-8"))
    card = Scorecard(
        cell=str(context.cell),
        device=Device(settings.device_key, kind, threads, unit, session.build, session.gpu),
        batch=batch or 1,
        library_bytes=ships.file.stat().st_size,
        coverage=manifest.coverage,
        coverage_estimated=manifest.coverage_estimated,
        **vars(numbers.measured),
        **vars(quality),
        peer_variants=peers.variants,
        peers_left_out=peers.left_out,
        bounds=_bounds(context, manifest, numbers),
        part=AcceleratorPart(**part) if part else None,
        kernel_agreement=agreement.summary if agreement else None,
        quantization=quantization,
        warnings=_warnings(context, quantization),
    )
    write_scorecard(context.out, card, numbers.outputs, samples, task)
    return {"badges": list(card.latency.compute.badges)}


def _warnings(context: Context, quantization: dict[str, Any]) -> tuple[QualityWarning, ...]:
    """Return what makes the quality doubtful: since the import, and since quantization."""
    since = (from_json(QualityWarning, one) for one in quantization.get("warnings", []))
    return (*read_warnings(context.inputs["import_model"]), *since)


def _is_this_cpu(settings: EvaluateSettings) -> bool:
    return settings.on_this_host and settings.target.runs_here and backend_of(settings.target).is_cpu


def has_bounds(settings: EvaluateSettings) -> bool:
    """Return whether the roofline can be measured: the device is this machine's CPU with a real clock."""
    return _is_this_cpu(settings) and not settings.emulated


def _bounds(context: Context, manifest: Manifest, numbers: DeviceNumbers) -> Bounds | NoBounds | None:
    """Return the roofline bounds on this machine's CPU; None for another device."""
    settings, latency = context.settings, numbers.measured.latency.compute
    if not has_bounds(settings):
        return None
    context.progress("measuring what the machine does at most", 0, 0)
    median_ms = latency.median_ms if latency.is_time else None
    times_ms, most = numbers.measured.kernels_ms, settings.max_foreign_load
    return measure_bounds(manifest.kernels, settings.target, median_ms, times_ms, most)


def _baselines(context: Context) -> contextlib.AbstractContextManager[Callable[[], Baselines]]:
    settings, target = context.settings, context.settings.target
    if not _is_this_cpu(settings):
        return contextlib.nullcontext(Baselines)  # times of this machine's CPU are not comparable with another device
    onnx_file = context.inputs["import_model"] / "peer.onnx"
    return open_baselines(settings.peers, context.inputs["fetch"], onnx_file, target.threads)


STAGE = Stage(
    name="evaluate",
    settings=_settings,
    limits=device_limits,
    toolchain=_toolchain,
    run=evaluate,
    inputs={
        "build": None,
        "fetch": None,
        "import_model": None,
        "quantize": ("reference.npz", "quantization.json"),
        **INPUTS,
    },
    outputs=(
        Output("scorecard.json"),
        Output("metrics.json", is_metric=True),
        Output("confusion.csv", plot=CONFUSION),
        Output("latency.csv", plot=LATENCY),
    ),
    reads=(
        "models.{model}.framework",
        "models.{model}.network",
        "models.{model}.metric",
        *TARGET_READS,
        "targets.{target}.device.key",
        "targets.{target}.device.transport",
        "evaluate",
        "build.max_relative_error.{precision}",
    ),
    limit_reads=LIMIT_READS,
    measures_device=True,
    runs=(FRONTENDS,),
)
