"""Add to a run's page in Prefect: name and tags with its cells, stage logs, scorecards and links to MLflow."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from flows.live_runs import hold_run
from flows.prefect_posts import post_within
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.report.tables import scorecard, scorecard_markdown
from tvmflow.tracking.mlflow.recorded import run_page

MOST_TAGS = 50
_MOST_LINES = 500  # per stage
_LONGEST_LINE = 2000
_LOG_EVERY_S = 5.0


def run_name() -> str:
    """Return a name for the flow run that is about to start: its flow and its cells."""
    parameters: dict[str, Any] = flow_run.parameters
    cells = parameters.get("cells", parameters.get("cell")) or "all cells"
    text = (
        cells if isinstance(cells, str) else ", ".join(cells[:3]) + (f" and {len(cells) - 3}" if len(cells) > 3 else "")
    )
    return f"{flow_run.flow_name} {text}"[:200]


def begin_run(workspace: Workspace, cells: list[str]) -> None:
    """Show that the run lives, and tag it with its cells, for the UI, the API and automations."""
    run = flow_run.id
    if run is None:
        return
    hold_run(workspace, run)
    logging.getLogger("prefect.task_runs").addFilter(_says_something)
    tags = sorted({*flow_run.tags, *cells[:MOST_TAGS]})

    def tag() -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(run, tags=tags)

    post_within(tag)


def _says_something(record: logging.LogRecord) -> bool:
    """Return whether a row of the log is worth reading: each stage says by itself how it ended, and Prefect again."""
    return not record.getMessage().startswith("Finished in state Completed(")


class StageLog:
    """Forwards a stage's progress, log lines and result to Prefect. what: the stage and its cell, as rows begin: the
    rows of all stages of a run are in one list.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what, self.logger = path, what, get_run_logger()
        self.text, self.told, self.lines, self.offset = "", time.monotonic(), 0, 0

    def progress(self, text: str, done: int, total: int) -> None:
        """Log a new text at once, progress every few seconds."""
        what, now = re.sub(r"[\d.]+", "", text), time.monotonic()
        if what != self.text or now - self.told > _LOG_EVERY_S:
            self.text, self.told = what, now
            self._log(f"{self.what}: {text}" + (f" ({done} of {total})" if total else ""))
            self.forward()

    def forward(self) -> None:
        """Log the new complete lines of the stage's log."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(1 << 20)
        except OSError:
            return
        end = data.rfind(b"\n") + 1
        self.offset += end
        for line in data[:end].decode("utf-8", errors="replace").splitlines():
            if line.strip():
                self._log(line)

    def _log(self, line: str) -> None:
        self.lines += 1
        if self.lines < _MOST_LINES:
            self.logger.info("%s", line[:_LONGEST_LINE])
        elif self.lines == _MOST_LINES:
            self.logger.info("more lines are in %s", self.path)

    def end(self, outcome: str) -> None:
        self.forward()
        self.logger.info("%s", outcome)


def artifact_key(text: str) -> str:
    """Return a legal Prefect key: lower case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def show_cell(workspace: Workspace, cell: Cell) -> None:
    """Add the scorecard of a cell and its page in MLflow to the run. Errors are ignored."""
    post_within(lambda: _show_cell(workspace, cell))


def _show_cell(workspace: Workspace, cell: Cell) -> None:
    card = scorecard(workspace, cell)
    if card is not None:
        key = artifact_key(str(cell))
        create_markdown_artifact(scorecard_markdown(card), key=f"scorecard-{key}", description=f"scorecard of {cell}")
        page = run_page(workspace, cell)
        if page is not None:
            create_link_artifact(
                page,
                link_text=f"measurement of {cell} in MLflow",
                key=f"mlflow-{key}",
                description="`mlflow ui` has to run there; TVMFLOW_MLFLOW_UI names another address",
            )
