"""Make the candidates of a search, and read what is known of one: from its folders, and from MLflow.

In:  a workspace and a request
Out: candidates; each is a variant of the workspace, so that a search leaves the cells of the workspace alone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tvmflow.backends.registry import backend_for
from tvmflow.config.overrides import CellOverrides
from tvmflow.config.params import PRECISIONS, Cell, Params
from tvmflow.config.workspace import Workspace, make_variant, workspace_at
from tvmflow.evaluation.quality import drop_after_quantize
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.pipeline.stage import AnyStage
from tvmflow.pipeline.store import Plan, Store
from tvmflow.shipping.search.goals import Candidate, Goals, Numbers
from tvmflow.support.errors import StoreError, UnknownNameError, UsageError
from tvmflow.support.json_values import read_json
from tvmflow.tracking.mlflow.address import sqlite_path
from tvmflow.tracking.mlflow.history import runs_with
from tvmflow.tracking.mlflow.notes import notes_of
from tvmflow.tracking.result_tables import held_reasons

_OWN = "overrides"  # the key that only variants set
_METRICS = (
    *("latency_ms.median", "latency_ms.low", "latency_ms.high", "memory_bytes", "library_bytes"),
    *("accuracy", "accuracy.source", "agreement.top1_agreement"),
)


@dataclass(frozen=True)
class Request:
    """What to search. targets, precisions, float_layers, trials: () for the default of each: all targets of listed
    cells of the model, what the target computes in, none and as many as params.yaml allows, a third and all of
    tune.trials_per_workload.
    """

    model: str
    targets: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    float_layers: tuple[int, ...] = ()
    trials: tuple[int, ...] = ()
    goals: Goals = field(default_factory=Goals)


def fill(params: Params, request: Request) -> Request:
    """Return the request with its defaults. Raises UnknownNameError, or UsageError for numbers out of order."""
    for word, names, legal in (
        ("model", (request.model,), params.models),
        ("target", request.targets, params.targets),
        ("precision", request.precisions, PRECISIONS),
    ):
        for name in names:
            if name not in legal:
                raise UnknownNameError(f"no {word} {name!r}", legal=sorted(legal), name=name)
    most = params.tune.trials_per_workload
    listed = tuple(dict.fromkeys(cell.target for cell in params.cells.values() if cell.model == request.model))
    if not request.targets and not listed:
        raise UsageError(f"{request.model} has no cell under cells:", "targets", "name them with --targets")
    for word, numbers in (("float layers", request.float_layers), ("trials", request.trials)):
        if list(numbers) != sorted(set(numbers)) or any(number < 0 for number in numbers):
            raise UsageError(f"{word} {', '.join(map(str, numbers))}", "numbers from 0, the smallest first")
    return replace(
        request,
        targets=request.targets or listed,
        float_layers=request.float_layers or tuple(sorted({0, params.quantize.int8.max_float_layers})),
        trials=request.trials or tuple(sorted({max(1, most // 3), most} if most else {0})),
    )


def precisions_of(params: Params, target: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the precisions to try on a target: those that it computes in without an accelerator of its own."""
    supported = backend_for(params.targets[target]).precisions
    legal = supported or tuple(name for name in PRECISIONS if name not in ("vta_int8", "float16_acc32"))
    return tuple(name for name in wanted if name in supported or not supported) if wanted else legal


def cells_of(params: Params, request: Request) -> list[Cell]:
    """Return the cells of a request. Raises UsageError if no target computes in the precisions."""
    cells = [
        Cell.model_validate({"model": request.model, "target": target, "precision": precision})
        for target in request.targets
        for precision in precisions_of(params, target, request.precisions)
    ]
    if not cells:
        raise UsageError(
            f"{', '.join(request.targets)} do not compute in {', '.join(request.precisions)}", "other precisions"
        )
    return cells


def candidates(
    workspace: Workspace, request: Request, cell: Cell, trials: int, stages: Mapping[str, AnyStage]
) -> list[Candidate]:
    """Return the candidates of a cell at one budget, those with the fewest float layers first."""
    layers = request.float_layers if cell.precision == "int8" else (None,)
    return [candidate(workspace, request, cell, trials, allowed, stages) for allowed in layers]


