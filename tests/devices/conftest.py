"""The agent, compiled once, and what it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.devices.agents import KINDS, compiled
from tvmflow.devices.agent_program import RunningAgent, build_agent, running_agent


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_agent(tmp_path_factory.mktemp("agent") / "tvmflow-agent", ["g++", "-g"])


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("libraries")
    return {name: compiled(folder, name) for name in KINDS}


@pytest.fixture
def agent(program: Path, tmp_path: Path) -> Iterator[RunningAgent]:
    with running_agent([str(program)], str(tmp_path / "store"), ["--storage-mb", "1"]) as running:
        yield running
