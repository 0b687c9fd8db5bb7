"""Test that a walk runs every block of its section, in order, and fails where a command does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.documents import walk
from tests.documents.walk import blocks_of, section_titles, walking

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
    monkeypatch.setattr(walk, "PAGE", tmp_path / "page.md")
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
    """A walk asserts that it followed every block of its section; this, that every section has one."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    walked = set(re.findall(r'^SECTION = "(.*)"$', text, re.M))
    assert walked == {title for title in section_titles() if blocks_of(title)} and len(walked) >= 4
