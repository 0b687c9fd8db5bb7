"""quantize: convert the model to the precision of its cell.

In:  the imported model, calibration samples, golden inputs and outputs
Out: model.json + weights.safetensors in that precision, quantization.json (per layer), reference.npz (the quantized
     module's outputs for the golden and, for integer precisions, to the evaluation inputs)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tasks.golden import golden_inputs, sized_outputs
from tvmflow.backends.cpu import host_backend
from tvmflow.config.params import Cell
from tvmflow.config.stage_params import Int8Params, MixedOperators, VtaInt8Params
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.agreement import check_golden
from tvmflow.evaluation.buckets import check_between_buckets, group_of, runners_of
from tvmflow.evaluation.conditioning import CONDITIONING_NAME, read_noise
from tvmflow.evaluation.quality_warnings import CALIBRATED_ON_NOISE
from tvmflow.evaluation.source_layers import LAYERS_NAME, locate_layers, read_layers, write_layers
from tvmflow.frontends.source_model import OUTPUTS_NAME, Arrays, Runner, read_description, run_in_batches
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME, load_module, load_others, save_module
from tvmflow.pipeline.stage import Stage, StageContext, no_limits
from tvmflow.quantization.integer_matmul import SOURCE
from tvmflow.quantization.qdq import is_quantized
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import AgreementError
from tvmflow.support.files import load_arrays, save_arrays, sha256_of
from tvmflow.targets.cpu_features import activations_of
from tvmflow.targets.gpu_features import GPU_KINDS
from tvmflow.targets.resolve import Processor, processor_of

REPORT_NAME = "quantization.json"
INTEGER = ("int8", "vta_int8")


@dataclass(frozen=True)
class QuantizeSettings:
    """options: those of the precision; float32 has none. processor: where it decides the dtype of 8-bit values.
    products: digest of what sums them, "" where nothing is an integer.
    """

    precision: str
    options: Int8Params | VtaInt8Params | MixedOperators | None
    max_relative_error: float
    processor: Processor | None
    products: str


def _settings(workspace: Workspace, cell: Cell) -> QuantizeSettings:
    block, entry, processor = workspace.params.quantize, workspace.params.targets[cell.target], None
    options: Int8Params | VtaInt8Params | MixedOperators | None = None
    if cell.precision == "int8":
        options = int8 = workspace.params.int8_of(cell)
        if int8.activations == "auto" and entry.kind in GPU_KINDS:  # their instructions multiply words of int8
            options = int8.model_copy(update={"activations": "int8"})
        elif int8.activations == "auto":
            processor = processor_of(entry)
    elif cell.precision == "vta_int8":
        options = block.vta_int8
    elif cell.precision != "float32":
        options = block.mixed.get(cell.target, block.mixed["default"])
    return QuantizeSettings(
        cell.precision,
        options,
        block.max_relative_error[cell.precision],
        processor,
        sha256_of(SOURCE) if cell.precision in INTEGER else "",
    )


def quantize(context: StageContext[QuantizeSettings, None]) -> dict[str, Any]:
    """Convert and check; float32 is unchanged."""
    from tvmflow.codegen.compile import LocalRunner
    from tvmflow.evaluation.check_numpy_reference import check_numpy_reference
    from tvmflow.quantization.precisions import PrecisionRequest, all_to_precision

    settings, fetched = context.settings, context.inputs["fetch"]
    if settings.precision == "float32" and not read_description(fetched).sizes:
        return _pass_through(context)
    request = PrecisionRequest(options_of(settings), Samples.load(fetched / "calibration.npz"), context.progress)
    imported = load_module(context.inputs["import_model"])
    module, smaller, report = all_to_precision(
        imported,
        load_others(context.inputs["import_model"]),
        settings.precision,
        request,
    )
    save_module(module, context.out, smaller)
    layers = read_layers(context.inputs["import_model"]).layers
    write_layers(context.out, locate_layers(read_graph(module), layers))
    if settings.precision in INTEGER and not read_description(fetched).has_data:
        if not is_quantized(read_graph(imported)):
            report["warnings"] = [asdict(CALIBRATED_ON_NOISE)]
    (context.out / REPORT_NAME).write_text(json.dumps(report, sort_keys=True, indent=1), encoding="utf-8")
    description, golden = read_description(fetched), golden_inputs(context)
    batch, task = description.batch, description.task
    context.progress("checking the quantized module", 0, 0)
    runner = LocalRunner.of_plain(module, host_backend())
    outputs = run_in_batches(runner, golden, batch)
    reference = load_arrays(context.inputs["import_model"] / "reference.npz", "golden")
    noise = read_noise(context.inputs["import_model"])
    with _hint_of_scale(settings, report):
        agreement = check_golden("quantize", outputs, reference, settings.max_relative_error, task, noise)
    facts: dict[str, Any] = {"golden": agreement.to_json()}
    if settings.precision in INTEGER:
        facts["definition"] = check_numpy_reference(module, golden, batch, outputs, noise).to_json()
        facts |= {
            name: report[name] for name in ("output_sqnr_db", "worst", "moved_to_float", "goal_met") if name in report
        }
    evaluation = run_in_batches(runner, Samples.load(fetched / "evaluation.npz").inputs, batch)
    sized = _sized_references(context, runner, smaller)
    save_arrays(context.out / "reference.npz", golden=outputs, evaluation=evaluation, **sized)
    return facts


def _pass_through(context: StageContext[QuantizeSettings, None]) -> dict[str, Any]:
    """Copy the imported model, with import_model's outputs as its reference."""
    imported = context.inputs["import_model"]
    for name in (IR_NAME, WEIGHTS_NAME, LAYERS_NAME):
        shutil.copyfile(imported / name, context.out / name)
    (context.out / REPORT_NAME).write_text("{}", encoding="utf-8")
    source, golden, evaluation = (
        load_arrays(imported / "reference.npz", name) for name in ("golden", "imported_golden", "imported")
    )
    task = read_description(context.inputs["fetch"]).task
    noise = read_noise(imported)
    agreement = check_golden("quantize", golden, source, context.settings.max_relative_error, task, noise)
    save_arrays(context.out / "reference.npz", golden=golden, evaluation=evaluation)
    return {"golden": agreement.to_json()}


