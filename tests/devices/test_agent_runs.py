"""Test runs of libraries by the agent: faulty libraries, two hosts, and device state."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.devices.agents import (
    BACKEND,
    LIMITS,
    X,
    connected_to,
    descendants,
    opened,
    secret_file,
    session_with,
)
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.process import AgentProcess, start_agent
from tvmflow.devices.agent.protocol import VERSION
from tvmflow.devices.agent.session import AgentSession, hottest
from tvmflow.devices.agent.transport import AgentOptions, AgentTransport, measuring_session
from tvmflow.devices.programs import build_agent
from tvmflow.devices.session import SessionLimits
from tvmflow.support.errors import (
    DeviceBusyError,
    DeviceError,
    DeviceHotError,
    DeviceLostError,
    StageError,
    WrongProcessorError,
)

# -- libraries --


def test_a_library_computes_and_is_timed(agent: AgentProcess, libraries: dict[str, Path]) -> None:
    with session_with(agent) as session:
        network = opened(session, libraries["DOUBLES"])
        (y,) = network.run(X)
        assert y.dtype == np.float32 and np.array_equal(y, 2 * X)
        assert np.array_equal(network.run(X + 1)[0], 2 * X + 2)
        times = network.time_runs(7)
        assert len(times) == 7 and all(0 < one < 10 for one in times)
        assert network.profile(5) == [("double", 5, 5000)]
        assert network.memory_bytes() is None or network.memory_bytes() < 10e6  # type: ignore[operator]
        assert network.kinds == [("y", (1, 1024), "float32")]
        with pytest.raises(StageError, match="2 inputs for a library of 1"):
            network.run(X, X)
        with pytest.raises(StageError, match="the tensor has 4096 bytes, and not 4"):
            network.run(X[0, 0])
        assert np.array_equal(network.run(X)[0], 2 * X), "what was refused left nothing behind"


def test_memory_is_that_of_the_library_alone(agent: AgentProcess, libraries: dict[str, Path]) -> None:
    with session_with(agent) as session:
        network = opened(session, libraries["GROWS"])
        network.run(X)
        grown = network.memory_bytes() or 0
        assert 7e6 < grown < 20e6 and network.peak_bytes() >= grown


def test_more_libraries_than_may_be_open_are_opened_one_after_the_other(
    agent: AgentProcess, libraries: dict[str, Path]
) -> None:
    with session_with(agent) as session:
        for _ in range(20):
            assert np.array_equal(opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)
        assert len(descendants(agent.process.pid)) <= 3
        held = [opened(session, libraries["DOUBLES"]) for _ in range(8)]
        with pytest.raises(DeviceError, match="one has to be closed first"):
            opened(session, libraries["DOUBLES"])
        held[3].close()
        assert np.array_equal(opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)


def test_short_kernels_that_wait_long_to_be_submitted_do_not_run_for_ever(
    agent: AgentProcess, libraries: dict[str, Path]
) -> None:
    with session_with(agent) as session:
        network = opened(session, libraries["LINGERS"])
        begin = time.monotonic()
        assert network.times(3, 10.0, of_kernels=True) == [1e-6] * 3
        assert time.monotonic() - begin < 5, "10,000 runs of a microsecond would take 10 s each time"


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("READS_NOTHING", DeviceLostError, "memory that is not its own"),
        ("BAD_INSTRUCTION", WrongProcessorError, "uses instructions that this processor lacks"),
        ("REFUSES", StageError, "a kernel refused"),
        ("EXITS", DeviceLostError, "ended by itself"),
        ("STOPS", DeviceLostError, "no reply within 300 ms"),
    ],
)
def test_what_a_library_does_wrong_costs_that_run_alone(
    agent: AgentProcess, libraries: dict[str, Path], kind: str, error: type[Exception], says: str
) -> None:
    with session_with(agent) as session:
        other = opened(session, libraries["DOUBLES"])
        session.longest_s = 0.3 if kind == "STOPS" else 60.0
        bad = opened(session, libraries[kind])
        bad.set_inputs(X + 2)
        with pytest.raises(error, match=says):
            bad.invoke()
        session.longest_s = 60.0
        assert np.array_equal(other.run(X)[0], 2 * X)
        assert np.array_equal(opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)


@contextlib.contextmanager
def _busy(processor: int, rivals: int) -> Iterator[None]:
    """Keep a processor busy with so many processes."""
    code = f"import os; os.sched_setaffinity(0, [{processor}])\nwhile True: pass"
    running = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(rivals)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def test_a_limit_is_one_of_the_librarys_own_time(program: Path, libraries: dict[str, Path], tmp_path: Path) -> None:
    """Where others have the processor a run takes longer, and a run that never ends still ends with its limit."""
    processor = min(os.sched_getaffinity(0))
    pinned = ["taskset", "--cpu-list", str(processor), str(program)]
    with start_agent(pinned, str(tmp_path / "store")) as agent, session_with(agent) as session, _busy(processor, 4):
        network = opened(session, libraries["COMPUTES"])
        session.longest_s = 1.0
        begin = time.monotonic()
        assert np.array_equal(network.run(0 * X + 0.6)[0], 0 * X + 1.2)
        assert time.monotonic() - begin > session.longest_s, "it had a fifth of the processor"
        network.set_inputs(0 * X + 1e6)
        with pytest.raises(DeviceLostError, match="no reply within 1000 ms"):
            network.invoke()
        assert time.monotonic() - begin < 30


def test_a_library_that_memory_was_taken_from_is_told_apart(agent: AgentProcess, libraries: dict[str, Path]) -> None:
    with session_with(agent) as session:
        network = opened(session, libraries["DOUBLES"])
        os.kill(descendants(agent.process.pid)[-1], signal.SIGKILL)
        with pytest.raises(DeviceLostError, match="as it does where memory ends"):
            network.run(X)


def test_what_is_for_another_processor_is_named(
    agent: AgentProcess, libraries: dict[str, Path], tmp_path: Path
) -> None:
    content = bytearray(libraries["DOUBLES"].read_bytes())
    content[18:20] = struct.pack("<H", 183)  # EM_AARCH64
    (tmp_path / "arm.so").write_bytes(content)
    (tmp_path / "text.so").write_text("no library at all, but long enough")
    with session_with(agent) as session:
        with pytest.raises(WrongProcessorError, match="the library is for arm64, and this device is x86-64"):
            opened(session, tmp_path / "arm.so")
        with pytest.raises(StageError, match="the file is no library"):
            opened(session, tmp_path / "text.so")
        session.target = replace(session.target, threads=5)
        with pytest.raises(StageError, match="a kernel refused"):
            opened(session, libraries["DOUBLES"])


def test_a_kernel_shows_what_it_forgets_to_write(agent: AgentProcess, libraries: dict[str, Path]) -> None:
    before = np.full_like(X, 7)
    with session_with(agent) as session:
        bench = session.bench([X, before])
        right, forgetful = bench.load(libraries["DOUBLES"]), bench.load(libraries["FORGETS"])
        assert np.array_equal(right.output(), 2 * X)
        assert len(right.time(3, 1.0)) == 3
        for _ in range(2):
            found = forgetful.output()
            assert np.array_equal(found[0, :512], 2 * X[0, :512]) and np.array_equal(found[0, 512:], before[0, 512:])


# -- hosts --


def test_two_hosts_do_not_measure_at_the_same_time(agent: AgentProcess) -> None:
    first = connected_to(agent)
    AgentSession(first, "unit", BACKEND.target, LIMITS)
    second = connected_to(agent)
    assert second.ask("probe", "asking")["taken"] is True
    with pytest.raises(DeviceBusyError, match="another host has the device") as error:
        AgentSession(second, "unit", BACKEND.target, LIMITS)
    assert not error.value.retryable
    threading.Timer(0.3, first.close).start()
    AgentSession(second, "unit", BACKEND.target, SessionLimits(60.0, 20.0))
    second.close()


def test_nothing_is_done_for_who_did_not_take_the_device(agent: AgentProcess, tmp_path: Path) -> None:
    with contextlib.closing(connected_to(agent)) as connection:
        with pytest.raises(DeviceError, match="has to be taken first"):
            connection.upload(b"bytes", "a file")
        assert connection.ask("probe", "asking")["taken"] is False
    assert list((tmp_path / "store").iterdir()) == []


def test_a_host_that_goes_leaves_nothing_running(agent: AgentProcess, libraries: dict[str, Path]) -> None:
    with session_with(agent) as session:
        session.longest_s = 50.0
        network = opened(session, libraries["STOPS"])
        network.set_inputs(X + 2)
        session.connection._write("run within_ms=50000", network.number)
        network.number = 0
    deadline = time.monotonic() + 120
    while descendants(agent.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with session_with(agent) as session:
        assert np.array_equal(opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)


# -- the device --


def _system(folder: Path, millidegrees: int) -> Path:
    for name, content in {
        "sys/devices/system/cpu/cpu0/topology/core_id": "0",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1800000",
        "sys/devices/system/cpu/cpu1/topology/core_id": "1",
        "sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq": "2400000",
        "sys/devices/system/cpu/cpu1/cpu_capacity": "1024",
        "sys/devices/system/cpu/cpu1/regs/identification/midr_el1": "0x00000000414fd0b1",
        "sys/class/thermal/thermal_zone0/type": "battery",
        "sys/class/thermal/thermal_zone0/temp": "99000",
        "sys/class/thermal/thermal_zone1/type": "cpu-1-0-usr",
        "sys/class/thermal/thermal_zone1/temp": str(millidegrees),
        "sys/class/power_supply/battery/capacity": "87",
        "sys/class/power_supply/battery/status": "Discharging",
        "proc/cpuinfo": 'processor : 0\nFeatures\t: fp asimd asimddp\nHardware\t: Board "X"\n',
        "proc/meminfo": "MemTotal:     2048 kB\n",
        "etc/os-release": 'PRETTY_NAME="Debian 12"\n',
        "etc/machine-id": "0123\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + ("" if content.endswith("\n") else "\n"))
    return folder


def test_it_tells_what_the_device_has(program: Path, tmp_path: Path) -> None:
    root = _system(tmp_path / "system", 61_500)
    with start_agent([str(program)], str(tmp_path / "store"), ["--system-root", str(root)]) as agent:
        with contextlib.closing(connected_to(agent)) as connection:
            facts = connection.ask("probe", "asking")
        entry = {
            "transport": "agent",
            "key": "board",
            "port": agent.port,
            "secret_file": str(secret_file(tmp_path, agent.secret)),
        }
        for mask, core in ((3, "cortex-a76"), (1, "")):  # for `mcpu: device`: of the cores that are used
            found = AgentTransport().processor(DeviceEntry.model_validate({**entry, "cpu_mask": mask}), 5.0)
            assert (found.core, found.features, found.machine) == (core, "fp asimd asimddp", facts["machine"])
    assert facts["cores"] == [
        {"cpu": 0, "max_khz": 1800000},
        {"cpu": 1, "max_khz": 2400000, "capacity": 1024, "midr": "0x00000000414fd0b1"},
    ]
    assert facts["features"] == "fp asimd asimddp" and facts["hardware"] == 'Board "X"'
    assert facts["battery"] == {"name": "battery", "percent": 87, "status": "Discharging"}
    assert facts["memory_bytes"] == 2048 * 1024 and facts["build"] == "Debian 12" and facts["disk_free_bytes"] > 0
    assert facts["unit"] == "host-" + hashlib.sha256(b"0123").hexdigest()[:12]
    assert hottest(facts) == 61.5, "the battery's is not the processor's"
    assert isinstance(facts["gpu_libraries"], list) and facts["hwcap"] > 0


@pytest.mark.parametrize(
    ("serial", "options", "unit"),
    [
        ("10000000abcdef", [], "host-" + hashlib.sha256(b"10000000abcdef").hexdigest()[:12]),
        ("00000000", [], "host-" + hashlib.sha256(b"0123").hexdigest()[:12]),
        ("10000000abcdef", ["--unit", "rack 3"], "rack 3"),
    ],
)
def test_boards_of_one_image_are_told_apart(
    program: Path, tmp_path: Path, serial: str, options: list[str], unit: str
) -> None:
    """They have one machine-id, and numbers of their own, if any."""
    root = _system(tmp_path / "system", 61_500)
    (root / "proc" / "device-tree").mkdir()
    (root / "proc" / "device-tree" / "serial-number").write_bytes(serial.encode() + b"\0")
    with start_agent([str(program)], str(tmp_path / "store"), ["--system-root", str(root), *options]) as agent:
        with contextlib.closing(connected_to(agent)) as connection:
            assert connection.ask("probe", "asking")["unit"] == unit


def test_a_hot_device_is_waited_for(program: Path, tmp_path: Path) -> None:
    root = _system(tmp_path / "system", 81_000)
    options = AgentOptions(port=1, secret_file="x", max_celsius=60.0)  # noqa: S106
    with start_agent([str(program)], str(tmp_path / "store"), ["--system-root", str(root)]) as agent:
        with contextlib.closing(connected_to(agent)) as connection:
            session = measuring_session(connection, "", BACKEND, SessionLimits(60.0, 0.3), options)
            with pytest.raises(DeviceHotError, match="has 81 degrees Celsius and did not cool down") as error:
                session.rest()
            assert error.value.retryable
            session.cool_s = 30.0
            threading.Timer(0.2, _system, (root, 45_000)).start()
            session.rest()
            assert session.build == "Debian 12"


def test_sensors_that_are_off_are_not_believed() -> None:
    zones = [
        {"zone": "cpu-0", "millidegrees": 0},
        {"zone": "soc", "millidegrees": -273_000},
        {"zone": "modem", "millidegrees": 40_000},
    ]
    assert hottest({"temperatures": zones}) == 40.0
    assert hottest({"temperatures": []}) is None and hottest({}) is None


def test_it_is_small(program: Path, tmp_path: Path) -> None:
    size = build_agent(tmp_path / "small", ["gcc"]).stat().st_size
    assert size < 200_000


@pytest.mark.parametrize("page", ["devices.md", "recipes.md"])
def test_it_is_compiled_as_the_documentation_says(page: str, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    [command] = re.findall(r"^aarch64-linux-gnu-(gcc(?:.*\\\n)*.*)$", text, re.M)
    command = command.replace("-o tvmflow-agent", f"-o {tmp_path / 'tvmflow-agent'}")
    subprocess.run(["bash", "-c", command], cwd=REPOSITORY, check=True)
    with (
        start_agent([str(tmp_path / "tvmflow-agent")], str(tmp_path / "store")) as agent,
        session_with(agent) as session,
    ):
        assert session.probe()["version"] == VERSION


# -- kills --


@pytest.mark.parametrize("runs", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_kills_lose_no_run_and_no_file(
    agent: AgentProcess, libraries: dict[str, Path], tmp_path: Path, runs: int
) -> None:
    """A killed library costs its run, a killed session its connection: each is done again, and gives the right
    output.
    """
    chance, done, lost = random.Random(5), 0, 0
    stack = contextlib.ExitStack()
    session, network = None, None
    while done < runs:
        assert lost < 3 * runs
        try:
            if session is None:
                stack.close()
                session = stack.enter_context(session_with(agent, SessionLimits(60.0, 20.0)))
                network = None
            network = network or opened(session, libraries["DOUBLES"])
            if chance.random() < 0.3:
                victim = chance.choice(descendants(agent.process.pid))
                threading.Timer(chance.random() * 2e-3, _kill, (victim,)).start()
            x = X + done
            assert np.array_equal(network.run(x)[0], 2 * x)
            done += 1
        except DeviceLostError as error:
            lost += 1
            network = None
            if "failed while" in str(error):
                session = None
    stack.close()
    assert lost > 0 and agent.process.poll() is None
    names = {path.name for path in (tmp_path / "store").iterdir()}
    assert names == {"lock", hashlib.sha256(libraries["DOUBLES"].read_bytes()).hexdigest()}


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
