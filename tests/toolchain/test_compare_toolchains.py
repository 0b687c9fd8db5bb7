"""Test the comparison of two versions of TVM: environments, kernels by workload, both libraries in turns."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasks.table import STAGES
from tests.conftest import CELL
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.turn_statistics import BLOCKS
from tvmflow.ir.tir.kernel_schedules import KernelSchedule
from tvmflow.shipping.compare_toolchains import compare_toolchains, kernel_ratios
from tvmflow.shipping.retune_plan import compile_stages
from tvmflow.support.errors import StageError, UsageError
from tvmflow.toolchain.tvm_environments import own_tvm, python_with_tvm

OLD = os.environ.get("TVMFLOW_OLD_TVM", "")


@dataclass
class Profiled:
    """A library as its profile shows it: name of a kernel -> milliseconds of a run. noise: of round after round."""

    times: dict[str, float]
    noise: tuple[float, ...] = (1.0, 1.01, 0.99)
    places: int = 1
    rounds: Any = field(init=False)

    def __post_init__(self) -> None:
        self.rounds = itertools.cycle(self.noise)

    @property
    def model(self) -> Profiled:
        return self

    def relocate(self) -> None:
        self.places += 1

    def profile(self, runs: int) -> list[tuple[str, int, int]]:
        now = next(self.rounds)
        return [(name, runs, round(1e6 * runs * ms * now)) for name, ms in self.times.items()]


def _kernels(**workloads: str) -> tuple[KernelSchedule, ...]:
    return tuple(KernelSchedule(name, work, "record", "any", 1.0, "float32", 0) for name, work in workloads.items())


def test_kernels_are_matched_by_what_they_compute() -> None:
    before = Profiled({"conv": 1.0, "dense": 0.5, "pool": 0.1}), _kernels(conv="c", dense="d", pool="p")
    after = Profiled({"conv1": 1.2, "dense": 0.5, "relu": 0.2}), _kernels(conv1="c", dense="d", relu="r")
    rows = {row.workload: row for row in kernel_ratios(before, after)}  # type: ignore[arg-type]
    assert list(rows) == ["c", "d", "r", "p"], "the slowest first"
    assert before[0].places == after[0].places == BLOCKS
    conv, dense = rows["c"], rows["d"]
    assert conv.kernel == "conv1" and conv.ratio == pytest.approx(1.2, rel=1e-3)
    assert conv.low is not None and conv.low > 1.1 and dense.low is not None and dense.high is not None
    assert dense.low <= 1 <= dense.high
    assert (rows["r"].before_ms, rows["r"].ratio, rows["p"].after_ms, rows["p"].ratio) == (None, None, None, None)
    nothing = Profiled({}), ()
    assert kernel_ratios(nothing, nothing) == [], "a device without a profile"  # type: ignore[arg-type]


def test_versions_of_tvm() -> None:
    own = own_tvm()
    for wanted in (own, ".".join(own.split(".")[:2])):
        assert python_with_tvm(wanted) == (Path(sys.executable), own)
    for wrong in ("", "0", "newest", "0.26; rm -rf", "--help", "0.26 @ https://host"):
        with pytest.raises(UsageError, match="the version of TVM"):
            python_with_tvm(wrong)


@pytest.mark.heavy
def test_a_stage_that_fails_is_named_with_its_last_words(copy_of_finished: Path) -> None:
    workspace = Workspace(copy_of_finished)
    cell = workspace.params.cell(CELL)
    false = Path("/bin/false"), "0.1.0"
    with pytest.raises(StageError, match="fetch of digits_torch@local-cpu:float32 in /bin/false failed: exit 1"):
        compare_toolchains(workspace, cell, (false, false), ["fetch"], lambda _: None)


@pytest.mark.needs_old_tvm
@pytest.mark.skipif(not OLD, reason="needs an environment with another TVM: make test")
def test_libraries_of_two_versions_are_measured_in_turns(copy_of_finished: Path) -> None:
    workspace, said = Workspace(copy_of_finished), list[str]()
    cell = workspace.params.cell(CELL)
    tools = (Path(OLD), "0.26.0"), (Path(sys.executable), own_tvm())
    stages = [stage.name for stage in compile_stages(STAGES)]
    found = compare_toolchains(workspace, cell, tools, stages, said.append)
    assert found.comparison is not None and found.comparison.low <= found.comparison.ratio <= found.comparison.high
    assert 0.2 < found.comparison.ratio < 5 and f"{CELL}: build with TVM 0.26.0" in said
    matched = [kernel for kernel in found.kernels if kernel.ratio is not None]
    assert len(matched) >= 5 and all(kernel.low is not None for kernel in matched)
    assert found.origins is not None and sum(found.origins.values()) >= 5
