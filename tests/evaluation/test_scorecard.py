"""Test that scorecards are read as they were written, including those of older versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.report.report_data import card, part
from tests.scorecards import AGREEMENT, accuracy, latency, latency_by_part, scorecard, simulated_part
from tvmflow.devices.gpu.quarantine import DifferingKernel
from tvmflow.devices.gpu_facts import GpuFacts
from tvmflow.devices.session import Executed
from tvmflow.evaluation.latency_summary import Advantage, InState
from tvmflow.evaluation.roofline import Bounds, Ceilings, KernelBound, NoBounds
from tvmflow.evaluation.scorecard import AcceleratorPart, Device, GpuAgreement, GpuNumbers, MachineForm, Scorecard
from tvmflow.support.errors import StoreError

NUMBERS = st.floats(0.001, 1e6)
NAMES = st.text(max_size=5)
LATENCIES = st.builds(
    latency,
    NUMBERS,
    badges=st.lists(NAMES, max_size=2).map(tuple),
    elsewhere=st.sampled_from([(), (InState(None, 1.0, None, None, 0.5), InState(340.0, 2.0, 1.9, 2.1, 0.25))]),
    is_time=st.booleans(),
)
BY_NAME = st.dictionaries(NAMES, LATENCIES, max_size=2)
ADVANTAGES = [Advantage(None, None, None, 0, reason="ran on 4 threads"), Advantage(2.0, 1.9, 2.1, 60, ("busy",), 60.0)]
KERNELS = (KernelBound("a", 2.0, 1.0, 0.5),)
BOUNDS = Bounds({"int8": 1e9}, 4000, Ceilings({"int8": 1e12}, None), 1.0, 0.0, 1.0, None, KERNELS)
GPU = GpuFacts("opencl", "Mali-G72", "ARM Platform", "2.1")
CARDS = st.builds(
    scorecard,
    device=st.builds(Device, NAMES, NAMES, st.integers(1, 64), NAMES, NAMES, st.sampled_from([None, GPU])),
    cold_start_ms=st.lists(NUMBERS, min_size=1, max_size=3).map(tuple),
    latency=st.builds(latency_by_part, LATENCIES),
    peers=BY_NAME,
    sizes=BY_NAME,
    advantages=st.dictionaries(NAMES, st.sampled_from(ADVANTAGES), max_size=2),
    machine=st.none() | st.builds(MachineForm, LATENCIES, st.sampled_from([None, *ADVANTAGES])),
    executed=st.sampled_from([None, Executed(5, 4, 3, 2, 1)]),
    gpu=st.sampled_from([None, GpuNumbers(812.0, 25.0, 0.25, 0.5)]),
    accuracy=st.none() | st.builds(accuracy, NUMBERS),
    agreement_by_step=st.dictionaries(NAMES, st.just(AGREEMENT), max_size=2),
    outputs=st.sampled_from([(), (AGREEMENT, AGREEMENT)]),
    bounds=st.sampled_from([None, NoBounds("busy machine"), BOUNDS]),
    part=st.none() | st.builds(simulated_part, counters=st.dictionaries(NAMES, st.integers()), layers=st.just([{}])),
    kernel_agreement=st.sampled_from([None, GpuAgreement(7, 3, 1e-3, None, DifferingKernel("conv2d", None))]),
    quantization=st.dictionaries(NAMES, NUMBERS, max_size=2),
)


@settings(max_examples=examples(40), deadline=None)
@given(CARDS)
def test_what_is_written_is_read(card: Scorecard) -> None:
    text = json.dumps(card.to_json(), sort_keys=True)
    assert Scorecard.from_json(json.loads(text)) == card
    assert json.dumps(Scorecard.from_json(json.loads(text)).to_json(), sort_keys=True) == text


def test_a_card_of_an_older_version_is_read() -> None:
    later = ("top5", "metric", "outputs", "executed", "gpu", "sizes", "machine", "coverage_estimated", "bounds")
    later += ("peer_variants", "peers_left_out", "kernel_agreement", "first_run_ms", "memory_bytes")
    old = {name: value for name, value in card("digits@local-cpu:float32", 1.0).items() if name not in later}
    read = Scorecard.from_json(old | {"of_another_version": 1})
    assert (read.sizes, read.bounds, read.coverage_estimated, read.median_first_run_ms) == ({}, None, 0.0, None)
    assert read.has_time and read.metrics["latency_ms"] == 1.0 and read.metrics["accuracy"] == 0.9925


def test_keys_without_a_value_are_left_out_and_those_of_a_backend_kept() -> None:
    value = scorecard(part=AcceleratorPart(**part())).to_json()
    assert "bounds" not in value and set(value["device"]) == {"key", "kind", "threads", "unit"}
    assert value["part"] == part() and value["executed"] is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "read: Input should be a dictionary"),
        ([], "read: Input should be a dictionary"),
        ({}, "read: cold_start_ms: Field required"),
        (scorecard().to_json() | {"latency": {"compute": {"median_ms": 1.0}}}, "latency: compute"),
        (scorecard().to_json() | {"batch": "many"}, "batch"),
    ],
)
def test_another_value_is_no_scorecard(value: Any, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        Scorecard.from_json(value)
