"""The real adb program, a phone that speaks its protocol, and the agent on it: measured, and every way in which a phone goes away."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from tests.conftest import shared_folder, tvmflow
from tests.devices.agents import BACKEND, X
from tests.devices.fake_phone import FakePhone
from tests.faults.here import QUICK_RULES
from tvmflow.backends.cpu import CpuBackend
from tvmflow.devices.adb import Phone, attached, find_adb
from tvmflow.devices.agent_session import AgentNetwork
from tvmflow.devices.session import DeviceSession, open_session
from tvmflow.devices.table import transport_of
from tvmflow.devices.transport import SessionLimits
from tvmflow.errors import (
    DeviceBusyError,
    DeviceError,
    DeviceFullError,
    DeviceLostError,
    DeviceRebootedError,
    DeviceRefusedError,
    DeviceUnpluggedError,
    WrongProcessorError,
)  # fmt: skip
from tvmflow.params import DeviceEntry
from tvmflow.tuning.canary import canary_workload
from tvmflow.tuning.journal import Journal
from tvmflow.tuning.records import OK
from tvmflow.tuning.search import tune

LIMITS = SessionLimits(60.0, 5.0)


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


def _device(program: Path, *phones: FakePhone, **options: Any) -> DeviceEntry:
    serials = [phone.serial for phone in phones]
    return DeviceEntry.model_validate(
        {"transport": "adb", "key": "fake", "serials": serials, "agent": str(program), **options}
    )


def _opened(session: DeviceSession, library: Path) -> AgentNetwork:
    network = session.network(session.upload(library), library.parent, [])
    assert isinstance(network, AgentNetwork)
    return network


def test_a_phone_is_listed_and_says_what_it_is(phone: FakePhone) -> None:
    facts = Phone(phone.serial).facts()
    assert (facts.model, facts.android, facts.soc, facts.abi) == ("Fake 7", "15", "SM0000", "x86_64")
    assert (facts.build, facts.battery, facts.celsius, facts.architecture) == ("fake/fake/7:15/1", 73, 31.2, "x86_64")
    assert facts.features
    listed = {one.serial: one for one in attached()}
    assert listed[phone.serial].state == "device" and listed[phone.serial].model == "Fake_7"


def test_a_library_runs_on_a_phone_and_everything_is_taken_back(
    phone: FakePhone, program: Path, libraries: dict[str, Path], adb: str
) -> None:
    device = _device(program, phone)
    with open_session(device, BACKEND, LIMITS) as session:
        assert (session.unit, session.build) == (phone.serial, "fake/fake/7:15/1")
        network = _opened(session, libraries["DOUBLES"])
        assert np.array_equal(network.run(X)[0], 2 * X)
        assert len(network.time_runs(3)) == 3
        assert subprocess.run([adb, "forward", "--list"], capture_output=True, text=True, check=True).stdout.strip()
        large = np.random.default_rng(0).bytes(3_000_000)
        session.connection.upload(large, "a large file")  # type: ignore[attr-defined]
        state = transport_of(device).state(device)
        assert state.is_there and state.counts == {"total": 1, "free": 1}
    assert not subprocess.run([adb, "forward", "--list"], capture_output=True, text=True, check=True).stdout.strip()
    deadline = time.monotonic() + 10
    while phone._connections and any(c.processes for c in phone._connections):
        assert time.monotonic() < deadline, "the agent ended with its session"
        time.sleep(0.02)
    with open_session(_device(program, phone, hash_serial=True), BACKEND, LIMITS) as session:
        assert session.unit.startswith("phone-") and phone.serial not in session.unit


def test_a_phone_that_nobody_confirmed_is_told_apart(adb: str, program: Path, tmp_path: Path) -> None:
    with FakePhone(tmp_path / "shy", authorized=False) as shy:
        with (
            pytest.raises(DeviceRefusedError, match="does not trust this computer") as error,
            open_session(_device(program, shy), BACKEND, LIMITS),
        ):
            pass
        assert not error.value.retryable and "confirm the question on its screen" in str(error.value)
        subprocess.run([adb, "disconnect", shy.serial], capture_output=True, check=False)


def test_a_phone_that_is_not_there_is_told_apart(phone: FakePhone, program: Path) -> None:
    phone.vanish()
    with (
        pytest.raises(DeviceUnpluggedError, match="is not attached") as error,
        open_session(_device(program, phone), BACKEND, LIMITS),
    ):
        pass
    assert error.value.retryable


def test_a_full_phone_is_told_apart(phone: FakePhone, program: Path) -> None:
    phone.disk_is_full = True
    with (
        pytest.raises(DeviceFullError, match="No space left on device") as error,
        open_session(_device(program, phone), BACKEND, LIMITS),
    ):
        pass
    assert not error.value.retryable


def test_a_phone_of_another_abi_is_told_apart(adb: str, program: Path, tmp_path: Path) -> None:
    with FakePhone(tmp_path / "arm", {"ro.product.cpu.abi": "arm64-v8a"}) as arm:
        with pytest.raises(WrongProcessorError, match="has the ABI arm64-v8a, and the target compiles for x86_64"):
            with open_session(_device(program, arm), BACKEND, LIMITS):
                pass
        target = replace(BACKEND.target, mtriple="aarch64-linux-android")
        with open_session(_device(program, arm), CpuBackend(target), LIMITS) as session:
            assert session.unit == arm.serial
        subprocess.run([adb, "disconnect", arm.serial], capture_output=True, check=False)


@pytest.mark.parametrize("when", ["upload", "run", "reboot", "server"])
def test_a_phone_that_goes_in_the_middle_is_told_apart_and_works_again(
    phone: FakePhone, program: Path, libraries: dict[str, Path], adb: str, when: str
) -> None:
    kinds = {"reboot": (DeviceRebootedError, DeviceUnpluggedError), "server": (DeviceLostError,)}.get(
        when, (DeviceUnpluggedError,)
    )
    device = _device(program, phone)
    with pytest.raises(kinds) as error:
        with open_session(device, BACKEND, LIMITS) as session:
            network = _opened(session, libraries["DOUBLES"])
            if when == "reboot":
                phone.reboot()
                time.sleep(2.5)  # so long adb takes to find it again
            elif when == "server":
                subprocess.run([adb, "kill-server"], capture_output=True, check=True)
            else:
                threading.Timer(0.2, phone.unplug).start()
            for _ in range(1000):
                if when == "upload":
                    session.connection.upload(os.urandom(2_000_000), "a file")  # type: ignore[attr-defined]
                else:
                    network.run(X)
                    time.sleep(0.01)
    assert error.value.retryable
    phone.plug_in()
    deadline = time.monotonic() + 20
    while True:
        try:
            with open_session(device, BACKEND, LIMITS) as session:
                assert np.array_equal(_opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)
            break
        except DeviceUnpluggedError:
            assert time.monotonic() < deadline
            time.sleep(0.3)


def test_two_hosts_ask_for_one_phone(
    phone: FakePhone, program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The lock of this computer is one; that of the phone, which another computer meets, another."""
    device = _device(program, phone)
    short = SessionLimits(60.0, 0.3)
    with open_session(device, BACKEND, LIMITS):
        with pytest.raises(DeviceBusyError, match="another tvmflow process"), open_session(device, BACKEND, short):
            pass
        monkeypatch.setenv("HOME", str(tmp_path / "other-home"))
        with pytest.raises(DeviceBusyError, match="another host has the device"), open_session(device, BACKEND, short):
            pass


