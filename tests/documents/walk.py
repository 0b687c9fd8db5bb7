"""Follow a section of a page, block by block, in a workspace: YAML goes into params.yaml, commands are run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import REPOSITORY
from tests.page_commands import PageCommands

DOCS = REPOSITORY / "docs"
PAGE = "recipes.md"
LONGEST_S = 500.0
Params = dict[str, Any]


WHOLE = ""  # in place of a section: all of the page


def _sections(page: str) -> dict[str, str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return dict(part.split("\n", 1) for part in text.split("\n## ")[1:])


def section_titles(page: str = PAGE) -> list[str]:
    """Return the titles of a page's sections, in order."""
    return list(_sections(page))


def blocks_of(section: str, page: str = PAGE) -> list[tuple[str, str]]:
    """Return (language, text) of the blocks of YAML and commands in a section of a page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8") if section == WHOLE else _sections(page)[section]
    return re.findall(r"^```(sh|yaml)\n(.*?)^```", text, re.M | re.S)


class Walk:
    """A user who follows one section. root: the workspace; changes: text of the page -> what it is here (ports, names
    of machines); change: what differs in params.yaml, after each of its blocks; own: environment variables.
    """

    def __init__(
        self,
        section: str,
        root: Path,
        changes: Mapping[str, str] | None = None,
        change: Callable[[Params], None] = lambda _: None,
        own: Mapping[str, str] | None = None,
        page: str = PAGE,
    ) -> None:
        self.root, self.change, self.commands = root, change, PageCommands()
        self.own = {"PYTHONPATH": str(REPOSITORY), **(own or {})}
        self.left = blocks_of(section, page)
        for there, here in (changes or {}).items():
            assert any(there in text for _, text in self.left), f"{there!r} is not in {section!r}"
            self.left = [(language, text.replace(there, here)) for language, text in self.left]

    def follow(self, code: int = 0) -> str:
        """Follow the blocks up to the next one of commands; return what those say, which end with that exit code. What
        they leave running goes on.
        """
        language, text = self.left.pop(0)
        if language == "yaml":
            self._paste(yaml.safe_load(text))
            return self.follow(code)
        found, said = self.commands.run(text, self.root, self.own, self.root / "said.txt", LONGEST_S)
        assert found == code, f"exit {found} of\n{text}\n{said}"
        return said

    def _paste(self, block: Params) -> None:
        path = self.root / "params.yaml"
        params = yaml.safe_load(path.read_text())
        for name, part in block.items():
            params[name] = {**params.get(name, {}), **part}
        self.change(params)
        path.write_text(yaml.safe_dump(params, sort_keys=False))


@contextmanager
def walking(*arguments: Any, **named: Any) -> Iterator[Walk]:
    """Give a Walk; at the end every block was followed, and what runs is stopped."""
    walk = Walk(*arguments, **named)
    try:
        yield walk
        assert walk.left == [], f"not followed: {walk.left}"
    finally:
        walk.commands.stop()
