"""The agent as a process: who may speak, what it stores, what a library costs that crashes, what it tells of its device."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.devices.agents import BACKEND, KINDS, X, compiled, secret_file
from tvmflow.devices.agent import AgentOptions, measuring_session
from tvmflow.devices.agent_program import RunningAgent, build_agent, running_agent
from tvmflow.devices.agent_session import AgentNetwork, AgentSession, hottest
from tvmflow.devices.agent_wire import AgentConnection
from tvmflow.devices.session import open_session
from tvmflow.devices.transport import SessionLimits
from tvmflow.errors import (
    AgentVersionError,
    DeviceBusyError,
    DeviceError,
    DeviceFullError,
    DeviceHotError,
    DeviceLostError,
    DeviceRefusedError,
    StageError,
    UsageError,
    WrongProcessorError,
)  # fmt: skip
from tvmflow.params import DeviceEntry

LIMITS = SessionLimits(60.0, 0.0)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_agent(tmp_path_factory.mktemp("agent") / "tvmflow-agent", ["gcc", "-g"])


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("libraries")
    return {name: compiled(folder, name) for name in KINDS}


@pytest.fixture
def agent(program: Path, tmp_path: Path) -> Iterator[RunningAgent]:
    with running_agent([str(program)], str(tmp_path / "store"), ["--storage-mb", "1"]) as running:
        yield running


def _connected(agent: RunningAgent) -> AgentConnection:
    return AgentConnection("127.0.0.1", agent.port, agent.secret, "here")


@contextlib.contextmanager
def _session(agent: RunningAgent, limits: SessionLimits = LIMITS) -> Iterator[AgentSession]:
    with contextlib.closing(_connected(agent)) as connection:
        yield AgentSession(connection, "unit", BACKEND.target, limits)


def _opened(session: AgentSession, library: Path) -> AgentNetwork:
    found = session.network(session.upload(library), library.parent, [])
    assert isinstance(found, AgentNetwork)
    return found


# -- digests and secrets --


def test_its_digests_are_those_of_python(tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text("""
#include "sha256.h"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
  static unsigned char bytes[1 << 16], digest[32];
  size_t size = fread(bytes, 1, sizeof bytes, stdin), key = (size_t)atoi(arguments[1]);
  (void)count;
  hmac_sha256(bytes, key, bytes + key, size - key, digest);
  fwrite(digest, 1, 32, stdout);
  sha256 made;
  sha256_begin(&made);
  for (size_t at = 0, part = 1; at < size; at += part, part = part * 3 % 131 + 1)
    sha256_add(&made, bytes + at, part < size - at ? part : size - at);
  sha256_end(&made, digest);
  fwrite(digest, 1, 32, stdout);
}""")
    folder = REPOSITORY / "runtime" / "agent"
    options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{folder}"]
    subprocess.run(["gcc", *options, str(source), str(folder / "sha256.c"), "-o", str(tmp_path / "main")], check=True)
    chance = random.Random(1)
    for size, key in [
        (0, 0),
        (1, 1),
        (55, 3),
        (56, 0),
        (63, 63),
        (64, 64),
        (65, 65),
        (119, 100),
        (1000, 129),
        (60000, 32),
    ]:
        content = chance.randbytes(size)
        done = subprocess.run([str(tmp_path / "main"), str(key)], input=content, capture_output=True, check=True)
        assert done.stdout[:32] == hmac.digest(content[:key], content[key:], "sha256")
        assert done.stdout[32:] == hashlib.sha256(content).digest()


def test_who_has_another_secret_gets_nothing(agent: RunningAgent) -> None:
    with pytest.raises(DeviceRefusedError, match="has another secret"):
        AgentConnection("127.0.0.1", agent.port, b"0" * 64, "here")
    _connected(agent).close()


def test_an_agent_of_another_version_is_named(agent: RunningAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmflow.devices.agent_wire.VERSION", 7)
    with pytest.raises(AgentVersionError, match="has version 1, and this tvmflow speaks version 7"):
        _connected(agent)


def test_who_pretends_to_be_an_agent_is_found_out(agent: RunningAgent) -> None:
    """It repeats what a real agent said; without the secret it cannot answer a new question."""
    real = _connected(agent)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def pretend() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(52)
                connection.sendall(b"tvmflow agent\n\0\0" + struct.pack("<I", 1) + bytes(32))
                connection.recv(32)
                reply = json.dumps({"status": "ok", "proof": "0" * 64}).encode()
                connection.sendall(struct.pack("<BBHI", 3, 0, 0, len(reply)) + reply)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(DeviceRefusedError):
            AgentConnection("127.0.0.1", listener.getsockname()[1], agent.secret, "here")
        thread.join()
    real.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3, b"\0" * 200])
def test_what_is_no_agent_is_said(answer: bytes) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(52)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DeviceLostError, match=r"closed the connection|no agent"):
            AgentConnection("127.0.0.1", listener.getsockname()[1], b"0" * 64, "here")
        thread.join()


def test_a_secret_that_others_may_read_is_refused(program: Path, tmp_path: Path) -> None:
    path = secret_file(tmp_path, b"s" * 32)
    path.chmod(0o644)
    device = DeviceEntry.model_validate({"transport": "agent", "key": "k", "port": 9, "secret_file": str(path)})
    with pytest.raises(UsageError, match="may be read by others"), open_session(device, BACKEND, LIMITS):
        pass
    done = subprocess.run(
        [str(program), "--folder", str(tmp_path / "s"), "--secret-file", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "only its owner may read a secret" in done.stderr


def test_it_ends_with_its_life_line(program: Path, tmp_path: Path, libraries: dict[str, Path]) -> None:
    with running_agent([str(program)], str(tmp_path / "store")) as agent:
        connection = _connected(agent)
        session = AgentSession(connection, "unit", BACKEND.target, LIMITS)
        _opened(session, libraries["DOUBLES"])
        children = _descendants(agent.process.pid)
        assert len(children) == 2, "a session and its library"
        ended = agent.process
    assert ended.returncode == 0
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{child}/status").exists() and not _is_dead(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    connection.close()


def _is_dead(process: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    return True


def _descendants(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


# -- files --


def test_a_file_arrives_once_and_whole(agent: RunningAgent, tmp_path: Path) -> None:
    content = random.Random(2).randbytes(300_000)
    with _session(agent) as session:
        digest = session.connection.upload(content, "a file")
        assert digest == hashlib.sha256(content).hexdigest()
        assert (tmp_path / "store" / digest).read_bytes() == content
        sent = _sent_bytes(session.connection)
        session.connection.upload(content, "a file")
        assert _sent_bytes(session.connection) - sent < 500, "it is there already"
        assert session.connection.upload(b"", "nothing") == hashlib.sha256(b"").hexdigest()


def _sent_bytes(connection: AgentConnection) -> int:
    info = connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    return int(struct.unpack_from("<Q", info, 120)[0])  # tcpi_bytes_acked


def test_an_upload_goes_on_where_it_stopped(agent: RunningAgent, tmp_path: Path) -> None:
    content = random.Random(3).randbytes(600_000)
    digest = hashlib.sha256(content).hexdigest()
    cut = _connected(agent)
    cut.ask("take", "taking it")
    cut._write(f"upload sha256={digest} size={len(content)}", 0)
    assert cut._reply()[0]["offset"] == 0
    cut._frame(2, 0, content[:400_000])
    cut._socket.sendall(struct.pack("<BBHI", 2, 0, 0, 1000) + b"part of a frame")
    cut.close()
    part = tmp_path / "store" / f"{digest}.part"
    deadline = time.monotonic() + 10
    while not part.exists() or part.stat().st_size < 400_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with _session(agent, SessionLimits(60.0, 10.0)) as session:
        session.connection.upload(content, "a file")
        assert _sent_bytes(session.connection) < 250_000, "only the rest was sent"
    assert (tmp_path / "store" / digest).read_bytes() == content and not part.exists()


def test_other_bytes_than_were_said_do_not_count(agent: RunningAgent, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    with _session(agent) as session:
        session.connection._write(f"upload sha256={digest} size=5", 0)
        session.connection._reply()
        session.connection._frame(2, 0, b"wrong")
        assert session.connection._reply()[0]["status"] == "digest"
        with pytest.raises(DeviceLostError, match="was not uploaded"):
            session.network(digest, tmp_path, [])
        assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["lock"]


def test_what_was_used_longest_ago_makes_room(agent: RunningAgent, tmp_path: Path) -> None:
    parts = [bytes([at]) * 400_000 for at in range(3)]
    with _session(agent) as session:
        one, two = (session.connection.upload(part, "a file") for part in parts[:2])
        os.utime(tmp_path / "store" / two, (1, 1))
        three = session.connection.upload(parts[2], "a file")
        assert {path.name for path in (tmp_path / "store").iterdir()} == {one, three, "lock"}
        with pytest.raises(DeviceFullError, match="larger than all that the agent may store"):
            session.connection.upload(bytes(2_000_000), "a file")
        session.connection.upload(parts[0], "a file")


def test_a_full_disk_is_said(program: Path, tmp_path: Path) -> None:
    """A disk of its own would need privileges: the system's call says that it is full, as it does on a full one."""
    shim = tmp_path / "full.c"
    shim.write_text("""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
ssize_t write(int file, const void *bytes, size_t size) {
  ssize_t (*real)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  struct stat found;
  if (!fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size + size > 100000) return errno = ENOSPC, -1;
  return real(file, bytes, size);
}""")
    subprocess.run(["gcc", "-shared", "-fPIC", str(shim), "-o", str(tmp_path / "full.so"), "-ldl"], check=True)
    command = ["env", f"LD_PRELOAD={tmp_path / 'full.so'}", str(program)]
    with running_agent(command, str(tmp_path / "store")) as agent, _session(agent) as session:
        with pytest.raises(DeviceFullError, match="no space is left on the device") as error:
            session.connection.upload(bytes(3_000_000), "a library")
        assert not error.value.retryable
        assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["lock"], "what nobody can use is gone"
        session.connection.upload(bytes(50_000), "a small file")


