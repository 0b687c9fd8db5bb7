"""Test the choice of schedules and tiles by kernel times within a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.devices.agents import BACKEND
from tests.faults.here import here
from tvmflow.codegen.lower import lower
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tir.workloads import Workload, extract_workloads
from tvmflow.passes.kernel.apply_schedules import default_schedule
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.pipeline import canonicalize
from tvmflow.schedules.registry import apply_template
from tvmflow.tuning.choose_in_network import choose_in_network
from tvmflow.tuning.compare_networks import KernelTimes, NetworkComparison, NetworkConfig
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK, TuningRecord
from tvmflow.tuning.records.traces import trace_json
from tvmflow.tuning.winograd_choice import find_alternatives

_TOOLS = {"test": "1"}


@pytest.fixture(scope="module")
def packed() -> Any:
    """Return a network of one convolution, which Winograd's algorithm can compute, and a softmax."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Softmax(-1))
    return PackChannels(16)(canonicalize(ExportedModel(module.eval(), (TensorSpec("x", (1, 16, 16, 16)),)).to_relax()))


class _Clock(NetworkComparison):
    """Tells times instead of measuring them: of a kernel by its workload key and by the rank of its schedule, 0 for the
    default.
    """

    def __init__(self, packed: Any, tuning_log: TuningLog, folder: Path, times: dict[str, dict[int, float]]) -> None:
        super().__init__(packed, BACKEND, tuning_log, folder, here)
        self.times, self.asked, self.slow = times, 0, 1.0

    def kernels(self, one: NetworkConfig, two: NetworkConfig) -> tuple[KernelTimes, KernelTimes]:
        self.asked += 1
        self.slow *= 2.0  # the clock gets slower from turn to turn
        first, second = (
            {
                w.key: self.slow * self.times.get(w.key, {}).get(_rank(form.schedules.get(w.key)), 1.0)
                for w in extract_workloads(self.lowered(form))
            }
            for form in (one, two)
        )
        return first, second


def _rank(record: TuningRecord | None) -> int:
    return int(record.name) if record else 0


def _record(workload: Workload, rank: int, seconds: float) -> TuningRecord:
    """Return the record of a workload's candidate of a rank from 1, the last ones first, so that none is the
    default.
    """
    match = BACKEND.template_for(workload.function)
    assert match is not None
    template, candidates = match
    knobs = candidates[-rank]
    trace = trace_json(apply_template(workload.function, template, knobs))
    return TuningRecord(
        workload.key, str(rank), template.name, knobs, trace, (seconds,), OK, BACKEND.kernel_kind, _TOOLS, ""
    )


def _softmax_of(packed: Any) -> Workload:
    return next(w for w in extract_workloads(lower(packed, BACKEND)) if "softmax" in w.name)


@pytest.mark.parametrize(
    ("default", "first", "second", "expected"),
    [(1.0, 0.5, 0.7, 1), (1.0, 0.5, 0.4, 2), (1.0, 1.2, 1.3, 0), (1.0, 1.005, 1.0, 1)],
    ids=["fastest alone", "second alone", "default", "less than noise"],
)
def test_a_kernel_gets_the_schedule_that_is_fastest_within_the_network(
    packed: Any, tmp_path: Path, default: float, first: float, second: float, expected: int
) -> None:
    softmax = _softmax_of(packed)
    tuning_log = TuningLog(tmp_path / "log.jsonl", BACKEND.kernel_kind, _TOOLS)
    records = [_record(softmax, 1, 1e-6), _record(softmax, 2, 1.1e-6)]
    for record in records:
        tuning_log.add(record)
    clock = _Clock(packed, tuning_log, tmp_path, {softmax.key: {0: default, 1: first, 2: second}})
    chosen = choose_in_network(clock, [], {softmax.key: records[0]}, {})
    assert chosen is not None and chosen.winograd == {}
    found = chosen.best[softmax.key]
    made = default_schedule(softmax.function, BACKEND.template_for(softmax.function))
    assert made is not None
    knobs = [made[1], records[0].knobs, records[1].knobs]
    assert found.knobs == knobs[expected] and knobs.count(found.knobs) == 1
    assert found.trace == (trace_json(made[0]) if expected == 0 else records[expected - 1].trace)


@pytest.mark.parametrize("faster", [True, False])
def test_a_convolution_gets_the_tile_that_is_fastest_within_the_network(
    packed: Any, tmp_path: Path, faster: bool
) -> None:
    base = extract_workloads(lower(packed, BACKEND))
    ways = find_alternatives(packed, BACKEND, base, {"float32": 1.0})
    best = {w.key: _record(w, 1, 1e-6) for w in [*base, *(w for way in ways for w in way.added)]}
    tuning_log = TuningLog(tmp_path / "log.jsonl", BACKEND.kernel_kind, _TOOLS)
    added = {w.key for way in ways if way.m == 4 for w in way.added}
    clock = _Clock(packed, tuning_log, tmp_path, {key: {0: 9.0, 1: 0.01 if faster else 9.0} for key in added})
    [key] = list_convolution_keys(packed)
    chosen = choose_in_network(clock, ways, best, {})
    assert chosen is not None and chosen.winograd == ({key: 4} if faster else {})
    asked = clock.asked
    clock.asked, clock.slow = 0, 1.0
    early = choose_in_network(clock, ways, best, {}, lambda: False)
    assert early is not None and clock.asked == 1 < asked and early.winograd == {}, "by the kernels alone, as fast"


def test_nothing_is_chosen_where_the_device_does_not_tell(packed: Any, tmp_path: Path) -> None:
    class _Silent(_Clock):
        def kernels(self, one: NetworkConfig, two: NetworkConfig) -> tuple[KernelTimes, KernelTimes]:
            return {}, {}

    tuning_log = TuningLog(tmp_path / "log.jsonl", BACKEND.kernel_kind, _TOOLS)
    assert choose_in_network(_Silent(packed, tuning_log, tmp_path, {}), [], {}, {}) is None
