"""graph_pack: convert the model to the packed layout of its target, with prepacked weights.

In:  the quantized model, golden inputs and outputs Out: model.json + weights.safetensors; NCHW{block}c on a CPU; what a
device computes beside the CPU are calls, in its layout
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tasks.golden import GOLDEN, check_module, check_sizes
from tvmflow.backends.cpu import host_backend
from tvmflow.backends.registry import backend_for, backend_of
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.buckets import runners_of
from tvmflow.frontends.source_model import read_description
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME, load_module, load_others, save_module
from tvmflow.pipeline.stage import Stage, StageContext, no_limits
from tvmflow.support.errors import UsageError
from tvmflow.targets.resolve import TARGET_READS, ResolvedTarget


@dataclass(frozen=True)
class GraphPackSettings:
    channel_block: Literal["auto", 4, 8, 16]
    target: ResolvedTarget
    max_relative_error: float


def _settings(workspace: Workspace, cell: Cell) -> GraphPackSettings:
    backend = backend_for(workspace.params.targets[cell.target])
    backend.check_precision(cell.precision, str(cell))
    if workspace.params.models[cell.model].buckets and not backend.is_cpu:
        raise UsageError(
            f"{cell}: buckets of models.{cell.model} (inputs of several sizes) on an accelerator or GPU",
            "a target of kind cpu",
            f"give models.{cell.model} fixed shapes for this target",
        )
    bound = workspace.params.build.max_relative_error[cell.precision]
    return GraphPackSettings(workspace.params.graph_pack.channel_block, backend.target, bound)


def graph_pack(context: StageContext[GraphPackSettings, None]) -> dict[str, Any]:
    """Pack and check; return the number of packed convolutions."""
    from tvmflow.codegen.compile import LocalRunner

    settings, module = context.settings, load_module(context.inputs["quantize"])
    block = None if settings.channel_block == "auto" else settings.channel_block
    backend = backend_of(settings.target)
    module, facts = backend.pack(module, block)
    smaller = {label: backend.pack(other, block)[0] for label, other in load_others(context.inputs["quantize"]).items()}
    save_module(module, context.out, smaller)
    runner = LocalRunner(module, host_backend())
    agreement = check_module(context, "graph_pack", runner, settings.max_relative_error)
    sizes = read_description(context.inputs["fetch"]).sizes
    runner_of = runners_of(sizes, runner, smaller, partial(LocalRunner, backend=host_backend()))
    return {
        "golden": agreement.to_json(),
        **facts,
        **check_sizes(context, "graph_pack", runner_of, settings.max_relative_error),
    }


STAGE = Stage(
    name="graph_pack",
    settings=_settings,
    limits=no_limits,
    toolchain=lambda _: ("tvm", "ffi", "llvm"),
    run=graph_pack,
    inputs={**GOLDEN, "quantize": (IR_NAME, WEIGHTS_NAME, *GOLDEN["quantize"])},
    reads=("graph_pack.channel_block", "models.{model}.buckets", *TARGET_READS, "build.max_relative_error.{precision}"),
)
