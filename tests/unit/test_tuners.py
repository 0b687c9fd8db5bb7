"""Tuners: every one tries each candidate once, the default first unless it was taught; those that learn need fewer trials than chance."""

from __future__ import annotations

import math
from itertools import product
from statistics import mean

import pytest

from tvmflow.tuning.tuners import TUNERS, TunerFactory, describe

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


def test_features_have_one_length_for_all_workloads_of_a_template() -> None:
    lengths = {len(describe(extents, CANDIDATES[0])) for extents in ([1, 2], EXTENTS, [])}
    assert len(lengths) == 1
