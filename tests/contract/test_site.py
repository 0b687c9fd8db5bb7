"""Test the documentation site: generated pages list every command and parameter, the navigation every page."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import yaml

from tests.contract.test_repository import REPOSITORY, _commands
from tvmflow.config.params import Params

GENERATED = {"index.md", "changelog.md", "contributing.md", "examples.md", "commands.md", "parameters.md"} | {
    "functions.md",
    "notebook.md",
}


def _pages() -> Any:
    spec = importlib.util.spec_from_file_location("reference", REPOSITORY / "docs" / "reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _named(entry: Any) -> set[str]:
    if isinstance(entry, str):
        return {entry}
    return set().union(*map(_named, entry.values() if isinstance(entry, dict) else entry))


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())
    docs = REPOSITORY / "docs"
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert _named(config["nav"]) == written | GENERATED
    assert config["strict"] and not re.search(r"https?://", (REPOSITORY / "mkdocs.yml").read_text())


def test_every_command_with_its_options_is_generated() -> None:
    text = _pages().commands_page()
    assert set(re.findall(r"^## tvmflow (\S+)$", text, re.M)) == _commands()
    assert "`--dry-run`" in text and "`-C, --root" in text and "MODEL@TARGET:PRECISION" in text


def test_every_parameter_is_generated_with_bounds_and_default() -> None:
    text = _pages().parameters_page()
    assert "| `tune.trials_per_workload` | integer >= 0, <= 10000000 | `24` |" in text
    assert "| `tune.tuner` | `ga`, `grid`, `random`, `static`, `xgb` | `xgb` |" in text
    assert "| `flows.push_to_remote` | boolean | `true` |" in text
    for block, field in Params.model_fields.items():
        for key in getattr(field.annotation, "model_fields", {}):
            assert f"`{block}.{key}" in text, f"{block}.{key}"
    assert "`targets.NAME.vta.mode`" in text and "`targets.NAME.device.port`" in text


def test_links_of_the_root_pages_are_links_of_the_site() -> None:
    text = _pages().at_the_root("README.md")
    assert "](params.md)" in text and "](docs/" not in text
