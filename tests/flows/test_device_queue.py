"""Machines that share a device take turns on one Prefect server; who died keeps nobody waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import device_queue
from flows.device_queue import DeviceQueue
from flows.prefect_server import PrefectServer
from tvmflow.support.errors import DeviceBusyError


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = PrefectServer(Path(tmp_path_factory.mktemp("prefect")))
    try:
        server.wait()
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def _on_server(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", address)


@pytest.mark.slow
@pytest.mark.usefixtures("_on_server")
def test_two_machines_take_turns_and_a_dead_holder_frees_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first, second = DeviceQueue("board-b unit-7", 1, "~/ws a on desk"), DeviceQueue("board-b unit-7", 1, "~/b on lab")
    waits, done = threading.Event(), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waits.set()

    def run() -> None:
        with second.turn(say):
            done.set()

    thread = threading.Thread(target=run)
    with first.turn(said.append):
        with pytest.raises(DeviceBusyError, match="~/ws a on desk"), second.turn(lambda _text: None, 0.1):
            raise AssertionError("two at once")
        thread.start()
        assert waits.wait(60) and not done.is_set()
    thread.join(60)
    assert done.is_set() and said[0].startswith("waits for board-b unit-7, held by ") and "~/ws a on desk" in said[0]

    monkeypatch.setattr(device_queue, "_STALE_S", 0.5)
    with first._client() as client:
        assert first._take(client)  # and dies: nothing renews it
    done.clear()
    with second.turn(said.append, 60.0):
        done.set()
    assert done.is_set()


def test_without_its_server_devices_protect_themselves() -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    said: list[str] = []
    nowhere = temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"})
    with nowhere, DeviceQueue("board-b", 1, "a").turn(said.append):
        pass
    assert len(said) == 1 and said[0].startswith("no queue for board-b: Prefect's server does not answer")
