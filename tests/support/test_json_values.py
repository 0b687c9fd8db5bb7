"""Test that JSON written by stages is read back unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.manifests import manifest_of
from tvmflow.backends.manifest import MANIFEST_NAME, read_manifest
from tvmflow.config.buckets import Sizes
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.frontends.source_model import OutputSpec, SourceDescription, read_outputs, write_outputs
from tvmflow.ir.tir.kernel_schedules import BestSchedule, BestSchedules, KernelSchedule
from tvmflow.pipeline.results import CellResult, RetuneResult, Verdict
from tvmflow.support.errors import StoreError
from tvmflow.support.json_values import from_json, to_json, write_json
from tvmflow.targets.resolve import ResolvedTarget

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
OBJECTS = st.dictionaries(st.text(max_size=3), PLAIN | st.lists(PLAIN, max_size=2), max_size=2)
OUTPUTS = st.lists(st.from_type(OutputSpec), max_size=2).map(tuple)
SIZES = st.none() | st.builds(Sizes, pads=st.lists(NUMBERS, max_size=2).map(tuple))
TARGETS = st.builds(ResolvedTarget, options=OBJECTS)
SCHEDULES = st.builds(BestSchedule, trace=OBJECTS, seconds=st.lists(NUMBERS, max_size=2).map(tuple), flops=NUMBERS)
COMPARISONS = st.none() | st.builds(Comparison, ratio=NUMBERS, low=NUMBERS, high=NUMBERS, confidence=NUMBERS)
VALUES = {
    "manifest": st.builds(
        manifest_of,
        outputs=OUTPUTS,
        target=TARGETS,
        coverage=NUMBERS,
        kernels=st.lists(st.builds(KernelSchedule, operations=NUMBERS), max_size=2).map(tuple),
        part=st.none() | OBJECTS,
        sizes=SIZES,
    ),
    "best schedules": st.builds(
        BestSchedules, records=st.lists(SCHEDULES, max_size=2).map(tuple), part=st.lists(OBJECTS, max_size=2)
    ),
    "source": st.builds(SourceDescription, sizes=SIZES),
    "target": TARGETS,
    "verdict": st.builds(Verdict, comparison=COMPARISONS),
    "re-tune": st.builds(RetuneResult, tuning=OBJECTS, comparison=COMPARISONS, error=st.none()),
}


@pytest.mark.parametrize("what", VALUES)
@settings(max_examples=examples(24))
@given(data=st.data())
def test_a_value_survives_a_round_trip_through_json(what: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[what])
    assert from_json(type(value), json.loads(json.dumps(to_json(value)))) == value


@settings(max_examples=examples(24))
@given(outputs=OUTPUTS)
def test_outputs_survive_a_round_trip(outputs: tuple[OutputSpec, ...], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("outputs")
    write_outputs(folder, outputs)
    assert read_outputs(folder) == outputs


def test_an_error_keeps_its_type() -> None:
    result = CellResult("a@b:c", {"fetch": "hit"}, StoreError("gone", "here", "look"), "tune")
    read = from_json(CellResult, json.loads(json.dumps(to_json(result))))
    assert isinstance(read.error, StoreError) and to_json(read) == to_json(result)


def test_members_that_are_left_out() -> None:
    assert to_json(OutputSpec("y", (1, 2))) == {"name": "y", "shape": [1, 2], "dtype": "float32"}
    assert "sizes" not in to_json(manifest_of()) and to_json(manifest_of())["part"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [({"schema": 1}, "schema: Input should be 2"), ({"network": {}}, "network: file: Field required"), (None, "Input")],
)
def test_another_manifest_is_one_clear_error(change: dict[str, Any] | None, said: str, tmp_path: Path) -> None:
    write_json(tmp_path / MANIFEST_NAME, None if change is None else to_json(manifest_of()) | change)
    with pytest.raises(StoreError, match=f"no library in .*{said}"):
        read_manifest(tmp_path)
