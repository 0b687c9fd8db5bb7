"""Test the wheel of prebuilt agents: what it has runs on boards, and is taken only if made of these sources."""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.devices.agents import session_with
from tvmflow.devices import programs
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.agent_wheel import ANDROID, LINUX, write_agent_wheel
from tvmflow.devices.installed_agent import installed_agent
from tvmflow.support.errors import ToolchainError
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import compiler_named

SOURCES = programs.digest_of_agent()
HERE = f"{platform.machine()}-linux-gnu"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that pip installed the wheel into."""
    try:
        compiler_named("zig").command(HERE)
    except ToolchainError as error:
        pytest.skip(f"needs zig: {error}")
    folder = tmp_path_factory.mktemp("wheel")
    wheel = write_agent_wheel(folder, (HERE,))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", str(folder / "site"), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "site"


def test_an_installed_agent_is_taken(
    installed: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path, tmp_path: Path
) -> None:
    assert installed_agent(HERE, SOURCES) is None, "the package is not on the path yet"
    monkeypatch.syspath_prepend(str(installed))
    program = installed_agent(HERE, SOURCES)
    assert program and installed_agent("riscv64-linux-gnu", SOURCES) is None
    monkeypatch.setattr(programs, "build_agent", None)  # it is not called
    path = programs.agent_for(host_target())
    assert path.read_bytes() == program and os.access(path, os.X_OK)
    with start_agent([str(path)], str(tmp_path / "store")) as agent, session_with(agent) as session:
        assert session.probe()["machine"] == platform.machine()
    needs = {
        one.name
        for _, names in ELFFile(io.BytesIO(program)).get_section_by_name(".gnu.version_r").iter_versions()
        for one in names
    }
    newest = max(tuple(map(int, name.removeprefix("GLIBC_").split(".")))[:2] for name in needs)
    assert newest <= (2, 28), "boards of Debian 10 and later"


def test_of_other_sources_or_altered_it_is_not_taken(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))
    facts, program = installed / "tvmflow_agent" / "agents.json", installed / "tvmflow_agent" / HERE / "tvmflow-agent"
    text, data = facts.read_text(), program.read_bytes()
    facts.write_text(json.dumps(json.loads(text) | {"sources": "0" * 64}))
    assert installed_agent(HERE, SOURCES) is None
    facts.write_text(text)
    program.write_bytes(data + b"\0")
    with pytest.raises(ToolchainError, match=f"the agent for {HERE} in the package tvmflow-agent was altered"):
        installed_agent(HERE, SOURCES)
    program.write_bytes(data)


@pytest.mark.slow
def test_it_has_agents_for_boards_and_phones_of_three_kinds(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with zipfile.ZipFile(write_agent_wheel(tmp_path)) as archive:
        found = {
            name.split("/")[1]: ELFFile(io.BytesIO(archive.read(name))).get_machine_arch()
            for name in archive.namelist()
            if name.endswith("/tvmflow-agent")
        }
    kinds = ("x64", "AArch64", "ARM", "AArch64", "ARM", "x64")
    assert found == dict(zip((*LINUX, *ANDROID), kinds, strict=True))
