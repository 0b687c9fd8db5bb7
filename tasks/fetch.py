"""fetch: bring weights, labels and data of a model into one folder.

In:  the model's entry in params.yaml
Out: model.* (weights or whole model), source.json, labels.json, calibration.npz, evaluation.npz, golden.npz
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.run_alone import main
from tvmflow.artifacts import sha256_of
from tvmflow.errors import SourceError
from tvmflow.frontends.source_model import SourceDescription
from tvmflow.frontends.table import TOOLS
from tvmflow.params import Cell
from tvmflow.sources import datasets
from tvmflow.sources.datasets import Samples, SplitSizes
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.labels import BUILT_IN, read_labels
from tvmflow.sources.weights import WeightsRequest, bring_weights, companions, factory_file, local_file
from tvmflow.stages import Stage, StageContext
from tvmflow.workspace import Workspace


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    model, block = workspace.params.models[cell.model], workspace.params.fetch
    entry = model.model_dump(mode="json")
    files = {}
    if model.weights.file is not None:
        path = local_file(model.weights.file, workspace.root)
        files["weights"] = sha256_of(path)
        files |= {name: sha256_of(part) for name, part in companions(model.framework, path).items()}
    factory = factory_file(model.network)
    if factory is not None:
        if not (workspace.root / factory).is_file():
            raise SourceError(
                f"no file {workspace.root / factory}",
                "the file of the network factory",
                "correct network: in params.yaml",
            )
        files["network"] = sha256_of(workspace.root / factory)
    for what, name, built_in in (("dataset", model.dataset, {"digits"}), ("labels", model.labels, set(BUILT_IN))):
        if name is not None and name not in built_in:
            path = workspace.root / name
            if not path.is_file():
                raise SourceError(
                    f"no {what} file {path}", f"a file, or one of {sorted(built_in)}", f"correct {what}: in params.yaml"
                )
            files[what] = sha256_of(path)
    return {
        "model": entry,
        "files": files,
        "calibration_samples": block.calibration_samples,
        "evaluation_samples": block.evaluation_samples,
        "golden_samples": block.golden_samples,
        "random_samples": block.random_samples,
        "split_seed": block.split_seed,
    }


def _limits(workspace: Workspace, _cell: Cell) -> dict[str, Any]:
    block = workspace.params.fetch
    return {
        "max_bytes": block.max_download_mb * 1_000_000,
        "attempts": block.download_attempts,
        "timeout_s": block.connect_timeout_s,
    }


def _toolchain(settings: dict[str, Any]) -> tuple[str, ...]:
    """Weights that are made here depend on the framework; weights that are brought depend on nothing but their bytes."""
    made = any(settings["model"]["weights"].get(kind) is not None for kind in ("train", "seeded"))
    tools = TOOLS[settings["model"]["framework"]] if made else ()
    return (*tools, "numpy", *(("scikit-learn",) if settings["model"]["dataset"] == "digits" else ()))


def fetch(context: StageContext) -> dict[str, Any]:
    """Fill the folder; returns the sizes of what came."""
    settings, model = context.settings, context.settings["model"]
    parts = _data(context)
    weights = bring_weights(
        WeightsRequest(
            framework=model["framework"], network=model["network"], weights=model["weights"], root=context.root,
            limits=DownloadLimits(**context.limits), downloads=context.root / "artifacts" / ".downloads",
        ),
        context.out, parts.get("train"), context.progress,
    )  # fmt: skip
    for name in ("calibration", "evaluation"):
        parts[name].save(context.out / f"{name}.npz")
    network = _own_network(context, model["network"])
    golden = settings["golden_samples"]
    Samples(parts["evaluation"].x[:golden], None).save(context.out / "golden.npz")
    labels = _labels(model["labels"], context.root)
    (context.out / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    description = SourceDescription(
        framework=model["framework"], network=network, weights_file=weights.name,
        input_name=model["input"]["name"], input_shape=tuple(model["input"]["shape"]),
    )  # fmt: skip
    (context.out / "source.json").write_text(json.dumps(asdict(description), sort_keys=True), encoding="utf-8")
    return {"weights_bytes": weights.stat().st_size, "evaluation_samples": len(parts["evaluation"].x)}


def _own_network(context: StageContext, network: str | None) -> str | None:
    """Copy a factory of the user's own, so that later stages use the very file that this key is made of."""
    path = factory_file(network)
    if path is None or network is None:
        return network
    shutil.copyfile(context.root / path, context.out / "network.py")
    return f"network.py:{network.split(':')[1]}"


def _data(context: StageContext) -> dict[str, Samples]:
    settings, model = context.settings, context.settings["model"]
    shape = tuple(model["input"]["shape"])
    if model["dataset"] is None:
        inputs = datasets.random_inputs(settings["random_samples"], shape[1:], settings["split_seed"])
        return {"calibration": inputs, "evaluation": inputs}
    raw = datasets.load_dataset(model["dataset"], context.root)
    prepare = model["preprocess"]
    ready = Samples(datasets.preprocess(raw.x, prepare["scale"], tuple(prepare["mean"]), tuple(prepare["std"])), raw.y)
    datasets.check_fits(ready, shape, f"data set {model['dataset']}")
    split = datasets.split(
        ready, SplitSizes(settings["calibration_samples"], settings["evaluation_samples"], settings["split_seed"])
    )
    return {"train": split.train, "calibration": split.calibration, "evaluation": split.evaluation}


def _labels(name: str | None, root: Path) -> list[str] | None:
    if name is None:
        return None
    return BUILT_IN[name] if name in BUILT_IN else read_labels(root / name)


STAGE = Stage(name="fetch", module="tasks.fetch", settings=_settings, limits=_limits, toolchain=_toolchain, run=fetch)

if __name__ == "__main__":
    main("fetch")