@pytest.mark.parametrize(
    "request_text",
    ["upload sha256=../../etc/passwd size=1", "upload sha256=" + "A" * 64 + " size=1", "upload sha256=" + "0" * 63 + " size=1",
     "upload size=1", "upload sha256=" + "0" * 64, "upload sha256=" + "0" * 64 + " size=99999999999999999999", "open sha256=lock",
     "nothing", "open", "upload sha256=" + "0" * 64 + "/x size=1"],
)  # fmt: skip
def test_what_is_no_request_is_refused(agent: RunningAgent, tmp_path: Path, request_text: str) -> None:
    with _session(agent) as session:
        with pytest.raises(DeviceError):
            session.connection.ask(request_text, "asking for nonsense")
        assert session.probe()["version"] == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["lock", "store"]


# -- libraries --


def test_a_library_computes_and_is_timed(agent: RunningAgent, libraries: dict[str, Path]) -> None:
    with _session(agent) as session:
        network = _opened(session, libraries["DOUBLES"])
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


def test_memory_is_that_of_the_library_alone(agent: RunningAgent, libraries: dict[str, Path]) -> None:
    with _session(agent) as session:
        network = _opened(session, libraries["GROWS"])
        network.run(X)
        grown = network.memory_bytes() or 0
        assert 7e6 < grown < 20e6 and network.peak_bytes() >= grown


