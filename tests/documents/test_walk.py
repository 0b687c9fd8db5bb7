"""Test that a walk runs every block of its section, in order, and fails where a command does."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.documents import walk
from tests.documents.test_pages import ELSEWHERE, FOLLOWED
from tests.documents.walk import DOCS, blocks_of, section_titles
from tests.flows.test_team_page import SECTIONS as TEAM

PAGE = """# Page
## One
```yaml
tune: {seed: 3}
```
```sh
cat params.yaml
(sleep 60; echo late > late) &
```
```sh
false | cat
```
## Two
```sh
echo two
```
"""


def test_a_walk_follows_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "params.yaml").write_text("tune: {devices: 2, seed: 1}\n")
    monkeypatch.setattr(walk, "DOCS", tmp_path)
    walking = functools.partial(walk.walking, page="page.md")
    with walking("One", tmp_path, {"seed: 3": "seed: 4"}, lambda params: params.update(cells={})) as one:
        assert yaml.safe_load(one.follow()) == {"tune": {"devices": 2, "seed": 4}, "cells": {}}
        one.follow(code=1)
    with pytest.raises(AssertionError, match="exit 1 of\nfalse"), walking("One", tmp_path) as one:
        one.follow()
        one.follow()
    with pytest.raises(AssertionError, match="not followed"), walking("Two", tmp_path):
        pass
    with pytest.raises(AssertionError, match="'three' is not in 'Two'"), walking("Two", tmp_path, {"three": "3"}):
        pass


def test_every_section_with_commands_is_walked() -> None:
    """A walk asserts that it followed every block of its section; this, that every section of every page has one."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    walked = {("recipes.md", section) for section in re.findall(r'^SECTION = "(.*)"$', text, re.M)}
    assert len(walked) >= 4
    written = {
        (path.name, title)
        for path in DOCS.glob("*.md")
        for title in section_titles(path.name)
        if any(language == "sh" for language, _ in blocks_of(title, path.name))
    }
    assert walked | set(FOLLOWED) | {("team.md", title) for title in TEAM} | ELSEWHERE.keys() == written
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (REPOSITORY / file).read_text(), test


def test_commands_are_marked_as_such() -> None:
    """A block without a language is not followed."""
    first_words = "tvmflow|pip|dvc|mlflow|prefect|python|export|git|ssh|docker|make|dask"
    for path in DOCS.glob("*.md"):
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S):
            is_command = re.search(rf"^(?:{first_words}) ", block, re.M)
            assert not is_command or language == "sh", f"{path.name}:\n{block}"
