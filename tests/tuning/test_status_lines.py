"""Test the status lines of a search: before it, during it, and the expected gain."""

from __future__ import annotations

import math

import pytest

from tests.search_rules import QUICK_RULES, changed
from tests.tuning.test_task_scheduler import _prospects, _record, _search
from tvmflow.tuning.expected_gain import ExpectedGain, predict_gain
from tvmflow.tuning.status_lines import (
    add_current_time,
    comparison_text,
    first_ms_of,
    format_first_line,
    gain_text,
    won_text,
)
from tvmflow.tuning.winograd_choice import Alternative

RULES = changed(QUICK_RULES, trials_per_workload=24, min_gain_per_minute=0.02)


def test_the_line_says_time_peer_and_promise_and_is_read_back() -> None:
    promise = gain_text(0.097, 118.0)
    line = format_first_line(0.2104, "", comparison_text(2.13, 2.0, 2.2, "ONNX Runtime"), promise)
    assert line == (
        "first: 0.21 ms with default schedules, 2.1 times as fast as ONNX Runtime; expected tuning gain: about "
        "10% in 2 minutes"
    )
    assert first_ms_of(line) == 0.21 and first_ms_of("building with default schedules") is None
    unsure = format_first_line(0.0147, "others used 79%", comparison_text(2.0, None, None, "ONNX Runtime"), "")
    assert unsure == "first: about 0.0147 ms with default schedules (others used 79%)" and first_ms_of(unsure) == 0.0147
    assert gain_text(0.01, 31.0) == "expected tuning gain: less than 2% in 30 s"
    assert comparison_text(1.01, 0.98, 1.03, "ONNX Runtime") == "no difference shown to ONNX Runtime"


def test_the_search_says_what_the_network_would_take_now() -> None:
    text = f"best 0.08 ms in 3 of 3 kernels, {won_text(0.1)}"
    assert add_current_time(text, 0.2) == f"{text}: about 0.18 ms now, 0.2 ms first"
    assert add_current_time(text, None) == text and add_current_time("best 0.08 ms in 1 of 3 kernels", 0.2).endswith(
        "kernels"
    )


def test_what_is_won_is_of_the_times_with_default_schedules() -> None:
    one, two = _search("a", 3.0, calls=2), _search("b", 2.0)
    scheduler = _prospects(one, two)
    assert scheduler.won() == 0.0
    one.learn(1, 1.0)
    assert scheduler.won() == pytest.approx(1 / 3), "of the first 2 s of 3 are believed, calls 2"
    two.learn(1, 0.01)
    assert scheduler.won() == pytest.approx(0.5)
    direct, tiles = _search("direct", 4.0), _search("f4", 1.0)
    way = Alternative("key", 4, (direct.workload,), (tiles.workload,))
    scheduler = _prospects(direct, tiles, alternatives=(way,))
    assert scheduler.won() == 0.0, "the default network may have the quicker way"
    tiles.learn(1, 0.8)
    assert scheduler.won() == pytest.approx(0.2)
    assert _prospects(one, _search("not measured yet")).won() is None


def test_a_search_promises_what_candidates_of_its_templates_won() -> None:
    usual = predict_gain([_search("a", 1.0), _search("b", 1.0)], RULES, [], math.inf)
    assert usual is not None and 0.02 < usual.share < 0.2 and 5 < usual.seconds < 60
    known = [_record(s, f"k{at}") for at in range(60) for s in (1.0, 0.7, 0.6, 0.6, 0.6)]
    more = predict_gain([_search("a", 1.0), _search("b", 1.0)], RULES, known, math.inf)
    assert more is not None and more.share > 2 * usual.share
    cut = predict_gain([_search("a", 1.0), _search("b", 1.0)], RULES, [], 3.0)
    assert cut is not None and cut.seconds == 3.0 and cut.share < usual.share


def test_a_search_that_is_over_promises_nothing() -> None:
    assert predict_gain([], RULES, [], math.inf) is None
    assert predict_gain([_search("a", *[1.0] * 24)], RULES, [], math.inf) is None
    assert isinstance(predict_gain([_search("a", 1.0)], RULES, [], math.inf), ExpectedGain)
