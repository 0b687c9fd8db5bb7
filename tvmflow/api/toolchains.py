"""Compare two versions of TVM on a device, before an upgrade."""

from __future__ import annotations

import sys
from dataclasses import replace

from tvmflow.api.quiet import wait_for_quiet
from tvmflow.api.workspace import CellName, Where, cells_of, open_workspace
from tvmflow.pipeline.results import ToolchainComparison
from tvmflow.support.errors import TvmflowError, UsageError


def compare_toolchains(
    before: str,
    after: str,
    *cells: CellName,
    workspace: Where = None,
    wait_quiet_s: float = 0.0,
    show_progress: bool = False,
) -> tuple[ToolchainComparison, ...]:
    """Build cells (default: those of params.yaml) with two versions of TVM and measure both libraries in turns.

    before, after: as 0.26, each in an environment of its own, which is made if it is not this one's. The cells of the
    workspace stay as they are. A cell that fails has an `error`; the others go on.
    """
    from tasks.table import STAGES
    from tvmflow.devices.device_lock import describe_work, shown_path
    from tvmflow.shipping.compare_toolchains import compare_toolchains as compare
    from tvmflow.shipping.retune_plan import compile_stages
    from tvmflow.toolchain.tvm_environments import python_with_tvm

    where = open_workspace(workspace)
    wanted = cells_of(where, cells)

    def say(text: str) -> None:
        if show_progress:
            sys.stderr.write(f"{text}\n")

    say(f"environments with TVM {before} and {after} ...")
    tools = python_with_tvm(before), python_with_tvm(after)
    if tools[0] == tools[1]:
        raise UsageError(f"{before} and {after} are both TVM {tools[0][1]}", "two versions")
    wait_for_quiet(where, wait_quiet_s, show_progress)
    stages = [stage.name for stage in compile_stages(STAGES)]
    found = []
    for cell in wanted:
        describe_work(f"{shown_path(where.root)} {cell.slug} compare-toolchains")
        row = ToolchainComparison(str(cell), tools[0][1], tools[1][1])
        try:
            row = compare(where, cell, tools, stages, say)
        except TvmflowError as error:
            say(f"{cell}: failed: {error.found}")
            row = replace(row, error=error)
        found.append(row)
    return tuple(found)
