"""Test what is kept of a stage's progress."""

from __future__ import annotations

from tvmflow.support.progress import StepTimes


def test_each_kind_of_step_is_kept_once_with_its_beginning() -> None:
    now, heard = [0.0], list[tuple[str, int, int]]()
    steps = StepTimes(lambda *given: heard.append(given), lambda: now[0])
    for text, seconds in (("loading", 1.0), ("trial 3 of 9", 2.5), ("trial 4 of 9", 0.5), ("linking", 1.0)):
        steps(text, 1, 2)
        now[0] += seconds
    assert steps.steps == (("loading", 0.0), ("trial 3 of 9", 1.0), ("linking", 4.0)) and steps.elapsed_s == 5.0
    assert heard == [(text, 1, 2) for text in ("loading", "trial 3 of 9", "trial 4 of 9", "linking")]


def test_a_stage_that_tells_without_end_keeps_a_few() -> None:
    steps = StepTimes(lambda *_: None)
    for at in range(1000):
        steps(f"step {'x' * at}", 0, 0)
    assert len(steps.steps) == 100 and max(len(text) for text, _ in steps.steps) <= 120
