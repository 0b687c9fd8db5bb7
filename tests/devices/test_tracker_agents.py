"""Test agents behind TVM's tracker: listed, assigned to one host at a time, dropped on exit, distinguished from TVM's
servers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.walk import chosen_units
from tests.devices.agents import BACKEND, X, secret_file
from tests.devices.fake_phone import FakePhone
from tests.search_rules import QUICK_RULES, changed
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.process import AgentProcess, start_agent
from tvmflow.devices.agent.registration import Offer, check_address, offer_agent
from tvmflow.devices.registry import open_session, transport_of
from tvmflow.devices.rpc.tracker_requests import Request, queue_of, request_session
from tvmflow.devices.session import SessionLimits
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.support.errors import (
    DeviceBusyError,
    DeviceLostError,
    DeviceRefusedError,
    TvmflowError,
    UnknownNameError,
    UsageError,
)
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK
from tvmflow.tuning.search.search import tune

KEY = "boards"
SECRET = b"one secret of all boards"
LIMITS = SessionLimits(60.0, 10.0)


@pytest.fixture(scope="module")
def tracker() -> Iterator[TrackerAddress]:
    """Return TVM's own tracker."""
    from tvm.rpc.tracker import Tracker

    made = Tracker("127.0.0.1", 9790, 9890, silent=True)
    yield TrackerAddress("127.0.0.1", made.port)
    made.terminate()


class Farm:
    """Agents of one secret that are offered to a tracker. ended: why offers ended."""

    def __init__(self, stack: contextlib.ExitStack, tracker: TrackerAddress, program: Path, folder: Path) -> None:
        self.stack, self.tracker, self.program, self.folder = stack, tracker, program, folder
        self.over, self.ended = threading.Event(), list[TvmflowError]()
        self.agents: list[AgentProcess] = []

    def add(self, unit: str) -> AgentProcess:
        agent = self.stack.enter_context(start_agent([str(self.program)], str(self.folder / unit), secret=SECRET))
        offer = Offer(KEY, "127.0.0.1", agent.port, SECRET, unit, f"build of {unit}")
        thread = threading.Thread(target=self._offer, args=(offer,))
        before = self.counts()["total"]
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(self.over.set)
        self.wait(lambda counts: counts["total"] == before + 1 and counts["free"] > 0)
        self.agents.append(agent)
        return agent

    def _offer(self, offer: Offer) -> None:
        try:
            offer_agent(self.tracker, offer, self.over)
        except TvmflowError as error:
            self.ended.append(error)

    def counts(self) -> dict[str, int]:
        return queue_of(self.tracker).get(KEY, {"total": 0, "free": 0, "pending": 0, "agents": 0})

    def wait(self, is_so: Callable[[dict[str, int]], bool]) -> None:
        deadline = time.monotonic() + 120
        while not is_so(self.counts()):
            assert time.monotonic() < deadline, self.counts()
            time.sleep(0.05)

    def device(self, **options: Any) -> DeviceEntry:
        path = secret_file(self.folder, SECRET)
        entry = {
            "transport": "tracker",
            "key": KEY,
            "host": self.tracker.host,
            "port": self.tracker.port,
            "secret_file": str(path),
        }
        return DeviceEntry.model_validate(
            {name: value for name, value in {**entry, **options}.items() if value is not None}
        )


@pytest.fixture
def farm(tracker: TrackerAddress, program: Path, tmp_path: Path) -> Iterator[Farm]:
    with contextlib.ExitStack() as stack:
        made = Farm(stack, tracker, program, tmp_path)
        yield made
        made.over.set()


def test_agents_are_listed_handed_out_and_given_back(farm: Farm, libraries: dict[str, Path]) -> None:
    from tvm import rpc

    farm.add("one")
    farm.add("two")
    device = farm.device()
    summary = rpc.connect_tracker(farm.tracker.host, farm.tracker.port).text_summary()
    assert f"server:{KEY}" in summary and str(farm.agents[0].port) in summary
    assert transport_of(device).state(device).text == "2 of 2 free, 0 waiting"
    with open_session(device, BACKEND, LIMITS) as first, open_session(device, BACKEND, LIMITS) as second:
        assert {first.unit, second.unit} == {"one", "two"} and first.build == f"build of {first.unit}"
        assert not first.has_tvm and not transport_of(device).has_tvm_on(device)
        library = libraries["DOUBLES"]
        model = first.network(first.upload(library), library.parent, [])
        assert np.array_equal(model.run(X)[0], 2 * X)
        with pytest.raises(DeviceBusyError), open_session(device, BACKEND, SessionLimits(60.0, 0.5)):
            pass
        left = first.unit
    farm.wait(lambda counts: counts["free"] == 2)
    with open_session(device, BACKEND, LIMITS) as again:
        assert again.unit in ("one", "two") and left


