"""Test the state that an agent reports of a library's process and of its machine, and agents that report none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.devices.agents import X, opened, session_with
from tvmflow.devices.agent.process import AgentProcess, start_agent
from tvmflow.devices.agent.session import AgentNetwork
from tvmflow.devices.session import STATE
from tvmflow.evaluation.machine_state import DeviceWatch, TurnState
from tvmflow.support.errors import DeviceError, DeviceLostError

COUNTERS = {"wall_s", "own_s", "waited_s", "switches", "busy_s", "processors"}


def timed(network: AgentNetwork) -> None:
    network.set_inputs(X)
    network.times(3, 50.0)


def test_an_agent_tells_the_state_of_a_turn(agent: AgentProcess, libraries: dict[str, Path]) -> None:
    with session_with(agent) as session:
        network = opened(session, libraries["DOUBLES"])
        before = network.state(2, look=False)
        timed(network)
        after = network.state(2, look=True)
        assert before is not None and after is not None
        assert set(before) == COUNTERS and set(before) < set(after) <= {*STATE, "celsius"}
        assert after["wall_s"] - before["wall_s"] > 0.14 and after["own_s"] - before["own_s"] > 0.01
        assert after["own_s"] < 60, "of the library's process alone"
        assert after["loop_ns"] > 0
        watch = DeviceWatch(network, 1)
        watch.begin()
        timed(network)
        state = watch.end(None)
        assert state.own_s is not None and 0.01 < state.own_s < 10
        assert state.waited is not None and 0 <= state.waited < 1 and state.foreign is not None


def test_its_temperature_is_that_of_the_processor(program: Path, tmp_path: Path, libraries: dict[str, Path]) -> None:
    zone = tmp_path / "system" / "sys" / "class" / "thermal" / "thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("cpu-0\n")
    (zone / "temp").write_text("48500\n")
    options = ["--system-root", str(tmp_path / "system")]
    with start_agent([str(program)], str(tmp_path / "store"), options) as agent, session_with(agent) as session:
        network = opened(session, libraries["DOUBLES"])
        assert (network.state(1, look=True) or {})["celsius"] == 48.5
        assert "celsius" not in (network.state(1, look=False) or {})


@pytest.mark.parametrize(
    "request_text", ["state look=2 threads=1", "state look=1 threads=0", "state look=x", "state threads=65"]
)
def test_what_is_no_request_for_a_state_is_refused(
    agent: AgentProcess, libraries: dict[str, Path], request_text: str
) -> None:
    with session_with(agent) as session:
        network = opened(session, libraries["DOUBLES"])
        with pytest.raises(DeviceError, match="look or threads"):
            network.ask(request_text, "asking")
        assert network.state(1, look=False)


@contextlib.contextmanager
def before_states(agent: AgentProcess) -> Iterator[AgentProcess]:
    """Give the agent as one that was made before there was this request: it hears a name that it does not know."""

    def passed_on(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := one.recv(1 << 16):
                other.sendall(part.replace(b"state look", b"stale look"))
            other.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            host, _ = listener.accept()
            with host, socket.create_connection(("127.0.0.1", agent.port)) as device:
                back = threading.Thread(target=passed_on, args=(device, host))
                back.start()
                passed_on(host, device)
                back.join()

        serving = threading.Thread(target=serve)
        serving.start()
        yield replace(agent, port=listener.getsockname()[1])
        serving.join()


def test_an_agent_from_before_there_were_states_tells_none(agent: AgentProcess, libraries: dict[str, Path]) -> None:
    with before_states(agent) as older, session_with(older) as session:
        network = opened(session, libraries["DOUBLES"])
        assert network.state(2, look=False) is None and network.state(2, look=True) is None
        watch = DeviceWatch(network, 2)
        watch.begin()
        timed(network)
        assert watch.end(None) == TurnState()


def test_a_library_that_has_ended_is_lost(agent: AgentProcess, libraries: dict[str, Path]) -> None:
    with session_with(agent) as session:
        network = opened(session, libraries["DOUBLES"])
        agent.process.kill()
        agent.process.wait()
        with pytest.raises(DeviceLostError):  # the process of the library may reply once more
            for _ in range(100):
                DeviceWatch(network, 2).begin()
                time.sleep(0.05)
