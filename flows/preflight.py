"""Say before a run which cells cannot be run, and which have no device: for commands, and for runs of deployments."""

from __future__ import annotations

import sys

from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.results import CellResult
from tvmflow.report.plans import plan_cells
from tvmflow.support.errors import TvmflowError


def preflight(
    workspace: Workspace,
    cells: list[Cell],
    unknown: dict[str, TvmflowError],
    show_progress: bool,
    measure: bool,
    without_device: bool = False,
) -> tuple[dict[str, CellResult], dict[str, str]]:
    """Return the results of cells that cannot be run, and why others have no device, before Prefect is started.

    A problem that may be temporary, such as a tracker that does not respond, is only reported, since earlier stages
    need no device. unknown: cell -> why its processor is unknown. measure: cells without a device are refused, or wait
    for one that may come. without_device: no cell needs one.
    """
    _, errors, missing = plan_cells(workspace, cells, STAGES, look=True)
    refused, no_device = {}, {}
    for name, error in {**errors, **({} if without_device else missing), **unknown}.items():
        if name in unknown or (not error.retryable and (measure or name in errors)):
            refused[name] = CellResult(name, error=error, failed_stage="preflight")
            continue
        if name in missing and not measure:
            no_device[name] = error.found
        if show_progress:
            sys.stderr.write(f"{name}: {error}\n")
    return refused, no_device