def candidate(
    workspace: Workspace,
    request: Request,
    cell: Cell,
    trials: int,
    allowed: int | None,
    stages: Mapping[str, AnyStage],
) -> Candidate:
    """Return a candidate, for which the folder of its variant is made. allowed: layers in float."""
    params = workspace.params
    own, usual = params.overrides.get(str(cell), CellOverrides()), params.quantize.int8
    int8 = own.int8.given
    if allowed is not None:
        drop = usual.max_drop if request.goals.max_drop is None else request.goals.max_drop
        int8 |= _unless_usual("max_float_layers", allowed, usual.max_float_layers)
        int8 |= _unless_usual("max_drop", drop, usual.max_drop)
    tune = own.tune.given | _unless_usual("trials_per_workload", trials, params.tune.trials_per_workload)
    overrides = CellOverrides.model_validate({"int8": int8, "tune": tune})
    variant = make_variant(workspace, cell, overrides, _shared(stages))
    return Candidate(str(cell), overrides, trials, str(variant.address), allowed)


def _unless_usual(name: str, value: float | None, usual: float | None) -> dict[str, float | None]:
    """Return the key with its value, None where params.yaml has the same for all cells."""
    return {name: None if value == usual else value}


def _shared(stages: Mapping[str, AnyStage]) -> list[str]:
    """Return the stages before the first that overrides can change."""
    names = list(stages)
    return names[: next(at for at, stage in enumerate(stages.values()) if _OWN in stage.reads)]


def why_not(workspace: Workspace, cell: Cell) -> str:
    """Return why a cell is not looked at, "" if it is: its quarantine."""
    return "; ".join(held_reasons(workspace, str(cell)))


def variant_of(one: Candidate) -> Workspace:
    """Return the variant of a candidate."""
    return workspace_at(Path(one.place))


def with_accuracy(one: Candidate) -> Candidate:
    """Return a quantized candidate with its accuracy and how many layers are in float."""
    variant = variant_of(one)
    cell = variant.params.cell(one.cell)
    facts = read_record(variant.folder("quantize", cell) / RECORD_NAME).facts
    inputs = {stage: variant.folder(stage, cell) for stage in ("fetch", "import_model", "quantize")}
    drop = drop_after_quantize(inputs, variant.params.models[cell.model].metric)
    if one.float_layers is None:
        return replace(one, numbers=Numbers(drop=drop))
    kept = len(facts.get("moved_to_float", ()))
    is_settled = kept < one.float_layers or facts.get("goal_met") is not False
    return replace(one, kept=kept, is_settled=is_settled, numbers=Numbers(drop=drop))


def with_measurement(one: Candidate) -> Candidate:
    """Return an evaluated candidate with its numbers. Raises StoreError."""
    variant = variant_of(one)
    file = variant.folder("evaluate", variant.params.cell(one.cell)) / "scorecard.json"
    try:
        card = read_json(Scorecard, file)
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {error}", "the scorecard of evaluate") from None
    latency = card.latency.compute
    if card.accuracy is not None:
        drop: float | None = card.accuracy.source - card.accuracy.built
    else:
        drop = _flipped(card.agreement.top1_agreement)
    is_time = card.has_time and latency.is_time
    numbers = Numbers(
        drop,
        latency.median_ms if is_time else None,
        latency.low_ms if is_time else None,
        latency.high_ms if is_time else None,
        card.memory_bytes,
        card.library_bytes,
        ", ".join(latency.badges),
    )
    return replace(one, state="measured", numbers=numbers)


def _flipped(agreement: float | None) -> float | None:
    return None if agreement is None else 1 - agreement


def with_record(one: Candidate, stages: Mapping[str, AnyStage]) -> Candidate | None:
    """Return a candidate with the numbers of a measurement in MLflow, None without one.

    One with the same recipe key of tune is of the same network, budget, tools and kind of device.
    """
    variant = variant_of(one)
    cell = variant.params.cell(one.cell)
    plan = Store(variant, stages).plan("tune", cell)
    if not isinstance(plan, Plan):
        return None
    workspace = workspace_at(variant.root)
    file = sqlite_path(workspace)
    if file is not None and not file.exists():
        return None
    try:
        runs = runs_with(workspace, cell.model, ("cell", "recipe.tune", "latency.badges"), _METRICS)
    except StoreError:
        return None  # the server is away: what it knows is measured again
    runs = [run for run in runs if run.data.tags["cell"] == one.cell]
    runs = [run for run in runs if notes_of(run.data).get("recipe.tune") == plan.key]
    if not runs:
        return None
    found, badges = runs[-1].data.metrics, runs[-1].data.tags.get("latency.badges", "")
    drop = _flipped(found.get("agreement.top1_agreement"))
    if "accuracy" in found and "accuracy.source" in found:
        drop = found["accuracy.source"] - found["accuracy"]
    numbers = Numbers(drop, *(found.get(name) for name in _METRICS[:5]))
    return replace(one, state="recorded", numbers=replace(numbers, badges=badges))