def test_more_libraries_than_may_be_open_are_opened_one_after_the_other(
    agent: RunningAgent, libraries: dict[str, Path]
) -> None:
    with _session(agent) as session:
        for _ in range(20):
            assert np.array_equal(_opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)
        assert len(_descendants(agent.process.pid)) <= 3
        held = [_opened(session, libraries["DOUBLES"]) for _ in range(8)]
        with pytest.raises(DeviceError, match="one has to be closed first"):
            _opened(session, libraries["DOUBLES"])
        held[3].close()
        assert np.array_equal(_opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [("READS_NOTHING", DeviceLostError, "memory that is not its own"),
     ("BAD_INSTRUCTION", WrongProcessorError, "uses instructions that this processor lacks"),
     ("REFUSES", StageError, "a kernel refused"), ("EXITS", DeviceLostError, "ended by itself"), ("STOPS", DeviceLostError, "no reply within 300 ms")],
)  # fmt: skip
def test_what_a_library_does_wrong_costs_that_run_alone(
    agent: RunningAgent, libraries: dict[str, Path], kind: str, error: type[Exception], says: str
) -> None:
    with _session(agent) as session:
        other = _opened(session, libraries["DOUBLES"])
        session.longest_s = 0.3 if kind == "STOPS" else 60.0
        bad = _opened(session, libraries[kind])
        bad.set_inputs(X + 2)
        with pytest.raises(error, match=says):
            bad.invoke()
        session.longest_s = 60.0
        assert np.array_equal(other.run(X)[0], 2 * X)
        assert np.array_equal(_opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)


