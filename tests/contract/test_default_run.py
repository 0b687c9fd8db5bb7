"""Test the list of tests that `make test` leaves to `make test-all`."""

from __future__ import annotations

import re

from tests.conftest import LEFT, REPOSITORY
from tests.measure_tests import choose, left_out


def test_what_is_listed_is_there() -> None:
    lines = [line for line in LEFT.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    functions = {line.split("[")[0] for line in lines}
    texts = {file: (REPOSITORY / file).read_text(encoding="utf-8") for file in {f.split("::")[0] for f in functions}}
    gone = [
        f for f in functions if not re.search(rf"^ *(async )?def {f.split('::')[-1]}\(", texts[f.split("::")[0]], re.M)
    ]
    assert gone == [], f"remove these lines from {LEFT.name}"
    assert lines == sorted(set(lines))


def test_the_cheapest_tests_that_execute_everything_are_kept() -> None:
    def taken(*numbers: int) -> set[tuple[str, int, int]]:
        return {("file", number, number + 1) for number in numbers}

    seconds = {"a::t[1]": 5.0, "a::t[2]": 9.0, "a::u": 2.0, "b::v": 0.01, "b::w": 50.0}
    branches = {"a::t[1]": taken(1, 2), "a::t[2]": taken(1, 2), "a::u": taken(1, 2, 3), "b::w": taken(4)}
    kept = choose(branches, seconds, set(), 100.0)
    assert kept == {"a::u", "b::v", "b::w"}, "v is cheap, u has what t has for less, nothing else has what w has"
    assert left_out(set(seconds), kept) == ["a::t"]
    assert choose(branches, seconds, taken(4), 2.5) == {"a::u", "b::v"}