def test_tuning_goes_on_when_one_of_two_phones_is_unplugged(adb: str, program: Path, tmp_path: Path) -> None:
    fleet = replace(QUICK_RULES.fleet, slots=2, give_up_s=60.0)
    rules = replace(QUICK_RULES, trials=6, overlap=True, self_contained=True, fleet=fleet)
    journal = Journal(tmp_path / "log.jsonl", BACKEND.kernel_kind, {"test": "1"})
    with FakePhone(tmp_path / "one") as one, FakePhone(tmp_path / "two") as two:
        device = _device(program, one, two)
        for phone in (one, two):
            Phone(phone.serial)
        gone: list[bool] = []

        def say(*_: Any) -> None:
            if not gone and journal.known():
                gone.append(True)
                one.unplug()

        report = tune(
            [canary_workload()], lambda: open_session(device, BACKEND, LIMITS), BACKEND, rules, journal, tmp_path, say
        )
        for phone in (one, two):
            subprocess.run([adb, "disconnect", phone.serial], capture_output=True, check=False)
    assert gone and report.measured >= 4 and not report.fleet.given_up
    assert {record.status for record in journal.known()} == {OK}


def test_a_phone_is_made_ready_until_ctrl_c_and_then_as_it_was(
    phone: FakePhone, make_workspace: Callable[..., Path], libraries: dict[str, Path]
) -> None:
    root = make_workspace()
    Phone(phone.serial)
    listed = json.loads(tvmflow(root, "devices", "--json").stdout)
    mine = next(row for row in listed if row.get("serial") == phone.serial)
    assert (mine["model"], mine["android"], mine["abi"], mine["battery"], mine["state"]) == (
        "Fake 7",
        "15",
        "x86_64",
        73,
        "authorized",
    )
    command = [
        sys.executable,
        "-m",
        "tvmflow",
        "--root",
        str(root),
        "device",
        "prepare",
        phone.serial,
        "--target",
        "local-cpu",
    ]
    preparing = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert preparing.stdout is not None
    said = [preparing.stdout.readline() for _ in range(3)]
    try:
        entry = re.search(r"port: (\d+), secret_file: (\S+)\}", said[1])
        assert entry and "Fake 7" in said[0], said
        assert (root / "agent.secret").stat().st_mode & 0o777 == 0o600
        device = DeviceEntry.model_validate(
            {"transport": "agent", "key": "k", "port": int(entry[1]), "secret_file": str(root / entry[2])}
        )
        with open_session(device, BACKEND, LIMITS) as session:
            assert np.array_equal(_opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)
    finally:
        preparing.send_signal(signal.SIGINT)
        _, error = preparing.communicate(timeout=60)
    assert preparing.returncode == 130, error
    calls = (phone.folder / "calls").read_text().splitlines()
    assert calls[-2:] == ["svc power stayon true", "settings put global stay_on_while_plugged_in 0"]
    assert list((phone.folder / "data").iterdir()) == [] and not (root / "agent.secret").exists()
