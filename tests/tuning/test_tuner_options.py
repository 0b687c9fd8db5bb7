"""Test the options of the tuners by what each of them does."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from tests.search_rules import QUICK_RULES, changed
from tests.tuning.matmul_case import matmul
from tests.tuning.test_measure import Counter
from tvmflow.backends.cpu import host_backend
from tvmflow.config.stage_params import SearchSettings
from tvmflow.ir.tir.workloads import Workload
from tvmflow.support.progress import silent
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.cost_model.boosted_trees import CostModel, Loss
from tvmflow.tuning.cost_model.kernel_features import schedule_features
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.measure.kernel_bench import KernelBench
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK, TuningRecord
from tvmflow.tuning.rules import MeasureRules
from tvmflow.tuning.search.search import _Search
from tvmflow.tuning.search.state import TuneReport, WorkloadSearch
from tvmflow.tuning.search.stopping import StoppingRule
from tvmflow.tuning.search.task_scheduler import TaskScheduler
from tvmflow.tuning.search.tuners import GeneticTuner, GridTuner, ModelTuner, TunerFactory, tuner_factory

SECONDS = {0: 1.0, 1: 1.05, 2: 3.0, 3: 30.0}  # by the one feature


def _scores(loss: Loss) -> list[float]:
    model = CostModel(loss, 0)
    for scale in (1.0, 100.0, 1e-3):  # workloads whose times are not comparable
        for feature, seconds in SECONDS.items():
            model.add(f"of {scale}", {"x": float(feature)}, scale * seconds)
    scores = model.scores([{"x": float(feature)} for feature in SECONDS])
    assert scores is not None
    return [float(score) for score in scores]


def test_reg_predicts_speeds() -> None:
    wanted = [math.log2(1 / seconds + 1e-3) for seconds in SECONDS.values()]
    assert np.allclose(_scores("reg"), wanted, atol=0.3)


def test_rank_predicts_an_order_and_no_speeds() -> None:
    scores = _scores("rank")
    assert scores == sorted(scores, reverse=True) and len({round(score, 3) for score in scores}) == len(scores)


def test_rank_binary_tells_good_ones_from_others_and_no_more() -> None:
    good, also, bad, worse = _scores("rank-binary")
    assert abs(good - also) < 1e-3 and abs(bad - worse) < 1e-3 and good > bad + 1


# -- features --

KNOBS = [{"i": i, "j": j, "k": k} for i, j, k in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 4, 16))]


def _cost(knobs: dict[str, int]) -> float:
    """Seconds of a made-up device: values that are reused often are cheap, too many of them do not fit."""
    held = knobs["i"] * knobs["j"]
    return 1 / knobs["i"] + 1 / knobs["j"] + (held > 16) + 0.1 / knobs["k"]


def _renamed(knobs: dict[str, int]) -> dict[str, int]:
    return {name.upper() * 2: value for name, value in knobs.items()}


def _old_names(knobs: dict[str, int]) -> dict[str, int]:
    return {name[0].lower(): value for name, value in knobs.items()}


@pytest.mark.parametrize("features", ["loops", "curves"])
def test_loops_and_curves_are_the_same_whatever_the_knobs_are_called(features: Any) -> None:
    """What a template taught serves one that makes the same loops by other knobs; knobs say nothing about those."""
    chosen = {}
    for kind in ("knobs", features):
        factory = TunerFactory("xgb", "rank", 0, kind)
        taught = factory.make("one", "t", KNOBS, [64, 64, 64], lambda knobs: matmul(knobs, 64))
        for index, knobs in enumerate(KNOBS):
            taught.tell(index, _cost(knobs))
        others = [_renamed(knobs) for knobs in KNOBS]
        asked = factory.make("two", "t", others, [64, 64, 64], lambda knobs: matmul(_old_names(knobs), 64))
        chosen[kind] = _cost(KNOBS[asked.ask(1)[0]])
    best = min(map(_cost, KNOBS))
    assert chosen[features] < 1.2 * best and chosen["knobs"] > 1.5 * best, chosen


def test_a_ranking_makes_few_schedules_and_each_once() -> None:
    made: list[tuple[int, ...]] = []

    def scheduled(knobs: dict[str, int]) -> Any:
        made.append(tuple(knobs.values()))
        return matmul({"i": 1, "j": 1, "k": 1}, 64)

    many = [{"i": i, "j": 1, "k": 1} for i in range(500)]
    factory = TunerFactory("xgb", "reg", 0, "loops")
    tuner = factory.make("one", "t", many, [64, 64, 64], scheduled)
    for index in range(12):
        tuner.tell(index, 1.0 + index)
    assert len(tuner.ask(4)) == 4
    assert 12 + 40 <= len(made) <= 12 + 64 and len(set(made)) == len(made)


def test_an_illegal_schedule_has_no_features_and_is_no_error() -> None:
    tuner = TunerFactory("xgb", "reg", 0, "curves").make("one", "t", KNOBS, [64, 64, 64], lambda _: None)
    for index in range(20):
        tuner.tell(index, math.inf if index % 2 else 1.0)
    assert len(tuner.ask(4)) == 4


def test_features_of_a_schedule_by_hand() -> None:
    """64 x 64 x 64, tiles of 4 x 8 sums over 16 steps: the innermost loops are 4, 8 and 16 long."""
    function = matmul({"i": 4, "j": 8, "k": 16}, 64)
    loops = schedule_features("loops", function)
    sizes = [loops[f"loop {at} extent"] for at in range(6)]
    assert sizes == [3, 2, 4, 2, 3, 4], "log2, the innermost first: j, i, k, then what is left of k, j, i"
    assert loops["loop 0 inside"] == 3 and loops["loop 0 outside"] == 15 and loops["loop 5 inside"] == 18
    assert (loops["loop 0 vectorized"], loops["loop 5 parallel"], loops["loop 5 vectorized"]) == (1, 1, 0)
    # Within the tile, 16 x 4 x 8 steps: 4 x 8 sums, 4 x 16 of one operand, 16 x 8 of the other; 4 bytes each.
    assert [loops[f"loop 2 bytes {at}"] for at in range(3)] == [7, 8, 9]
    assert [loops[f"loop 2 reuse {at}"] for at in range(3)] == [4, 3, 2]
    curves = schedule_features("curves", function)
    # Sums: each is used 64 times once a whole row of steps is within reach, 128 bytes of them.
    assert curves["curve 0 4"] == 0 and curves["curve 0 8"] == 6
    assert all(curves[f"curve {at} {log}"] <= curves[f"curve {at} {log + 2}"] for at in range(3) for log in (4, 8, 12))
    assert curves["curve 1 24"] == curves["curve 2 24"] == 6, "all of it at once: each value is used 64 times"


# -- the settings reach the search --


def _search(folder: Path, workloads: list[Workload] | None = None, **settings: Any) -> _Search:
    tuning_log = TuningLog(folder / "log.jsonl", "here", {"tvm": "1"})
    rules = changed(QUICK_RULES, **settings)
    workloads = workloads or [canary_workload()]
    return _Search(workloads, host_backend(), rules, tuning_log, folder, silent, None, (), Budget(), None)


@pytest.mark.parametrize("features", get_args(SearchSettings.model_fields["features"].annotation))
def test_the_settings_choose_features_and_loss(features: str, tmp_path: Path) -> None:
    [one] = _search(tmp_path, tuner="xgb", features=features, loss="rank-binary").searches
    assert isinstance(one.tuner, ModelTuner) and one.tuner.model.loss == "rank-binary"
    names = {name.split()[0] for name in one.tuner.features(0)}
    assert {"knobs": "knob", "loops": "loop", "curves": "curve"}[features] in names
    assert features == "knobs" or len(names) == 1


def test_population_is_how_many_have_children() -> None:
    """With two parents alone, every knob of a child is one of theirs."""
    grid = [{"a": a, "b": b} for a in range(12) for b in range(12)]
    bred: dict[int, set[int]] = {}
    for population in (2, 12):
        tuner = tuner_factory(SearchSettings(tuner="ga", population=population)).make("w", "t", grid, [8, 8])
        assert isinstance(tuner, GeneticTuner)
        tuner.mutation = 0.0
        for index in range(0, 144, 13):  # (0, 0), (1, 1), ...: those of small numbers are fast
            tuner.tell(index, 1.0 + index)
        bred[population] = {value for index in tuner.ask(2) if index for value in grid[index].values()}
    assert bred[2] == {0, 1}, "(0, 1) and (1, 0)"
    assert max(bred[12]) > 1


def test_grid_is_the_templates_order_and_random_a_shuffle_by_the_seed() -> None:
    def order(tuner: str, seed: int) -> list[int]:
        return tuner_factory(SearchSettings(tuner=tuner, seed=seed)).make("w", "t", KNOBS, [64] * 3).ask(len(KNOBS))

    assert order("grid", 0) == order("grid", 1) == list(range(len(KNOBS)))
    assert order("random", 0) == order("random", 0) != order("random", 1)
    assert order("random", 0) != order("grid", 0) and sorted(order("random", 0)) == order("grid", 0)


def test_the_log_of_another_network_chooses_the_first_candidate(tmp_path: Path) -> None:
    workload = canary_workload()
    [fresh] = _search(tmp_path, tuner="xgb").searches
    wanted = len(fresh.candidates) // 2
    assert fresh.tuner.ask(1) == [0]
    log = TuningLog(tmp_path / "log.jsonl", "here", {"tvm": "1"})
    extents = tuple(2 * size for size in fresh.extents)
    for index, knobs in enumerate(fresh.candidates):
        distance = sum(abs(value - fresh.candidates[wanted].get(name, 0)) for name, value in knobs.items())
        log.add(
            TuningRecord(
                "another network's", "conv", fresh.template, knobs, None, (1e-3 * (1 + distance),), OK,
                "here", {"tvm": "1"}, f"{index}", extents=extents,
            )
        )  # fmt: skip
    [taught] = _search(tmp_path, [workload], tuner="xgb").searches
    [first] = taught.tuner.ask(1)
    near = {
        name: abs(value - taught.candidates[wanted].get(name, 0)) for name, value in taught.candidates[first].items()
    }
    assert first != 0 and sum(near.values()) <= 2, near
    [chance] = _search(tmp_path, [workload], tuner="grid").searches
    assert chance.tuner.ask(1) == [0]


# -- limits --


def test_early_stopping_counts_trials_without_a_gain() -> None:
    search = WorkloadSearch(
        Workload("w", "w", 1, None),
        "t",
        [{"a": a} for a in range(20)],
        GridTuner([{"a": a} for a in range(20)]),
        (8, 8),
    )
    rules = changed(QUICK_RULES, early_stopping=3, trials_per_workload=20)
    rule = StoppingRule(rules, Budget(), None, TaskScheduler([search], (), 20, 1), TuneReport({}), [search])
    told = []
    for index, seconds in enumerate([8.0, 4.0, 4.0, 5.0, 3.0, 3.0, 3.0, 3.0]):
        search.learn(index, seconds)
        told.append(rule.is_open(search))
    assert told == [True] * 7 + [False], "a gain at the fifth begins anew"
    short = StoppingRule(changed(rules, trials_per_workload=4), *list(vars(rule).values())[1:])
    assert not short.is_open(search) and rule.rules.trials == 20


@pytest.mark.parametrize("repeats", [1, 3, 7])
def test_a_kernel_is_timed_as_often_and_as_long_as_the_settings_say(repeats: int) -> None:
    device, asked = Counter(0), list[float]()

    class Timed(Counter):
        def load(self, library: Path) -> Any:
            kernel = super().load(library)
            whole = kernel.time

            def time(repeat: int, min_repeat_ms: float) -> list[float]:
                asked.append(min_repeat_ms)
                return whole(repeat, min_repeat_ms)

            kernel.time = time  # type: ignore[method-assign]
            return kernel

    session: Any = Timed(0)
    rules = changed(QUICK_RULES, measure_repeats=repeats, measure_min_ms=25.0).measure
    assert rules == MeasureRules(repeats, 25.0)
    arrays = [np.zeros(4, np.float32)]
    bench = KernelBench(Workload("w", "w", 1, None), session, rules, arrays, np.zeros(4, np.float32), None)
    status, seconds, _ = bench.measure(Path("0.001"))
    assert status == OK and len(seconds) == repeats and set(asked) == {25.0}
    assert device.turns == 0
