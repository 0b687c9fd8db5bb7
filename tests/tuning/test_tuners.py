"""Test the tuners: each tries every candidate once, the default first if untrained; learning ones need fewer trials."""

from __future__ import annotations

import math
from itertools import product
from statistics import mean
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.golden.networks import TARGETS, cases
from tvmflow.backends.cpu import CpuBackend
from tvmflow.ir.tir.workloads import anchor_extents
from tvmflow.tuning.cost_model.kernel_features import knob_features
from tvmflow.tuning.search.tuners import TUNERS, GeneticTuner, TunerFactory, knob_key

CANDIDATES = [
    {"c_tile": c, "w_tile": w, "h_tile": h, "chunk": chunk, "unroll": u}
    for u, chunk, h, w, c in product((0, 1), (1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8))
]
EXTENTS = [1, 8, 56, 56, 16, 8, 3, 3, 16]


def seconds(knobs: dict[str, int], scale: float = 1.0) -> float:
    """A device that likes 16 accumulators, middling chunks and no unrolling; more than 28 do not fit."""
    held = knobs["c_tile"] * knobs["w_tile"] * knobs["h_tile"]
    if held > 64:
        return math.inf
    return scale * (1 + abs(math.log2(held) - 4) + 0.3 * abs(math.log2(knobs["chunk"]) - 1) + 0.2 * knobs["unroll"])


def best_after(name: str, trials: int, seed: int, factory: TunerFactory | None = None) -> float:
    factory = factory or TunerFactory(name, "rank", seed)
    tuner = factory.make("w", "t", CANDIDATES, EXTENTS)
    best, asked = math.inf, 0
    while asked < trials:
        for index in tuner.ask(min(4, trials - asked)):
            asked += 1
            time = seconds(CANDIDATES[index])
            tuner.tell(index, time)
            best = min(best, time)
    return best


@pytest.mark.parametrize("name", TUNERS)
def test_the_default_comes_first_and_nothing_twice(name: str) -> None:
    tuner = TunerFactory(name, "reg", 0).make("w", "t", CANDIDATES[:40], EXTENTS)
    asked: list[int] = []
    while batch := tuner.ask(7):
        for index in batch:
            tuner.tell(index, seconds(CANDIDATES[index]))
        asked += batch
    assert asked[0] == 0 and sorted(asked) == list(range(40))


@pytest.mark.parametrize("name", TUNERS)
def test_what_an_earlier_run_measured_is_not_asked_again(name: str) -> None:
    tuner = TunerFactory(name, "reg", 0).make("w", "t", CANDIDATES[:20], EXTENTS)
    for index in (0, 3, 5):
        tuner.tell(index, 1.0)
    rest: list[int] = []
    while batch := tuner.ask(5):
        rest += batch
    assert sorted(rest) == [at for at in range(20) if at not in (0, 3, 5)]


@pytest.mark.parametrize("name", ["xgb", "ga"])
def test_learning_beats_chance_at_equal_trials(name: str) -> None:
    learned = mean(best_after(name, 48, seed) for seed in range(8))
    chance = mean(best_after("random", 48, seed) for seed in range(8))
    assert learned <= chance


@pytest.mark.parametrize("loss", ["reg", "rank", "rank-binary"])
def test_what_one_shape_taught_serves_the_next(loss: str) -> None:
    taught, ignorant = [], []
    for seed in range(6):
        factory = TunerFactory("xgb", loss, seed)  # type: ignore[arg-type]
        for at in range(0, len(CANDIDATES), 5):
            knobs = CANDIDATES[at]
            factory.learn("other", "t", [1, 16, 28, 28, 16, 16, 3, 3, 16], knobs, seconds(knobs, 0.3))
        taught.append(best_after("xgb", 8, seed, factory))
        ignorant.append(best_after("xgb", 8, seed))
    assert mean(taught) < mean(ignorant)


@pytest.mark.parametrize("loss", ["reg", "rank", "rank-binary"])
def test_the_first_candidate_is_the_models_where_another_shape_taught_it(loss: str) -> None:
    factory = TunerFactory("xgb", loss, 0)  # type: ignore[arg-type]
    for knobs in CANDIDATES[::3]:
        factory.learn("other", "t", [1, 16, 28, 28, 16, 16, 3, 3, 16], knobs, seconds(knobs, 0.3))
    tuner = factory.make("w", "t", CANDIDATES, EXTENTS)
    first, second = tuner.ask(1), tuner.ask(1)
    assert second == [0]
    assert seconds(CANDIDATES[first[0]]) < seconds(CANDIDATES[0]) / 2


