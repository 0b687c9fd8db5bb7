"""The source runs beside its import, its errors come first, and it may reject inputs at the edges."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tvmflow.evaluation import source_runs
from tvmflow.evaluation.agreement import Noise
from tvmflow.evaluation.source_runs import SourceRuns, run_at_edges, running_source
from tvmflow.frontends.source_model import Arrays
from tvmflow.support.errors import ModelFileError


class _Source:
    def __init__(self, runs_in_forks: bool = True) -> None:
        self.runs_in_forks = runs_in_forks

    def use_threads(self, threads: int) -> None:
        assert threads == 1


def _process() -> SourceRuns:
    return SourceRuns((np.array([os.getpid()]),), {})


def _reject() -> SourceRuns:
    raise ModelFileError("the source rejects its inputs")


@pytest.fixture(autouse=True, params=[True], ids=["fork"])
def forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork or not, whatever memory the tests before have taken."""
    monkeypatch.setattr(source_runs, "can_fork", lambda: request.param)


def _measure(expected: Arrays) -> tuple[Noise, ...]:
    """Return the processes of the runs and of this, as noise."""
    return (Noise(float(expected[0][0]), float(os.getpid())),)


def _ran_in(source: Any) -> int:
    with running_source(source, _process, _measure) as beside:
        process = int(beside.runs().expected[0][0])
        assert beside.noise() == (Noise(process, process),)
        return process


def test_it_runs_in_a_process_of_its_own_if_it_can() -> None:
    assert _ran_in(_Source()) != os.getpid()
    assert _ran_in(_Source(runs_in_forks=False)) == os.getpid()


@pytest.mark.parametrize("forks", [False], indirect=True)
def test_a_large_one_runs_here() -> None:
    assert _ran_in(_Source()) == os.getpid()


@pytest.mark.parametrize("forks", [False, True], indirect=True)
def test_its_error_comes_before_that_of_the_import(forks: None) -> None:
    source: Any = _Source()
    with pytest.raises(ModelFileError, match="rejects its inputs"), running_source(source, _reject, _measure):
        raise ValueError("the import")
    with pytest.raises(ModelFileError, match="rejects its inputs"), running_source(source, _reject, _measure) as beside:
        beside.runs()
    with pytest.raises(ValueError, match="the import"), running_source(source, _process, _measure):
        raise ValueError("the import")
    with pytest.raises(ValueError, match="the import"), running_source(source, _process, _measure) as beside:
        beside.runs()
        raise ValueError("the import")


@pytest.mark.parametrize("forks", [False, True], indirect=True)
def test_noise_that_cannot_be_measured_beside_the_import_is_measured_here(forks: None) -> None:
    here = os.getpid()

    def measure(expected: Arrays) -> tuple[Noise, ...]:
        if os.getpid() != here:
            raise MemoryError
        return _measure(expected)

    source: Any = _Source()
    with running_source(source, _process, measure) as beside:
        assert beside.noise()[0].sqnr_db == here
    with pytest.raises(ModelFileError), running_source(source, _reject, measure) as beside:
        beside.noise()


def test_edges_that_the_source_rejects_or_answers_without_numbers_are_left_out() -> None:
    class Root:
        def run(self, *inputs: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
            if inputs[0].min() < 0:
                raise ModelFileError("negative")
            with np.errstate(divide="ignore"):
                return (1 / inputs[0],)

    edges = {"zero": (np.zeros((1, 2)),), "negative": (-np.ones((1, 2)),), "usual": (np.array([[1.0, 2], [4, 5]]),)}
    found = run_at_edges(Root(), edges, 1)
    assert list(found) == [("usual", 0), ("usual", 1)]
    np.testing.assert_array_equal(found["usual", 1][0], [[0.25, 0.2]])


def test_runs_are_the_same_behind_a_fork() -> None:
    usual = (np.arange(24.0).reshape(2, 3, 4), np.array([True, False]), *(np.array([at]) for at in range(12)))
    edges = {("large", 1): (np.float32([[np.pi]]),), ("zero", 0): (np.zeros((1, 0)), np.int8([3]))}
    source: Any = _Source()
    with running_source(source, lambda: SourceRuns(usual, edges), _measure) as beside:
        found = beside.runs()
    assert list(found.edges) == list(edges)
    for one, other in zip((usual, *edges.values()), (found.expected, *found.edges.values()), strict=True):
        assert [x.dtype for x in one] == [x.dtype for x in other]
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(x, y)
