"""fetch: collect weights, labels and data of a model in one folder.

In:  the model's entry in params.yaml
Out: model.* (weights or whole model), source.json, labels.json, calibration.npz, evaluation.npz, golden.npz, edges.npz
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmflow.config.params import Cell, ImageFolder, ModelEntry
from tvmflow.config.stage_params import FetchParams
from tvmflow.config.workspace import Workspace
from tvmflow.frontends.registry import frontend_named, tools_of
from tvmflow.frontends.source_model import SourceDescription, TensorSpec, fixed_specs, is_of_package, read_description
from tvmflow.frontends.streams import STREAM_FILES, declare_states
from tvmflow.pipeline.stage import Stage, StageContext
from tvmflow.sandbox.images import read_in_sandbox
from tvmflow.sandbox.process import Policy, memory_for, run_in_sandbox
from tvmflow.sources.data.datasets import MAX_DATASET_BYTES, Samples, SplitSizes, edge_inputs
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.model_files import copy_network, labels_of, own_files, random_specs, samples_of
from tvmflow.sources.weights import WeightsRequest, fetch_weights
from tvmflow.support.errors import ModelFileError
from tvmflow.support.files import check_arrays, save_arrays
from tvmflow.support.json_values import to_json
from tvmflow.support.temporary import temporary_folder

_STREAM_S = 600.0


@dataclass(frozen=True)
class FetchSettings:
    """files: sha256 of the workspace files in the model's entry."""

    model: ModelEntry
    files: dict[str, str]
    split: SplitSizes
    golden_samples: int
    random_samples: int


def _settings(workspace: Workspace, cell: Cell) -> FetchSettings:
    model, block = workspace.params.models[cell.model], workspace.params.fetch
    weights = frontend_named(model.framework).files
    files = {
        what: workspace.digests.sha256_of(path) for what, path in own_files(model, weights, workspace.root).items()
    }
    usual = FetchParams()
    are_defaults = (block.calibration_samples, block.evaluation_samples) == (
        usual.calibration_samples,
        usual.evaluation_samples,
    )
    split = SplitSizes(block.calibration_samples, block.evaluation_samples, block.split_seed, are_defaults)
    return FetchSettings(model, files, split, block.golden_samples, block.random_samples)


def _limits(workspace: Workspace, _cell: Cell) -> DownloadLimits:
    block = workspace.params.fetch
    return DownloadLimits(block.max_download_mb * 1_000_000, block.download_attempts, block.connect_timeout_s)


def _toolchain(settings: FetchSettings) -> tuple[str, ...]:
    """Return the tools of weights that are made here, and of streams; fetched weights depend on their bytes only."""
    model = settings.model
    tools = tools_of(model.framework, model.network) if model.weights.kind in ("train", "seeded") else ()
    return (
        *tools,
        *(frontend_named(model.framework).state_tools if _may_keep_states(model) else ()),
        "numpy",
        *(("scikit-learn",) if model.dataset == "digits" else ()),
        *(("pillow",) if isinstance(model.dataset, ImageFolder) else ()),
    )


def _may_keep_states(model: ModelEntry) -> bool:
    """Return whether the model's file may declare states, for which its framework runs the samples here. Networks of
    packages keep nothing.
    """
    return bool(frontend_named(model.framework).state_tools) and not is_of_package(model.network)


def _leaves_out(settings: FetchSettings) -> tuple[str, ...]:
    return () if _may_keep_states(settings.model) else (declare_states.__module__,)


def fetch(context: StageContext[FetchSettings, DownloadLimits]) -> dict[str, Any]:
    """Fill the folder; return the sizes of the files."""
    settings, model, root = context.settings, context.settings.model, context.root
    labels = labels_of(model, root)
    parts = samples_of(model, settings.split, settings.random_samples, root, read_in_sandbox)
    request = WeightsRequest(
        framework=model.framework,
        network=model.network,
        weights=model.weights.model_dump(mode="json"),
        root=root,
        limits=context.limits,
        downloads=root / "artifacts" / ".downloads",
        files=frontend_named(model.framework).files,
        height=_height(model),
    )
    weights = fetch_weights(request, context.out, parts.get("train"), context.progress)
    for name in ("calibration", "evaluation"):
        parts[name].save(context.out / f"{name}.npz")
    Samples(parts["evaluation"].part(slice(settings.golden_samples)).inputs).save(context.out / "golden.npz")
    save_arrays(context.out / "edges.npz", **edge_inputs(parts["evaluation"], random_specs(model)))
    (context.out / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    description = SourceDescription(
        framework=model.framework,
        network=copy_network(model.network, root, context.out),
        weights_file=weights.name,
        inputs=tuple(TensorSpec(name, tensor.shape, tensor.dtype) for name, tensor in model.tensors.items()),
        task=model.task,
        sizes=model.sizes,
        has_data=model.dataset is not None,
        fixed=fixed_specs(model.fixed),
        signature=model.signature,
        outputs=model.outputs,
    )
    (context.out / "source.json").write_text(json.dumps(to_json(description), sort_keys=True), encoding="utf-8")
    if _may_keep_states(model):
        _declare_states(context.out, weights)
    return {"weights_bytes": weights.stat().st_size, "evaluation_samples": len(parts["evaluation"])}


def _height(model: ModelEntry) -> int | None:
    """Return the height of the images that a model of one input takes."""
    shapes = [tensor.shape for tensor in model.tensors.values()]
    return shapes[0][2] if len(shapes) == 1 and len(shapes[0]) == 4 else None


def _declare_states(out: Path, weights: Path) -> None:
    """Replace description and samples by those with the states that the model's file declares, if it does."""
    with temporary_folder("states") as made:
        outputs = dict.fromkeys(STREAM_FILES, MAX_DATASET_BYTES)
        policy = Policy(_STREAM_S, (out,), (made,), memory_for(weights), outputs)
        function = f"{declare_states.__module__}:{declare_states.__name__}"
        run_in_sandbox(function, {"folder": str(out), "out": str(made)}, policy)
        if not (made / "source.json").exists():
            return
        before, now = read_description(out), read_description(made)
        kept = replace(now, inputs=before.inputs, states=before.states)
        if kept != before or now.inputs[: len(before.inputs)] != before.inputs:
            raise ModelFileError("reading states changed more of the description", "states, and their inputs")
        for name in STREAM_FILES:
            if name.endswith(".npz"):
                check_arrays(made / name)
            shutil.copyfile(made / name, out / name)


STAGE = Stage(
    name="fetch",
    settings=_settings,
    limits=_limits,
    toolchain=_toolchain,
    run=fetch,
    reads=(
        "models.{model}",
        "fetch.calibration_samples",
        "fetch.evaluation_samples",
        "fetch.split_seed",
        "fetch.golden_samples",
        "fetch.random_samples",
    ),
    limit_reads=("fetch.max_download_mb", "fetch.download_attempts", "fetch.connect_timeout_s"),
    runs=(),
    leaves_out=_leaves_out,
)