def _sized_references(
    context: StageContext[QuantizeSettings, None], largest: Runner, smaller: dict[str, Any]
) -> dict[str, Arrays]:
    """Return the outputs of all buckets for padded inputs, by name in reference.npz. Raises AgreementError."""
    from tvmflow.codegen.compile import LocalRunner

    description = read_description(context.inputs["fetch"])
    start = partial(LocalRunner.of_plain, backend=host_backend())
    outputs = sized_outputs(context, runners_of(description.sizes, largest, smaller, start))
    file, bound = context.inputs["import_model"] / "reference.npz", context.settings.max_relative_error
    noise = read_noise(context.inputs["import_model"])
    check_between_buckets(
        "quantize", outputs, lambda label: load_arrays(file, group_of(label)), bound, description.task, noise
    )
    return {group_of(label): found for label, found in outputs.items()}


def options_of(settings: QuantizeSettings) -> Int8Params | VtaInt8Params | MixedOperators | None:
    """Return the options of the precision, with those that depend on the target's processor."""
    if settings.processor is None or settings.options is None:
        return settings.options
    return settings.options.model_copy(update={"activations": activations_of(settings.processor)})


@contextmanager
def _hint_of_scale(settings: QuantizeSettings, report: dict[str, Any]) -> Iterator[None]:
    """Return a scale that would be accepted if the requested one is rejected."""
    try:
        yield
    except AgreementError as error:
        best = report.get("best_global_scale")
        if best is None or getattr(settings.options, "global_scale", None) in (best, "auto"):
            raise
        fix = f"quantize.vta_int8.global_scale: auto, or {best:g}, which loses least on the calibration samples"
        raise AgreementError(error.found, error.expected, fix) from None


STAGE = Stage(
    name="quantize",
    settings=_settings,
    limits=no_limits,
    toolchain=lambda _: ("tvm", "ffi", "llvm", "numpy"),
    run=quantize,
    inputs={
        "fetch": ("golden.npz", "source.json", "calibration.npz", "evaluation.npz"),
        "import_model": (IR_NAME, WEIGHTS_NAME, "reference.npz", OUTPUTS_NAME, CONDITIONING_NAME, LAYERS_NAME),
    },
    reads=(
        "targets.{target}.kind",
        "targets.{target}.mcpu",
        "targets.{target}.mtriple",
        "targets.{target}.mattr",
        "quantize.max_relative_error.{precision}",
        "quantize.mixed",
        "quantize.int8",
        "quantize.vta_int8",
        "overrides",
    ),
)