def test_who_waits_with_priority_is_served_first(farm: Farm) -> None:
    farm.add("one")
    served: list[int] = []

    def wait(priority: int) -> None:
        with open_session(farm.device(priority=priority), BACKEND, SessionLimits(60.0, 60.0)):
            served.append(priority)

    waiting = [threading.Thread(target=wait, args=(priority,)) for priority in (0, 5, 1)]
    with open_session(farm.device(), BACKEND, LIMITS):
        for at, thread in enumerate(waiting):
            thread.start()
            farm.wait(lambda counts, at=at: counts["pending"] == at + 1)  # type: ignore[misc]
        with pytest.raises(DeviceBusyError), open_session(farm.device(priority=9), BACKEND, SessionLimits(60.0, 0.5)):
            pass
        farm.wait(lambda counts: counts["pending"] == 4)  # who gave up is passed over
    for thread in waiting:
        thread.join(60)
    assert served == [5, 1, 0]


def test_a_session_beyond_its_time_is_closed_and_says_so(farm: Farm, libraries: dict[str, Path]) -> None:
    farm.add("one")
    with open_session(farm.device(session_timeout_s=1.0), BACKEND, LIMITS) as session:
        model = session.network(session.upload(libraries["DOUBLES"]), libraries["DOUBLES"].parent, [])
        with pytest.raises(DeviceLostError, match=r"'boards' was closed after 1 s, while [a-z]+ing") as error:
            while True:
                model.run(X)
        assert "session_timeout_s: of the device" in error.value.hint and error.value.retryable
        farm.wait(lambda counts: counts["free"] == 1)  # while who had it still holds the session
    with open_session(farm.device(session_timeout_s=60.0), BACKEND, LIMITS) as session:
        assert session.unit == "one"


