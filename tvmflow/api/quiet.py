"""Wait for an idle machine before a measurement."""

from __future__ import annotations

import sys

from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.machine_load import wait_until_quiet
from tvmflow.support.errors import UsageError


def wait_for_quiet(workspace: Workspace, limit_s: float, show_progress: bool) -> None:
    """Wait until others use at most evaluate.max_foreign_load of this machine, up to a limit. Raises UsageError for a
    limit below 0.
    """
    if limit_s < 0:
        raise UsageError(f"{limit_s:g} s to wait for a quiet machine", "a number of seconds; 0: do not wait")
    if limit_s == 0:
        return
    most = workspace.params.evaluate.max_foreign_load
    said = False

    def tell(share: float | None) -> None:
        nonlocal said
        if show_progress and not said:
            used = "an unknown share" if share is None else f"{share:.0%}"
            sys.stderr.write(f"others use {used} of this machine, at most {most:.0%}: waiting up to {limit_s:g} s\n")
        said = True

    if not wait_until_quiet(limit_s, most, tell) and show_progress:
        sys.stderr.write(f"the machine was not quiet within {limit_s:g} s: going on\n")