def test_a_library_that_memory_was_taken_from_is_told_apart(agent: RunningAgent, libraries: dict[str, Path]) -> None:
    with _session(agent) as session:
        network = _opened(session, libraries["DOUBLES"])
        os.kill(_descendants(agent.process.pid)[-1], signal.SIGKILL)
        with pytest.raises(DeviceLostError, match="as it does where memory ends"):
            network.run(X)


def test_what_is_for_another_processor_is_named(
    agent: RunningAgent, libraries: dict[str, Path], tmp_path: Path
) -> None:
    content = bytearray(libraries["DOUBLES"].read_bytes())
    content[18:20] = struct.pack("<H", 183)  # EM_AARCH64
    (tmp_path / "arm.so").write_bytes(content)
    (tmp_path / "text.so").write_text("no library at all, but long enough")
    with _session(agent) as session:
        with pytest.raises(WrongProcessorError, match="the library is for arm64, and this device is x86-64"):
            _opened(session, tmp_path / "arm.so")
        with pytest.raises(StageError, match="the file is no library"):
            _opened(session, tmp_path / "text.so")
        session.target = replace(session.target, threads=5)
        with pytest.raises(StageError, match="a kernel refused"):
            _opened(session, libraries["DOUBLES"])


def test_a_kernel_shows_what_it_forgets_to_write(agent: RunningAgent, libraries: dict[str, Path]) -> None:
    before = np.full_like(X, 7)
    with _session(agent) as session:
        bench = session.bench([X, before])
        right, forgetful = bench.load(libraries["DOUBLES"]), bench.load(libraries["FORGETS"])
        assert np.array_equal(right.output(), 2 * X)
        assert len(right.time(3, 1.0)) == 3
        for _ in range(2):
            found = forgetful.output()
            assert np.array_equal(found[0, :512], 2 * X[0, :512]) and np.array_equal(found[0, 512:], before[0, 512:])


# -- hosts --


def test_two_hosts_do_not_measure_at_the_same_time(agent: RunningAgent) -> None:
    first = _connected(agent)
    AgentSession(first, "unit", BACKEND.target, LIMITS)
    second = _connected(agent)
    assert second.ask("probe", "asking")["taken"] is True
    with pytest.raises(DeviceBusyError, match="another host has the device") as error:
        AgentSession(second, "unit", BACKEND.target, LIMITS)
    assert error.value.retryable
    threading.Timer(0.3, first.close).start()
    AgentSession(second, "unit", BACKEND.target, SessionLimits(60.0, 20.0))
    second.close()


