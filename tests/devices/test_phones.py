"""Test the real adb with a simulated phone and the agent: measurements, and every way to lose a phone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import tvmflow
from tests.devices.agents import BACKEND, X
from tests.devices.fake_phone import FakePhone
from tvmflow.backends.cpu import CpuBackend
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.session import AgentNetwork
from tvmflow.devices.android.adb import Phone, list_phones
from tvmflow.devices.android.phones import check_architecture
from tvmflow.devices.registry import open_session, transport_of
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.support.errors import (
    DeviceBusyError,
    DeviceFullError,
    DeviceLostError,
    DeviceRebootedError,
    DeviceRefusedError,
    DeviceUnpluggedError,
    WrongProcessorError,
)
from tvmflow.targets.device_processor import DeviceFacts

LIMITS = SessionLimits(60.0, 5.0)


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
    assert facts.features and facts.cores == "", "a processor that is no arm64 says no parts"
    assert facts.processor == DeviceFacts("x86_64", "", facts.features)
    (phone.folder / "cpuinfo").write_text(
        "".join(
            f"Features\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
            for part in ("0xd05", "0xd05", "0xd0b")
        )
    )
    facts = Phone(phone.serial).facts()
    assert (facts.features, facts.cores, facts.battery) == ("fp asimd", "2 cortex-a55, 1 cortex-a76", 73)
    assert facts.processor.core == "cortex-a76"
    listed = {one.serial: one for one in list_phones()}
    assert listed[phone.serial].state == "device" and listed[phone.serial].model == "Fake_7"


def test_a_library_runs_on_a_phone_and_everything_is_taken_back(
    phone: FakePhone, program: Path, libraries: dict[str, Path], adb: str
) -> None:
    device = _device(program, phone)
    assert transport_of(device).state(device).is_there, "one in the network is connected to"
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
    deadline = time.monotonic() + 120
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
    state = transport_of(_device(program, phone)).state(_device(program, phone))
    assert not state.is_there and "unlock it" in state.hint


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
        list(list_phones([arm.serial]))
        assert Phone(arm.serial).facts().architectures == {"aarch64"}
        with pytest.raises(WrongProcessorError, match="has the ABI arm64-v8a, and the target compiles for x86_64"):
            with open_session(_device(program, arm), BACKEND, LIMITS):
                pass
        target = replace(BACKEND.target, mtriple="aarch64-linux-android")
        with open_session(_device(program, arm), CpuBackend(target), LIMITS) as session:
            assert session.unit == arm.serial
        target = replace(BACKEND.target, mtriple="armv7a-linux-androideabi")
        with pytest.raises(WrongProcessorError, match="mtriple: aarch64-linux-android"):
            check_architecture(Phone(arm.serial), Phone(arm.serial).facts(), target)
        abis = {"ro.product.cpu.abi": "arm64-v8a", "ro.product.cpu.abilist": "arm64-v8a,armeabi-v7a,armeabi"}
        with FakePhone(tmp_path / "both", abis) as both:  # which runs apps of 32 bits too
            list(list_phones([both.serial]))
            check_architecture(Phone(both.serial), Phone(both.serial).facts(), target)
            subprocess.run([adb, "disconnect", both.serial], capture_output=True, check=False)
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
    deadline = time.monotonic() + 120
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
        monkeypatch.setenv("HOME", str(tmp_path / "other-home"))
        with (
            pytest.raises(DeviceBusyError, match=f"held by .* since .*{phone.serial}"),
            open_session(device, BACKEND, short),
        ):
            pass
        monkeypatch.setenv("TVMFLOW_LOCKS", str(tmp_path / "of another computer"))
        with pytest.raises(DeviceBusyError, match="another host has the device"), open_session(device, BACKEND, short):
            pass


def test_a_phone_is_made_ready_until_ctrl_c_and_then_as_it_was(
    phone: FakePhone, make_workspace: Callable[..., Path], libraries: dict[str, Path]
) -> None:
    root = make_workspace()
    Phone(phone.serial)
    listed = json.loads(tvmflow(root, "devices", "--json").stdout)
    mine = next(row for row in listed["phones"] if row["serial"] == phone.serial)
    assert {"local-cpu"} <= {row["target"] for row in listed["targets"]} and listed["processors"] == []
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
            assert session.unit == phone.serial, "and not the address of the forward"
            assert np.array_equal(_opened(session, libraries["DOUBLES"]).run(X)[0], 2 * X)
    finally:
        preparing.send_signal(signal.SIGINT)
        _, error = preparing.communicate(timeout=120)
    assert preparing.returncode == 130, error
    calls = (phone.folder / "calls").read_text().splitlines()
    assert calls[-2:] == ["svc power stayon true", "settings put global stay_on_while_plugged_in 0"]
    assert list((phone.folder / "data").iterdir()) == [] and not (root / "agent.secret").exists()
