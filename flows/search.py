"""Search a model's cells for those that meet goals: quantize all candidates, tune the promising ones, measure them.

A candidate that cannot win is left out as early as that is known: after quantize by its accuracy, after each tuning
budget by its numbers. Every stage of a candidate is kept by its recipe key, so a search that was stopped goes on where
it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Cancelled

from flows.dask_runner import task_runner
from flows.prefect_posts import post_within
from flows.run_page import begin_run, run_name
from flows.server_away import keeps_result, run_flow
from flows.stage_tasks import workspace_of
from flows.stopping import cancels_flow, is_stopping, stops_on_signals
from flows.walk import COMPILE_STAGES, EVALUATE_STAGES, walk
from tasks.table import STAGES
from tvmflow.config.workspace import Workspace
from tvmflow.report.search_tables import search_rows
from tvmflow.shipping.search.goals import Candidate, split
from tvmflow.shipping.search.space import (
    Request,
    candidate,
    candidates,
    variant_of,
    why_not,
    with_accuracy,
    with_measurement,
    with_record,
)
from tvmflow.support.errors import StageError, TvmflowError, cause
from tvmflow.support.json_values import from_json, to_json
from tvmflow.tuning.records.shared_log import share_log

_BEFORE_DEVICE = COMPILE_STAGES[: next(at for at, name in enumerate(COMPILE_STAGES) if STAGES[name].measures_device)]


@task(name="quantize_candidates", task_run_name="quantize {cell}", cache_policy=NO_CACHE, persist_result=False)
def quantize_candidates(cell: str, listed: list[Any], goals_drop: float | None) -> list[Any]:
    """Quantize the candidates of a cell, those with the fewest layers in float first, until more cannot help."""
    done: list[Candidate] = []
    for one in (from_json(Candidate, each) for each in listed):
        if is_stopping():
            break
        if done and (same := _cannot_differ(done[-1])):
            done.append(replace(one, state="left out", why=same))
            continue
        done.append(_safely(one, lambda one: _quantize(one, goals_drop)))
    return [to_json(one) for one in done]


def _cannot_differ(fewer: Candidate) -> str:
    """Return why a candidate that may keep more layers in float is the same network as one that may keep fewer."""
    if fewer.state == "left out" and fewer.kept is None:
        return fewer.why
    if fewer.is_settled:
        return f"the same as with at most {fewer.float_layers}: no more layers go back to float"
    return ""


def _quantize(one: Candidate, goal: float | None) -> Candidate:
    variant = variant_of(one)
    walk(variant, variant.params.cell(one.cell), _BEFORE_DEVICE)
    one = with_accuracy(one)
    if goal is not None and one.numbers.drop is not None and one.numbers.drop > goal:
        why = f"accuracy drop {one.numbers.drop:.2%} after quantize, above {goal:.2%}"
        return replace(one, state="left out", why=why)
    return one


@task(name="measure_candidate", task_run_name="{cell}, {trials} trials", cache_policy=NO_CACHE, persist_result=False)
def measure_candidate(cell: str, trials: int, one: Any) -> Any:
    """Tune, build and evaluate a candidate, unless a measurement of the same recipe is known."""
    return to_json(_safely(from_json(Candidate, one), _measure))


def _measure(one: Candidate) -> Candidate:
    variant = variant_of(one)
    cell = variant.params.cell(one.cell)
    walk(variant, cell, _BEFORE_DEVICE)  # of another budget: found by its recipe keys
    known = with_record(one, STAGES)
    if known is not None:
        return known
    share_log(variant, cell)
    walk(variant, cell, (*COMPILE_STAGES, *EVALUATE_STAGES))
    return with_measurement(one)


def _safely(one: Candidate, work: Callable[[Candidate], Candidate]) -> Candidate:
    try:
        return work(one)
    except TvmflowError as error:
        return replace(one, state="failed", why=error.found[:500])
    except Exception as error:
        return replace(one, state="failed", why=StageError(f"ended with {cause(error)}").found[:500])


@flow(name="search", flow_run_name=run_name)
@keeps_result
def search(cells: list[str], request: dict[str, Any], root: str = "") -> Any:
    """Search the cells for candidates that meet the goals of a request. Returns all candidates, as JSON."""
    workspace, wanted = workspace_of(root), from_json(Request, request)
    begin_run(workspace, cells)
    with stops_on_signals():
        found = _explore(workspace, wanted, cells)
    if is_stopping():
        return Cancelled(message="interrupted by the user")
    rows = search_rows(found)
    post_within(lambda: create_table_artifact(key="search", table=rows, description=f"search of {wanted.model}"))
    return [to_json(one) for one in found]


def _explore(workspace: Workspace, request: Request, cells: Sequence[str]) -> list[Candidate]:
    first = request.trials[0]
    every = [candidates(workspace, request, workspace.params.cell(cell), first, STAGES) for cell in cells]
    running, done = [], list[Candidate]()
    for cell, listed in zip(cells, every, strict=True):
        if why := why_not(workspace, workspace.params.cell(cell)):
            done += [replace(one, state="left out", why=why) for one in listed]
            continue
        arguments = [to_json(one) for one in listed]
        running.append((listed, quantize_candidates.submit(cell, arguments, request.goals.max_drop)))
    for listed, future in running:
        returned = future.result(raise_on_failure=False)
        done += [from_json(Candidate, one) for one in returned] if isinstance(returned, list) else _lost(listed)
    front = [one for one in done if one.state == "open"]
    done = [one for one in done if one.state != "open"]
    for at, trials in enumerate(request.trials):
        measured = _spend(workspace, request, front, trials)
        more, front = split(measured, request.goals)
        done += measured if at == len(request.trials) - 1 else more
    return done


def _spend(workspace: Workspace, request: Request, front: Sequence[Candidate], trials: int) -> list[Candidate]:
    """Tune and measure candidates with a budget."""
    running = []
    for one in front if not is_stopping() else ():
        made = candidate(workspace, request, workspace.params.cell(one.cell), trials, one.float_layers, STAGES)
        more = replace(made, kept=one.kept, is_settled=one.is_settled)
        running.append((more, measure_candidate.submit(one.cell, trials, to_json(more))))
    done = []
    for more, future in running:
        returned = future.result(raise_on_failure=False)
        done += [from_json(Candidate, returned)] if isinstance(returned, dict) else _lost([more])
    return done


def _lost(listed: Sequence[Candidate]) -> list[Candidate]:
    return [replace(one, state="failed", why="the worker that ran it was lost") for one in listed]


def run_search(workspace: Workspace, request: Request, cells: Sequence[str]) -> list[Candidate]:
    """Run the flow."""
    with cancels_flow(workspace.root):
        run = search.with_options(task_runner=task_runner(workspace.params.flows))
        state: Any = run_flow(run, list(cells), to_json(request), str(workspace.root))
        return [from_json(Candidate, one) for one in state.result()]
