"""Build a cell with two versions of TVM, each in its own environment, and measure both libraries in turns.

Each version makes every stage up to the library in a variant of the workspace, with the schedules of its own tuning;
the second starts from the records of the first, as a re-tune does. Libraries need no TVM, so one session measures both.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from tvmflow.backends.manifest import read_manifest
from tvmflow.config.overrides import CellOverrides
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Variant, Workspace, make_variant
from tvmflow.devices.network_forms import network_library
from tvmflow.devices.restartable import Restartable
from tvmflow.devices.session import RemoteModel
from tvmflow.evaluation.turn_statistics import BLOCKS, CONFIDENCE, ratio_between
from tvmflow.ir.tir.kernel_schedules import KernelSchedule
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.pipeline.results import KernelRatio, ToolchainComparison
from tvmflow.shipping.side_by_side import Pair, compare_on_device, inputs_of, started
from tvmflow.support.errors import StageError, StageTimeoutError, error_words
from tvmflow.support.own_packages import own_module
from tvmflow.support.paths import CODE_ROOT
from tvmflow.tuning.records.shared_log import share_log

_PROFILES = 2 * BLOCKS  # of each library, in turns
_RUNS = 10  # of one profile


def compare_toolchains(
    workspace: Workspace,
    cell: Cell,
    tools: tuple[tuple[Path, str], tuple[Path, str]],
    stages: Iterable[str],
    say: Callable[[str], None],
) -> ToolchainComparison:
    """Build with both and measure. tools: interpreter and version of TVM of each; stages: up to the library."""
    own = workspace.params.overrides.get(str(cell), CellOverrides())
    names = list(stages)
    built = []
    for python, version in tools:
        variant = make_variant(workspace, cell, own, (), f"TVM {version}")
        share_log(variant, cell)
        for stage in names:
            say(f"{cell}: {stage} with TVM {version}")
            _run(python, variant, cell, stage)
        built.append(variant)
    say(f"{cell}: measuring both in turns")
    found: list[KernelRatio] = []
    folders = [one.folder("build", cell) for one in built]
    manifests = [read_manifest(folder) for folder in folders]
    inputs = inputs_of(workspace, cell)
    forms = [
        network_library(folder, manifest.outputs, manifest.network.device)
        for folder, manifest in zip(folders, manifests, strict=True)
    ]
    first, second = (functools.partial(started, form, inputs) for form in forms)

    def look(pair: Pair) -> None:
        before, after = ((library, of.kernels) for library, of in zip(pair, manifests, strict=True))
        found.extend(kernel_ratios(before, after))

    comparison = compare_on_device(workspace, cell, (first, second), look)
    origins = read_record(built[1].folder("tune", cell) / RECORD_NAME).facts.get("kernels")
    return ToolchainComparison(str(cell), tools[0][1], tools[1][1], comparison, tuple(found), origins)


def _run(python: Path, variant: Variant, cell: Cell, stage: str) -> None:
    """Run a stage in the environment of a version. Raises StageError with its last words."""
    command = [str(python), "-P", "-m", own_module("tasks"), stage, str(cell), "--root", str(variant.address)]
    search = os.pathsep.join(filter(None, (str(CODE_ROOT), os.environ.get("PYTHONPATH"))))
    limit = variant.params.flows.timeout_s[stage]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=limit, env={**os.environ, "PYTHONPATH": search}
        )
    except subprocess.TimeoutExpired:
        raise StageTimeoutError(
            f"{stage} of {cell} in {python} took longer than {limit:g} s", f"flows.timeout_s.{stage}"
        ) from None
    if done.returncode:
        raise StageError(
            f"{stage} of {cell} in {python} failed: {error_words(done.stderr) or f'exit {done.returncode}'}",
            hint=f"run it by hand: {' '.join(command)}",
        )


def kernel_ratios(
    before: tuple[Restartable, Sequence[KernelSchedule]], after: tuple[Restartable, Sequence[KernelSchedule]]
) -> list[KernelRatio]:
    """Profile two libraries in turns, each with its kernels; return the kernels by workload, the slowest first.

    Each block of rounds has the libraries at other places in memory, so that the intervals include what that changes.
    They hold together, so that of many kernels none differs by chance.
    """
    rounds = []
    for at in range(_PROFILES):
        if at and at % (_PROFILES // BLOCKS) == 0:
            before[0].relocate()
            after[0].relocate()
        rounds.append((_profile(before[0].model, before[1]), _profile(after[0].model, after[1])))
    names = {one.workload: one.name for one in (*before[1], *after[1])}
    rows, workloads = [], dict.fromkeys((*rounds[0][0], *rounds[0][1]))
    for workload in workloads:
        old, new = ([one[side][workload] for one in rounds if workload in one[side]] for side in (0, 1))
        row = KernelRatio(names.get(workload, workload), workload, _median(old), _median(new))
        if len(old) == len(new) == _PROFILES and min(*old, *new) > 0:
            found = ratio_between(old, new, confidence=1 - (1 - CONFIDENCE) / len(workloads))
            row = replace(row, ratio=found.value, low=found.low, high=found.high)
        rows.append(row)
    return sorted(rows, key=lambda row: -(row.after_ms or row.before_ms or 0.0))


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _profile(model: RemoteModel, kernels: Sequence[KernelSchedule]) -> dict[str, float]:
    """Return workload (of other functions: their name) -> milliseconds of all its calls in one run."""
    workloads = {one.name: one.workload for one in kernels}
    found: dict[str, float] = {}
    for name, calls, nanoseconds in model.profile(_RUNS):
        key = workloads.get(name, name)
        found[key] = found.get(key, 0.0) + nanoseconds / max(calls, 1) / 1e6
    return found
