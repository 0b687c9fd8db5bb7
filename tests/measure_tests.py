"""Choose the tests of `make test`: measure coverage and cost of each test, and keep the cheapest that cover it all.

    COVERAGE=folder python -m pytest -p tests.measure_tests -n 2 -m "not slow or left" tests
    python -m tests.measure_tests folder [--budget 1000] > tests/left_to_test_all.txt

As a plugin of pytest it records the branches that each test takes in tvmflow/, flows/ and tasks/, in processes that
the test starts too, and the processor seconds of the test without those of fixtures that tests share.
As a program it prints the tests to leave to `make test-all`. Kept are tests below CHEAP_S, the cheapest case of each
test function up to FUNCTION_S, and the checks of the repository itself; then, within the budget of processor seconds,
always the test that adds the most branches per second.
"""

from __future__ import annotations

import argparse
import heapq
import os
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHEAP_S, FUNCTION_S = 0.15, 0.3
ALWAYS = (
    "tests/contract/",
    "tests/golden/",
    "tests/differential/test_torch_operators.py",
)  # checks of the repository, groups of operators
_HEADER = """# Tests that `make test` leaves to `make test-all`: cheaper tests execute nearly all that they do.
# A test function stands for all of its cases. Written by tests/measure_tests.py.
"""
_SETTINGS = """[run]
parallel = true
branch = true
data_file = {folder}/data/coverage
context = ${{PYTEST_CURRENT_TEST-none}}
include =
    **/tvmflow/**
    **/flows/**
    **/tasks/**
omit =
    **/site-packages/**
disable_warnings = no-data-collected,module-not-measured,already-imported,module-not-imported,couldnt-parse
"""

Branch = tuple[str, int, int]


class Recorder:
    """Records branches by test, and the seconds of tests, of one worker."""

    def __init__(self, folder: Path) -> None:
        import coverage

        settings = folder / "settings"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(_SETTINGS.format(folder=folder))
        os.environ["COVERAGE_PROCESS_START"] = str(settings)
        self._coverage = coverage.Coverage(config_file=str(settings), context="", data_suffix=True)
        self._coverage.start()
        self._seconds = (folder / f"seconds-{os.getpid()}.tsv").open("w", encoding="utf-8")
        self._shared_s = 0.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        begin, self._shared_s = _used_s(), 0.0
        yield
        self._seconds.write(f"{item.nodeid}\t{_used_s() - begin - self._shared_s:.3f}\n")
        self._seconds.flush()
        self._coverage.switch_context("none")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        begin, inner = _used_s(), self._shared_s
        yield
        if fixturedef.scope != "function":
            self._shared_s = inner + _used_s() - begin

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()


def _used_s() -> float:
    return sum(os.times()[:4])


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(Path(os.environ["COVERAGE"]).resolve()))


def branches_by_test(folder: Path) -> tuple[dict[str, set[Branch]], set[Branch]]:
    """Return the branches of each test, and those that need none."""
    tests: dict[str, set[Branch]] = defaultdict(set)
    free: set[Branch] = set()
    same: dict[Branch, Branch] = {}
    for file in (folder / "data").iterdir():
        with sqlite3.connect(file) as data:
            paths = {key: _in_repository(path) for key, path in data.execute("select id, path from file")}
            contexts = dict(data.execute("select id, context from context"))
            for path, context, origin, end in data.execute("select file_id, context_id, fromno, tono from arc"):
                branch = (paths[path], origin, end)
                name = re.sub(r" \((call|setup|teardown)\)$", "", contexts[context])
                (tests[name] if "::" in name else free).add(same.setdefault(branch, branch))
    return tests, free


def _in_repository(path: str) -> str:
    """Return a path relative to the repository or to a clone of it."""
    found = re.search(r"/((?:tvmflow|flows|tasks)/.*)", path)
    return found[1] if found else path


def seconds_by_test(folder: Path) -> dict[str, float]:
    lines = [line for file in folder.glob("seconds-*.tsv") for line in file.read_text().splitlines()]
    return {name: float(seconds) for name, seconds in (line.rsplit("\t", 1) for line in lines)}


def choose(branches: dict[str, set[Branch]], seconds: dict[str, float], free: set[Branch], budget_s: float) -> set[str]:
    """Return the tests to keep: the fixed ones, then by branches per second, within the budget."""
    cases: dict[str, list[str]] = defaultdict(list)
    for name in sorted(seconds):
        cases[name.split("[")[0]].append(name)
    cheapest = {min(names, key=seconds.__getitem__) for names in cases.values()}
    kept = {name for name in cheapest if seconds[name] <= FUNCTION_S}
    kept |= {name for name in seconds if seconds[name] < CHEAP_S or name.startswith(ALWAYS)}
    covered = free.union(*(branches.get(name, set()) for name in kept))
    spent = sum(seconds[name] for name in kept)

    def value(name: str) -> float:
        return len(branches.get(name, set()) - covered) / seconds[name]

    heap = [(-value(name), name) for name in sorted(seconds.keys() - kept)]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        if (now := value(name)) == 0 or spent + seconds[name] > budget_s:
            continue
        if heap and now < -heap[0][0]:
            heapq.heappush(heap, (-now, name))
            continue
        kept.add(name)
        covered |= branches[name]
        spent += seconds[name]
    return kept


def left_out(names: set[str], kept: set[str]) -> list[str]:
    """Return what is not kept, a function without a case that is by its name alone."""
    with_case = {name.split("[")[0] for name in kept}
    return sorted({name if name.split("[")[0] in with_case else name.split("[")[0] for name in names - kept})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", type=float, default=1150.0, help="processor seconds of all tests together")
    options = parser.parse_args()
    branches, free = branches_by_test(options.folder)
    seconds = seconds_by_test(options.folder)
    kept = choose(branches, seconds, free, options.budget)
    print(_HEADER + "\n".join(left_out(set(seconds), kept)))


if __name__ == "__main__":
    main()