def test_nothing_is_done_for_who_did_not_take_the_device(agent: RunningAgent, tmp_path: Path) -> None:
    with contextlib.closing(_connected(agent)) as connection:
        with pytest.raises(DeviceError, match="has to be taken first"):
            connection.upload(b"bytes", "a file")
        assert connection.ask("probe", "asking")["taken"] is False
    assert list((tmp_path / "store").iterdir()) == []


def test_a_host_that_goes_leaves_nothing_running(agent: RunningAgent, libraries: dict[str, Path]) -> None:
    with _session(agent) as session:
        session.longest_s = 50.0
        network = _opened(session, libraries["STOPS"])
        network.set_inputs(X + 2)
        session.connection._write("run within_ms=50000", network.number)
        network.number = 0
    deadline = time.monotonic() + 10
    while _descendants(agent.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with _session(agent) as session:
        assert np.array_equal(_opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)


# -- the device --


def _system(folder: Path, millidegrees: int) -> Path:
    for name, content in {
        "sys/devices/system/cpu/cpu0/topology/core_id": "0", "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1800000",
        "sys/devices/system/cpu/cpu1/topology/core_id": "1", "sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq": "2400000",
        "sys/devices/system/cpu/cpu1/cpu_capacity": "1024", "sys/class/thermal/thermal_zone0/type": "battery",
        "sys/class/thermal/thermal_zone0/temp": "99000", "sys/class/thermal/thermal_zone1/type": "cpu-1-0-usr",
        "sys/class/thermal/thermal_zone1/temp": str(millidegrees), "sys/class/power_supply/battery/capacity": "87",
        "sys/class/power_supply/battery/status": "Discharging", "proc/cpuinfo": "processor : 0\nFeatures\t: fp asimd asimddp\nHardware\t: Board \"X\"\n",
        "proc/meminfo": "MemTotal:     2048 kB\n", "etc/os-release": 'PRETTY_NAME="Debian 12"\n', "etc/machine-id": "0123\n",
    }.items():  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + ("" if content.endswith("\n") else "\n"))
    return folder


def test_it_tells_what_the_device_has(program: Path, tmp_path: Path) -> None:
    root = _system(tmp_path / "system", 61_500)
    with running_agent([str(program)], str(tmp_path / "store"), ["--system-root", str(root)]) as agent:
        with contextlib.closing(_connected(agent)) as connection:
            facts = connection.ask("probe", "asking")
    assert facts["cores"] == [{"cpu": 0, "max_khz": 1800000}, {"cpu": 1, "max_khz": 2400000, "capacity": 1024}]
    assert facts["features"] == "fp asimd asimddp" and facts["hardware"] == 'Board "X"'
    assert facts["battery"] == {"name": "battery", "percent": 87, "status": "Discharging"}
    assert facts["memory_bytes"] == 2048 * 1024 and facts["build"] == "Debian 12" and facts["disk_free_bytes"] > 0
    assert facts["unit"] == "host-" + hashlib.sha256(b"0123").hexdigest()[:12]
    assert hottest(facts) == 61.5, "the battery's is not the processor's"
    assert isinstance(facts["gpu_libraries"], list) and facts["hwcap"] > 0


def test_a_hot_device_is_waited_for(program: Path, tmp_path: Path) -> None:
    root = _system(tmp_path / "system", 81_000)
    options = AgentOptions(port=1, secret_file="x", max_celsius=60.0)  # noqa: S106
    with running_agent([str(program)], str(tmp_path / "store"), ["--system-root", str(root)]) as agent:
        with contextlib.closing(_connected(agent)) as connection:
            session = measuring_session(connection, "", BACKEND, SessionLimits(60.0, 0.3), options)
            with pytest.raises(DeviceHotError, match="has 81 degrees Celsius and did not cool down") as error:
                session.rest()
            assert error.value.retryable
            session.wait_s = 30.0
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
