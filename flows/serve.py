"""Register the scheduled re-tune with a Prefect server, and run it here when it is due."""

from __future__ import annotations

import os
from typing import Any

from prefect.deployments.runner import RunnerDeployment

from flows.notify import notification_block
from flows.retune import retune
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StageError, first_line


def scheduled_retune(workspace: Workspace) -> RunnerDeployment:
    """Return the deployment: every champion, at the times of flows.retune_cron."""
    params = workspace.params
    deployment: Any = retune.to_deployment(
        name="scheduled",
        cron=params.flows.retune_cron,
        parameters={"root": str(workspace.root)},
        description="Re-tune every champion after an upgrade of TVM or of another tool.",
    )
    return deployment  # type: ignore[no-any-return]


def serve_schedule(workspace: Workspace) -> None:
    """Serve until interrupted; runs one at a time. Raises StageError when the server is gone."""
    from prefect import serve

    if workspace.params.flows.notify is not None:
        notification_block(workspace.params.flows.notify)  # checked now rather than at the end of the first run
    try:
        serve(scheduled_retune(workspace), limit=1)
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        raise StageError(
            f"serving the schedule stopped: {first_line(cause)}",
            f"a Prefect server at {os.environ.get('PREFECT_API_URL')} that stays up",
            "restart the server and run 'tvmflow serve' again",
        ) from error
