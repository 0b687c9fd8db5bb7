"""Test the emulated arm64 system: set up without privileges, runs arm64 programs, counts executed instructions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvmflow.config.params import DeviceEntry
from tvmflow.devices.emulation.processors import PROCESSORS, processor_named
from tvmflow.devices.emulation.system import EmulatedSystem, emulated_system
from tvmflow.devices.registry import transport_of
from tvmflow.support.errors import DeviceError, UnknownNameError

LOOP = """
import ctypes, json, sys, time
libc, steps = ctypes.CDLL(None), int(sys.argv[1])
def look():
    counts = (ctypes.c_uint64 * 5)()
    libc.syscall(7201, counts, 40)
    return [time.time_ns(), *counts]
look()
before = look()
for _ in range(steps):
    pass
print(json.dumps([b - a for a, b in zip(before, look())]))
"""


# What one pass over bytearrays misses: each is read completely, as often as fits, after a first time.
PASSES = """
import ctypes, json
libc = ctypes.CDLL(None)
def look():
    counters = (ctypes.c_uint64 * 7)()
    libc.syscall(7201, counters, 56)
    return counters[5], counters[6]
found = []
for kib in (16, 128, 4096):
    data = bytearray(kib << 10)
    data.count(1)
    before = look()
    for _ in range(4096 // kib):
        data.count(1)
    found.append([b - a for a, b in zip(before, look())])
print(json.dumps(found))
"""


def python(system: EmulatedSystem, code: str, *arguments: str, counts: bool = False, caches: bool = False) -> str:
    done = subprocess.run(
        [*system.command("cortex-a53", counts, caches), str(system.python), "-S", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={"PYTHONHASHSEED": "0"},
    )
    return done.stdout


def test_runs_programs_of_arm64(emulated: EmulatedSystem) -> None:
    assert (
        python(emulated, "import os; print(os.uname().machine, os.environ.get('LD_LIBRARY_PATH'))") == "aarch64 None\n"
    )
    files = json.loads((emulated.folder / "packages.json").read_text())
    assert all(len(digest) == 64 for digest in files.values())
    assert any(name.startswith("libc6_") and name.endswith("_arm64.deb") for name in files)


def test_counts_instructions_and_not_time(emulated: EmulatedSystem) -> None:
    few, many = (json.loads(python(emulated, LOOP, str(steps), counts=True)) for steps in (1000, 3000))
    again = json.loads(python(emulated, LOOP, "1000", counts=True))
    clock, instructions, _, _, loaded, stored = few
    assert abs(clock - instructions) < 20_000  # the clock and the counters are read one after the other
    assert abs(again[1] - instructions) < 0.05 * instructions
    assert many[1] - instructions > 2000 * 10 and many[4] > loaded > stored > 0


def test_caches_miss_what_exceeds_them(emulated: EmulatedSystem) -> None:
    small, middle, large = json.loads(python(emulated, PASSES, caches=True))
    lines = (4096 << 10) // 64  # 32 KiB and 512 KiB: one of the three fits both, one L2 alone
    assert small[0] < 0.1 * lines and middle[1] < 0.1 * lines
    assert 0.99 * lines < middle[0] < 1.1 * lines
    assert all(0.99 * lines < missed < 1.1 * lines for missed in large)


def test_without_counting_the_call_does_not_exist(emulated: EmulatedSystem) -> None:
    assert json.loads(python(emulated, LOOP, "10"))[1:] == [0, 0, 0, 0, 0]


def test_a_processor_that_there_is_not(emulated: EmulatedSystem) -> None:
    with pytest.raises(UnknownNameError) as caught:
        emulated.command("cortex-a72x")
    assert "cortex-a72" in str(caught.value)
    assert processor_named("cortex-a76").features == PROCESSORS["cortex-a76"].features


def test_a_machine_without_apt_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMFLOW_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError) as caught:
        emulated_system()
    assert "apt-get" in str(caught.value) and "TVMFLOW_CACHE" in str(caught.value)
    assert [file.suffix for file in (tmp_path / "arm64").iterdir()] == [".lock"]  # nothing half made is left


def test_looking_at_a_board_makes_no_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMFLOW_CACHE", str(tmp_path))
    board = DeviceEntry.model_validate({"transport": "emulated", "key": "arm64", "processor": "cortex-a72"})
    state = transport_of(board).state(board)
    assert state.is_there and "cortex-a72" in state.text and "first use" in state.text
    assert not list(tmp_path.iterdir())


def test_two_processes_make_one_system(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from tvmflow.toolchain import debian_packages as packages
def fill(folder):
    with Path(sys.argv[1], "made").open("a") as file:
        file.write("x")
    time.sleep(0.3)
packages.make_folder(Path(sys.argv[1], "folder"), fill, packages.no_root)
"""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert (tmp_path / "made").read_text() == "x" and (tmp_path / "folder").is_dir()
