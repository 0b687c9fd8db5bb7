"""Search a model's cells for those that meet goals, and write what was chosen into params.yaml."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.api.quiet import wait_for_quiet
from tvmflow.api.workspace import Where, open_workspace
from tvmflow.shipping.search.goals import Candidate, Goals, choose, pareto
from tvmflow.support.errors import StoreError
from tvmflow.support.json_values import to_json

if TYPE_CHECKING:
    from tvmflow.config.params import Params


@dataclass(frozen=True)
class SearchResult:
    """What a search found. best: the candidates that no other of their target beats in everything; chosen: target ->
    the fastest that meets the goals, absent where none does.
    """

    model: str
    goals: Goals
    targets: tuple[str, ...]
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> list[Candidate]:
        return pareto(self.candidates)

    @property
    def chosen(self) -> Mapping[str, Candidate]:
        return choose(self.candidates, self.goals)

    @property
    def unmet(self) -> tuple[str, ...]:
        """Return the targets without a candidate that meets the goals."""
        return tuple(target for target in self.targets if target not in self.chosen)

    def to_json(self) -> dict[str, Any]:
        best, chosen = self.best, list(self.chosen.values())
        rows = [to_json(one) | {"is_best": one in best, "is_chosen": one in chosen} for one in self.candidates]
        return {"model": self.model, "goals": asdict(self.goals), "candidates": rows, "unmet": list(self.unmet)}


def search(
    model: str,
    goals: Goals | None = None,
    workspace: Where = None,
    targets: Sequence[str] = (),
    precisions: Sequence[str] = (),
    float_layers: Sequence[int] = (),
    trials: Sequence[int] = (),
    wait_quiet_s: float = 0.0,
    show_progress: bool = False,
) -> SearchResult:
    """Search precisions, layers kept in float and tuning budgets of a model. The workspace's cells stay as they are.

    targets: default: those of the model's cells. float_layers, trials: to try, the smallest first; default: none and
    quantize.int8.max_float_layers, a third and all of tune.trials_per_workload. What was done before, also by a search
    that was stopped, is not done again.
    """
    from tasks.table import STAGES
    from tvmflow.shipping.search.space import Request, candidates, cells_of, fill

    where = open_workspace(workspace)
    asked = Request(model, tuple(targets), tuple(precisions), tuple(float_layers), tuple(trials), goals or Goals())
    request = fill(where.params, asked)
    cells = cells_of(where.params, request)
    refused = _refused(where, cells, show_progress)
    going = [str(cell) for cell in cells if str(cell) not in refused]
    found = [
        Candidate(one.cell, one.overrides, one.trials, one.place, one.float_layers, state="failed", why=why)
        for cell in cells
        if (why := refused.get(str(cell)))
        for one in candidates(where, request, cell, request.trials[0], STAGES)
    ]
    if going:
        wait_for_quiet(where, wait_quiet_s, show_progress)
        found = [*_run(where, request, going, show_progress), *found]
    return SearchResult(model, request.goals, request.targets, tuple(found))


def _refused(workspace: Any, cells: Sequence[Any], show_progress: bool) -> dict[str, str]:
    """Return cell -> why it cannot be run."""
    from flows.preflight import preflight
    from tvmflow.devices.probe_driver import ask_drivers
    from tvmflow.setup.preflight import ask_processors
    from tvmflow.tracking.mlflow.store import check_store

    check_store(workspace)
    ask_drivers(workspace.root, workspace.params, [cell.target for cell in cells])
    found, _ = preflight(workspace, list(cells), ask_processors(workspace, cells), show_progress, measure=True)
    return {name: result.error.found for name, result in found.items() if result.error is not None}


def _run(workspace: Any, request: Any, cells: Sequence[str], show_progress: bool) -> list[Candidate]:
    from flows.settings import configure_prefect, wait_for_prefect
    from flows.stage_server import stage_server
    from tvmflow.api.runs import shown

    if show_progress:
        sys.stderr.write("starting Prefect ...\n")
    configure_prefect(workspace)
    with stage_server():
        from flows.live_runs import mark_dead_runs
        from flows.search import run_search

        wait_for_prefect()
        mark_dead_runs(workspace)
        with shown(len(cells), show_progress, False):
            return run_search(workspace, request, cells)


def write_search_page(result: SearchResult, path: Path | None = None, workspace: Where = None) -> Path:
    """Write the page of a search to `path` or search-MODEL.html of the workspace. Returns where it is."""
    from tvmflow.report.page import search_page
    from tvmflow.report.search_tables import search_data
    from tvmflow.support.files import write_atomic

    file = path or open_workspace(workspace).root / f"search-{result.model}.html"
    goals = result.goals
    limits = {
        "drop": goals.max_drop,
        "latency_ms": goals.max_latency_ms,
        "memory_bytes": goals.max_memory_bytes,
        "library_bytes": goals.max_library_bytes,
    }
    write_atomic(file, search_page(search_data(result.model, limits, result.candidates, result.best, result.chosen)))
    return file


def write_chosen(result: SearchResult, workspace: Where = None) -> tuple[str, ...]:
    """Write the chosen cells and their overrides into params.yaml, whose comments stay. Returns the names of the cells.

    `run` then finds their libraries by the recipe keys. Raises StoreError if nothing was chosen.
    """
    from flows.project_pipeline import refresh
    from tvmflow.setup.yaml_editor import add_entry, set_entry
    from tvmflow.support.files import write_atomic

    where = open_workspace(workspace)
    if not result.chosen:
        raise StoreError(f"the search of {result.model} chose nothing", "a candidate that meets the goals")
    params, text, written = where.params, where.params_path.read_text(encoding="utf-8"), []
    for one in result.chosen.values():
        cell = params.cell(one.cell)
        name = params.cell_name(cell)
        if name is None:
            name = _free_name(params, "-".join((cell.model, cell.target, cell.precision)))
            text = add_entry(text, "cells", name, cell.model_dump(mode="json"), compact=True)
        own = {key: value for key, value in one.overrides.model_dump(mode="json", exclude_none=True).items() if value}
        if own or one.cell in params.overrides:
            text = set_entry(text, "overrides", one.cell, own)
        written.append(name)
    write_atomic(where.params_path, text)
    refresh(where)
    return tuple(written)


def _free_name(params: Params, wanted: str) -> str:
    """Return a legal name that no cell has."""
    names = (wanted[:60], *(f"{wanted[:60]}-{number}" for number in range(2, 1000)))
    return next(name for name in names if name not in params.cells)