def test_a_unit_is_chosen_by_its_name(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker hands out any; the others stay free for everybody, also while the chosen one is in use."""
    monkeypatch.setattr("tvmflow.devices.rpc.tracker_requests._UNIT_PAUSE_S", 0.1)
    monkeypatch.setattr("tvmflow.devices.agent.registration._UNCLAIMED_S", 0.5)
    for name in ("one", "two", "three"):
        farm.add(name)
    device = farm.device()
    assert sorted(transport_of(device).units(device)) == ["one", "three", "two"]
    assert chosen_units(device, ["two"]) == ["two"] and sorted(chosen_units(device, ["all"])) == ["one", "three", "two"]
    for name in ("two", "two", "one"):
        farm.wait(lambda counts: counts["free"] == 3)
        with open_session(device, BACKEND, replace(LIMITS, unit=name)) as session:
            assert session.unit == name
    with open_session(device, BACKEND, replace(LIMITS, unit="three")):
        with pytest.raises(DeviceBusyError), open_session(device, BACKEND, SessionLimits(60.0, 1.0, "three")):
            pass
        farm.wait(lambda counts: counts["free"] == 2)
    with pytest.raises(UnknownNameError, match="no unit 'twoo'") as caught:
        chosen_units(device, ["twoo"])
    assert "two" in caught.value.hint


def test_who_is_given_an_agent_and_never_comes_keeps_it_from_nobody(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvmflow.devices.agent.registration._UNCLAIMED_S", 0.5)
    farm.add("one")
    (farm.folder / "wrong").mkdir()
    wrong = secret_file(farm.folder / "wrong", b"another secret, of somebody")
    with pytest.raises(DeviceRefusedError), open_session(farm.device(secret_file=str(wrong)), BACKEND, LIMITS):
        pass
    with open_session(farm.device(), BACKEND, LIMITS) as session:
        assert session.unit == "one"


def test_a_dead_agent_is_dropped(farm: Farm) -> None:
    farm.add("one").process.kill()
    farm.wait(lambda counts: counts["total"] == 0 and counts["free"] == 0)
    farm.over.set()
    assert [type(error) for error in farm.ended] == [DeviceLostError]


def test_three_agents_of_a_key_tune_side_by_side_and_one_dies(farm: Farm, tmp_path: Path) -> None:
    agents = {unit: farm.add(unit) for unit in ("one", "two", "three")}
    rules = changed(QUICK_RULES, trials_per_workload=12, on_this_host=False, has_tvm=False, devices=3, give_up_s=30.0)
    tuning_log = TuningLog(tmp_path / "log.jsonl", BACKEND.kernel_kind, {"test": "1"})
    killed: list[str] = []

    def say(*_: Any) -> None:
        units = {record.unit for record in tuning_log.known()}
        if not killed and units:
            killed.append(units.pop())
            agents[killed[0]].process.kill()

    device = farm.device()
    report = tune(
        [canary_workload()], lambda: open_session(device, BACKEND, LIMITS), BACKEND, rules, tuning_log, tmp_path, say
    )
    assert killed and not report.device_pool.given_up and set(report.units) == set(agents)
    records = tuning_log.known()
    assert {record.status for record in records} == {OK}
    tried = {tuple(sorted(record.knobs.items())) for record in records}
    assert len(records) == len(tried) == 12, "nothing is lost, and nothing measured twice"
    assert report.device_pool.lost >= 1


def test_agents_and_servers_of_tvm_are_told_apart(farm: Farm) -> None:
    farm.add("one")
    with pytest.raises(UsageError, match="have our agent") as error:
        request_session(Request(farm.tracker, KEY, 5.0), 10.0)
    assert "secret_file" in str(error.value)
    with pytest.raises(Exception, match=r"."):  # at the first words, and not after a minute
        from tvm import rpc

        rpc.connect_tracker(farm.tracker.host, farm.tracker.port).request(KEY, max_retry=1)
    farm.over.set()
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tvm.exec.rpc_server",
            "--tracker",
            f"{farm.tracker.host}:{farm.tracker.port}",
            "--key",
            KEY,
            "--host",
            "127.0.0.1",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        farm.wait(lambda counts: counts["total"] == 1 and counts["agents"] == 0 and counts["free"] == 1)
        with (
            pytest.raises(UsageError, match="0 of 1 devices have our agent"),
            open_session(farm.device(), BACKEND, LIMITS),
        ):
            pass
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    farm.wait(lambda counts: counts["total"] == 0)


def test_an_address_that_others_cannot_reach_is_refused() -> None:
    check_address(TrackerAddress("127.0.0.1", 9190), "127.0.0.1")
    check_address(TrackerAddress("192.0.2.7", 9190), "192.0.2.9")
    with pytest.raises(UsageError, match="this machine to every host"):
        check_address(TrackerAddress("192.0.2.7", 9190), "127.0.0.1")


@contextlib.contextmanager
def _registered(farm: Farm, root: Path, *command: str) -> Iterator[DeviceEntry]:
    """Run a command until Ctrl-C that offers one device; yields that."""
    arguments = [sys.executable, "-m", "tvmflow", "--root", str(root), "device", *command]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        farm.wait(lambda counts: counts["free"] == 1)
        params = yaml.safe_load((root / "params.yaml").read_text())
        yield DeviceEntry.model_validate(params["targets"]["local-cpu"]["device"])
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "tracker" in said
    farm.wait(lambda counts: counts["total"] == 0)


def _workspace(farm: Farm, make_workspace: Callable[..., Path], secret: Path) -> Path:
    def change(params: dict[str, Any]) -> None:
        entry = {
            "transport": "tracker",
            "key": KEY,
            "host": "127.0.0.1",
            "port": farm.tracker.port,
            "secret_file": str(secret),
        }
        params["targets"]["local-cpu"]["device"] = entry

    return make_workspace(change)


def test_a_board_is_registered_by_the_command_line_until_ctrl_c(
    farm: Farm, make_workspace: Callable[..., Path], agent: AgentProcess
) -> None:
    root = _workspace(farm, make_workspace, secret_file(farm.folder, agent.secret))
    command = ("register", "local-cpu", "--agent", f"127.0.0.1:{agent.port}", "--unit", "rack 3")
    with _registered(farm, root, *command) as device, open_session(device, BACKEND, LIMITS) as session:
        assert session.unit == "rack 3"


def test_a_phone_is_made_ready_and_registered_until_ctrl_c(
    farm: Farm, make_workspace: Callable[..., Path], phone: FakePhone
) -> None:
    root = _workspace(farm, make_workspace, secret_file(farm.folder, SECRET))
    with _registered(farm, root, "prepare", phone.serial, "--target", "local-cpu") as device:
        with open_session(device, BACKEND, LIMITS) as session:
            assert (session.unit, session.build) == (phone.serial, "fake/fake/7:15/1")
    assert list((phone.folder / "data").iterdir()) == [] and secret_file(farm.folder, SECRET).exists()
