"""Validate the params.yaml snippets of docs/recipes.md against all registries, as before a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY
from tvmflow.config.workspace import find_workspace
from tvmflow.pipeline.check_params import check_rows

BLOCKS = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs" / "recipes.md").read_text(), re.S)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_recipes_params_are_valid(block: str, tmp_path: Path) -> None:
    params: dict[str, Any] = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    for name, part in yaml.safe_load(block).items():
        params[name] |= part
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    check_rows(find_workspace(tmp_path).params)


def test_there_are_recipes() -> None:
    assert len(BLOCKS) == 3
