"""Test the metadata of the wheel: license, types."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_license_is_the_whole_text_and_named_in_the_metadata() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    text = (REPOSITORY / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0" and project["license-files"] == ["LICENSE"]
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert not [line for line in project["classifiers"] if line.startswith("License ::")]  # the expression replaces it


def test_every_package_of_the_wheel_is_typed() -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert [name for name in wheel["packages"] if not (REPOSITORY / name / "py.typed").is_file()] == []


def test_the_wheel_has_the_runtime_in_c_where_it_is_looked_for() -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"runtime": "tvmflow/_runtime"}
    assert '"tvmflow" / "_runtime"' in (REPOSITORY / "tvmflow" / "support" / "paths.py").read_text()
    assert (REPOSITORY / "runtime" / "agent" / "agent.c").is_file()
    assert {path.suffix for path in (REPOSITORY / "runtime" / "src").iterdir()} == {".c", ".h"}
