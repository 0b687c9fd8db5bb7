"""Test the help text: every command is in a group, and its examples are commands."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tvmflow.cli import app
from tvmflow.cli.groups import EXAMPLES, GROUPS

ROOT: Any = get_command(app)
LINES = [line for lines in EXAMPLES.values() for line in lines]


def test_every_command_is_in_one_group_and_has_an_example() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(ROOT.commands) and set(EXAMPLES) == set(ROOT.commands)


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_a_command_of_its_own_entry(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])
    assert words[0] == "tvmflow" and line in EXAMPLES[words[1]]
    command, rest = ROOT.commands[words[1]], words[2:]
    if hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[1], rest)  # raises for an option or argument that there is not


def test_the_help_shows_the_groups_in_order_and_the_examples() -> None:
    text = CliRunner().invoke(app, ["--help"]).output
    places = [text.index(f"\n{group}:") for group in GROUPS]
    assert places == sorted(places) and "\nCommands:" not in text
    for group, names in GROUPS.items():
        section = text[text.index(f"\n{group}:") :].split("\n\n")[0]
        assert [line.split()[0] for line in section.strip().splitlines()[1:]] == list(names)
    text = CliRunner().invoke(app, ["run", "--help"]).output
    assert "Examples:\n    tvmflow run model\n" in text
