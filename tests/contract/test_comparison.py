"""Test docs/comparison.md: each "yes" of ours names a test that exists, each mark of others a page in its list."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.contract.test_repository import REPOSITORY

TEXT = (REPOSITORY / "docs" / "comparison.md").read_text()
ROWS = [line.strip("|").split("|") for line in TEXT.partition("## Pages")[0].splitlines() if line.startswith("| ")]
FEATURES = [[field.strip() for field in row] for row in ROWS if row[0].strip() != "feature"]
PAGES = dict(re.findall(r"^\| (\w+) \| \[[^]]+\]\((https://\S+)\) \|$", TEXT.partition("## Pages")[2], re.M))


@cache
def _tests(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_it_has_about_forty_features_and_says_no_where_there_is_none() -> None:
    assert len(FEATURES) >= 40 and all(len(row) == 9 for row in FEATURES)
    assert sum(row[1] == "no" for row in FEATURES) >= 5


def test_each_yes_of_ours_names_a_test() -> None:
    for feature, ours, *_ in FEATURES:
        if ours != "no":
            file, name = re.fullmatch(r"yes: `(tests/\S+\.py)::(test_\w+)`", ours).groups()  # type: ignore[union-attr]
            assert name in _tests(REPOSITORY / file), f"{feature}: no {name} in {file}"


def test_each_mark_of_others_is_a_page_of_the_list() -> None:
    used = set()
    for feature, _, *others in FEATURES:
        for mark in filter(None, others):
            name, address = re.fullmatch(r"\[(\w+)\]\((https://\S+)\)", mark).groups()  # type: ignore[union-attr]
            assert PAGES[name] == address, feature
            used.add(name)
    assert used == PAGES.keys()
