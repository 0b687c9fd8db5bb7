"""Run each stage as a Prefect task, cached by its recipe key and retried after device or network failures."""

from __future__ import annotations

import contextlib
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE, CachePolicy
from prefect.logging import get_run_logger
from prefect.serializers import JSONSerializer
from prefect.tasks import Task

from flows.dask_runner import started_cluster
from flows.device_queue import device_turn
from flows.events import PREVIEW, tell
from flows.outcome_lines import outcome_line
from flows.prefect_posts import post
from flows.run_page import StageLog
from flows.stage_process import StageRequest, run_stage
from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, find_workspace
from tvmflow.pipeline.store import Plan, Store
from tvmflow.support.errors import TvmflowError, first_line
from tvmflow.support.progress import Progress
from tvmflow.tuning.status_lines import FIRST, add_current_time, first_ms_of

_PREVIEW_S = 60.0  # time limit of the preview


@dataclass
class RecipePolicy(CachePolicy):  # type: ignore[misc]
    """Cache policy: the key of a task is the recipe key of its stage; other arguments are ignored."""

    def compute_key(
        self, task_ctx: Any, inputs: dict[str, Any], flow_parameters: dict[str, Any], **_kwargs: Any
    ) -> str | None:
        key = inputs.get("key")
        return f"{inputs['request']['stage']}/{inputs['slug']}/{key}" if key else None


def is_worth_a_retry(_task: Any, _task_run: Any, state: Any) -> bool:
    """Return whether a failure may be temporary: of devices and networks, not of compilers or gates."""
    try:
        state.result()
    except TvmflowError as error:
        return error.retryable
    except Exception:
        return False
    return False


class _ProgressForwarder:
    """Forwards progress to listeners at once, and to Prefect's artifact every two seconds at most."""

    def __init__(self, workspace: Workspace, cell: str, stage: str, first_ms: float | None) -> None:
        self.cell, self.stage, self.last, self.first_ms, self.end = cell, stage, 0.0, first_ms, "done"
        self.artifact: Any = None
        self.place, self.workspace = workspace.params.cell(cell), workspace
        self.log = StageLog(workspace.log_path(stage, self.place), f"{stage} {cell}")

    def __enter__(self) -> _ProgressForwarder:
        tell(self.cell, self.stage, "started", 0, 0)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _trace: Any) -> None:
        self.log.end(outcome_line(self.workspace, self.stage, self.place, f"failed: {error}" if error else self.end))
        tell(self.cell, self.stage, "failed" if kind else self.end, 0, 0)

    def progress(self, text: str, done: int, total: int) -> None:
        text = add_current_time(text, self.first_ms)
        tell(self.cell, self.stage, text, done, total)
        self.log.progress(text, done, total)
        if total and time.monotonic() - self.last > 2:
            self.last = time.monotonic()
            post(lambda: self._show(100.0 * done / total, text))

    def _show(self, percent: float, text: str) -> None:
        if self.artifact is None:
            self.artifact = create_progress_artifact(percent, description=f"{self.stage} {self.cell}: {text}")
        else:
            update_progress_artifact(self.artifact, percent)


def _preview(workspace: Workspace, request: StageRequest) -> float | None:
    """Run the preview of a stage and return its latency in milliseconds; a failure only costs a line."""
    first: list[float | None] = [None]

    def hear(text: str, done: int, total: int) -> None:
        first[0] = first_ms_of(text) or first[0]
        tell(request.cell, PREVIEW, text, done, total)

    tell(request.cell, PREVIEW, "started", 0, 0)
    try:
        run_stage(replace(request, preview=True, timeout_s=_PREVIEW_S), hear, workspace.digests)
    except TvmflowError as error:
        hear(f"{FIRST}not measured: {first_line(error, 160)}", 0, 0)
    finally:
        tell(request.cell, PREVIEW, "done", 0, 0)
    return first[0]


def _turn(workspace: Workspace, stage: str, cell: str, progress: Progress) -> AbstractContextManager[None]:
    """Hold the device of a cell for a stage that measures it, against other machines."""
    wanted = workspace.params.cell(cell)
    is_estimated = STAGES[stage].keeps_log and workspace.params.tune_of(wanted).without_device
    if is_estimated or not STAGES[stage].measures_device:
        return contextlib.nullcontext()
    device = workspace.params.targets[wanted.target].device
    return device_turn(workspace, device, f"{cell} {stage}", progress)


def _task_for(stage: str, workspace: Workspace, is_hit: bool, first_ms: float | None) -> Task[..., dict[str, Any]]:
    flows = workspace.params.flows
    cached = STAGES[stage].is_cached

    def run(request: dict[str, Any], slug: str, key: str | None) -> dict[str, Any]:
        if is_hit:  # Prefect did not know the key: a colleague's run made it, or one with another Prefect server
            cell = workspace.params.cell(request["cell"])
            get_run_logger().info("%s", outcome_line(workspace, stage, cell, "hit"))
            return {"stage": stage, "slug": slug, "key": key, "outcome": "hit"}
        with _ProgressForwarder(workspace, request["cell"], stage, first_ms) as shown:
            with _turn(workspace, stage, request["cell"], shown.progress):
                outcome = run_stage(StageRequest(**request), shown.progress, workspace.digests)
            shown.end = "done" if outcome == "made" else outcome
        return {"stage": stage, "slug": slug, "key": key, "outcome": outcome}

    return task(
        name=stage,
        task_run_name=f"{stage} {{request[cell]}}",
        cache_policy=RecipePolicy() if cached else NO_CACHE,
        persist_result=cached,
        result_serializer=JSONSerializer(object_encoder=None, object_decoder=None),
        retries=flows.device_retries,
        retry_delay_seconds=flows.retry_delay_s,
        retry_jitter_factor=0.5,
        retry_condition_fn=is_worth_a_retry,
    )(run)


def run_stage_task(workspace: Workspace, stage: str, cell: Cell, again: bool = False, unit: str = "") -> str:
    """Run one stage as a Prefect task and return hit, restored or made. A cache hit is used only if the store
    agrees. unit: of the device to measure on, "" for any.
    """
    store = Store(workspace, STAGES)
    plan = store.plan(stage, cell)
    key = plan.key if isinstance(plan, Plan) and STAGES[stage].is_cached else None
    timeout_s = workspace.params.flows.timeout_s[stage]
    request = StageRequest(
        stage, str(cell), str(workspace.address), timeout_s, again, unit=unit, dask=started_cluster()
    )
    is_hit = plan.is_hit and not again
    first_ms = _preview(workspace, request) if STAGES[stage].preview and not plan.is_hit else None
    work = _task_for(stage, workspace, is_hit, first_ms)
    if is_hit:
        tell(str(cell), stage, "hit", 0, 0)
    else:
        work = work.with_options(refresh_cache=True)  # Prefect has a result whose files are gone
    state: Any = work(asdict(request), cell.slug, key, return_state=True)
    return "hit" if is_hit else str(state.result()["outcome"])


def cells_of(workspace: Workspace, cells: list[str] | None) -> list[str]:
    """Return the full names of the cells in a flow's parameter; by default all listed in params.yaml."""
    named = [workspace.params.cell(cell) for cell in cells or ()]
    return [str(cell) for cell in named or workspace.params.cells.values()]


def workspace_of(root: str) -> Workspace:
    """Return the workspace of a flow's parameter; '' is the nearest one above the current folder."""
    return find_workspace(Path(root) if root else None)