LOSSES = ("reg", "rank", "rank-binary")
# As of a processor with matrix tiles: two families, each with knobs that the other has not.
TILES = [{"c_tile": c, "h_tile": h, "tiles": 1} for c in (1, 2, 3) for h in (1, 2)]
FAMILIES = TILES + [
    {"c_tile": c, "h_tile": h, "unroll": u, "dot": 1} for u in (0, 1) for c in (1, 2, 4) for h in (1, 2)
]


def _cost(knobs: dict[str, int]) -> float:
    """Seconds; some candidates fail. One family is better than the other, but for its worst."""
    if sum(knobs.values()) % 7 == 6:
        return math.inf
    return (1.0 if knobs.get("tiles") else 2.0) * (1 + abs(knobs.get("c_tile", 0) - 2) + knobs.get("unroll", 0))


def _search(factory: TunerFactory, workload: str, candidates: list[dict[str, int]], extents: list[int]) -> list[int]:
    """Ask for every candidate; return the order."""
    tuner, asked = factory.make(workload, "t", candidates, extents), []
    while batch := tuner.ask(6):
        for index in batch:
            tuner.tell(index, _cost(candidates[index]))
        asked += batch
    assert sorted(asked) == list(range(len(candidates)))
    return asked


_families = st.lists(
    st.dictionaries(
        st.sampled_from(["c_tile", "w_tile", "chunk", "tiles", "dot", "unroll", "rows_first"]),
        st.lists(st.integers(0, 16), min_size=1, max_size=3, unique=True),
        max_size=5,
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize(
    ("name", "loss"), [("xgb", loss) for loss in LOSSES] + [(n, "rank") for n in TUNERS if n != "xgb"]
)
@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(families=_families, others=_families, extents=st.lists(st.integers(1, 4096), max_size=12))
def test_candidates_may_have_any_knobs_in_any_workload(
    name: str, loss: Any, families: list[dict[str, list[int]]], others: list[dict[str, list[int]]], extents: list[int]
) -> None:
    factory = TunerFactory(name, loss, 0)
    for workload, spaces in (("one", families), ("two", others)):
        candidates = [
            dict(zip(space, values, strict=True))
            for space in spaces
            for values in list(product(*space.values()))[:10]  # every fit of the model takes its time
        ]
        _search(factory, workload, list({knob_key(knobs): knobs for knobs in candidates}.values()), extents)


@pytest.mark.parametrize(
    ("name", "loss"), [("xgb", loss) for loss in LOSSES] + [(n, "rank") for n in TUNERS if n != "xgb"]
)
def test_every_tuner_searches_the_kernels_of_a_processor_with_matrix_tiles(name: str, loss: Any) -> None:
    """One factory for all, as in a stage: what one kernel taught is asked for the next, whose knobs are others."""
    target, factory, mixed = TARGETS["sapphirerapids"], TunerFactory(name, loss, 0), 0
    for case in cases(target):
        match = CpuBackend(target).template_for(case.workload.function)
        assert match is not None
        template, candidates = match
        few = candidates[:: len(candidates) // 12 + 1]
        mixed += len({tuple(sorted(knobs)) for knobs in few}) > 1
        tuner = factory.make(case.workload.key, template.name, few, anchor_extents(case.workload.function))
        asked: list[int] = []
        while batch := tuner.ask(8):
            for index in batch:
                tuner.tell(index, 1e-3 * (1 + (7 * index) % 13))
            asked += batch
        assert sorted(asked) == list(range(len(few))), case.name
    assert mixed >= 3


def test_the_model_learns_which_family_is_faster() -> None:
    for loss in LOSSES:
        factory = TunerFactory("xgb", loss, 0)  # type: ignore[arg-type]
        _search(factory, "other", FAMILIES, EXTENTS)
        first, *_ = factory.make("w", "t", FAMILIES, [1, 4, 14, 14]).ask(4)
        assert _cost(FAMILIES[first]) == min(map(_cost, FAMILIES)), loss


def test_the_children_of_two_families_are_of_either_and_legal() -> None:
    tuner = GeneticTuner(FAMILIES, "0")
    inside, outside = 0, len(TILES)
    children = [tuner._child(inside, outside) for _ in range(400)]
    legal = {child for child in children if child is not None}
    assert any(child < outside for child in legal) and any(child >= outside for child in legal)
    assert children.count(None) < len(children) / 2


def test_features_have_one_length_for_all_workloads_of_a_template() -> None:
    lengths = {len(knob_features(extents, CANDIDATES[0])) for extents in ([1, 2], EXTENTS, [])}
    assert len(lengths) == 1
