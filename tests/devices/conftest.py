"""Provide the compiled agent, libraries for it, and phones that the real adb reaches."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.conftest import shared_folder
from tests.devices.agents import KINDS, compiled
from tests.devices.arm64 import compiled_runner
from tests.devices.fake_phone import FakePhone
from tvmflow.devices.agent.process import AgentProcess, start_agent
from tvmflow.devices.android.adb import find_adb
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.devices.programs import build_agent
from tvmflow.support.errors import DeviceError, ToolchainError


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_agent(tmp_path_factory.mktemp("agent") / "tvmflow-agent", ["g++", "-g"])


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("libraries")
    return {name: compiled(folder, name) for name in KINDS}


@pytest.fixture
def agent(program: Path, tmp_path: Path) -> Iterator[AgentProcess]:
    with start_agent([str(program)], str(tmp_path / "store"), ["--storage-mb", "1"]) as running:
        yield running


@pytest.fixture(scope="module")
def adb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a real adb with a server of its own; skips where there is none and none can be had."""
    folder = shared_folder(tmp_path_factory) / "adb"
    with FileLock(f"{folder}.lock"), contextlib.suppress(DeviceError):
        if not folder.exists():
            folder.mkdir()
            try:
                shutil.copy(find_adb(), folder / "adb")
            except DeviceError:
                _download(folder)
    if not (folder / "adb").is_file():
        pytest.skip("needs adb on PATH, or the package adbutils, or a package registry")
    before = dict(os.environ)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"PATH": f"{folder}:{before['PATH']}", "ANDROID_ADB_SERVER_PORT": str(port), "ADB_MDNS": "0"}
    yield str(folder / "adb")
    subprocess.run([str(folder / "adb"), "kill-server"], capture_output=True, check=False)
    os.environ.clear()
    os.environ.update(before)


def _download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), "adbutils==2.12.0"]
    if subprocess.run(command, capture_output=True, check=False, timeout=300).returncode:
        return
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (folder / "adb").write_bytes(wheel.read("adbutils/binaries/adb"))
    (folder / "adb").chmod(0o755)


@pytest.fixture
def phone(adb: str, tmp_path: Path) -> Iterator[FakePhone]:
    with FakePhone(tmp_path / "phone") as made:
        yield made
        subprocess.run([adb, "disconnect", made.serial], capture_output=True, check=False)


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, emulated: EmulatedSystem) -> Path:
    """The program that runs a network, for arm64."""
    try:
        return compiled_runner(tmp_path_factory.mktemp("runner") / "run")
    except ToolchainError as error:
        pytest.skip(str(error))
