"""Request a device from TVM's RPC tracker by its key: a place in its queue, with priority and time limits.

tracker.py opens sessions with what is given here: a TVM server, or our agent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.agent.registration import AGENT, is_agent
from tvmflow.devices.device_lock import holders
from tvmflow.devices.gpu_facts import sanitize_name
from tvmflow.devices.tracker_protocol import (
    CONNECT_TIMEOUT_S,
    REQUEST,
    SUCCESS,
    SUMMARY,
    TrackerAddress,
    TrackerConnection,
    no_tracker,
)
from tvmflow.devices.transport import Link
from tvmflow.devices.waiting import wait_for
from tvmflow.support.errors import (
    DeviceError,
    DeviceUnknownError,
    TrackerError,
    UsageError,
    first_line,
)

Given = TypeVar("Given")
_ANSWER_S = 30.0  # for a tracker and its device to answer when one is free
_SOON_S = 1.0  # for a tracker to answer when one is free, before the wait is told
_UNIT_PAUSE_S = 5.0  # before the free units are asked again for one that is in use


@dataclass(frozen=True)
class Request:
    """What a tracker is asked for. unit: the one that is wanted, "" for any; priority: who waits with a higher one is
    served first; wait_s: longest wait, None for no limit.
    """

    address: TrackerAddress
    key: str
    wait_s: float | None
    unit: str = ""
    priority: int = 1


def connect(address: TrackerAddress) -> Any:
    """Return TVM's tracker session. Raises TrackerError without a response."""
    try:
        socket.create_connection(
            (address.host, address.port), timeout=CONNECT_TIMEOUT_S
        ).close()  # since TVM itself retries for 60 s
        from tvm import rpc

        return rpc.connect_tracker(address.host, address.port)
    except Exception as error:  # RuntimeError, OSError, or a protocol error of another program
        raise no_tracker(address, error) from error


def summary_of(address: TrackerAddress) -> dict[str, Any]:
    """Return the tracker's summary. Raises TrackerError."""
    with contextlib.closing(TrackerConnection(address)) as connection:
        try:
            code, found = connection.ask(SUMMARY)
            if code != SUCCESS or not {"server_info", "queue_info"} <= set(found):
                raise ValueError("the reply is not from a tracker")
            return dict(found)
        except (TimeoutError, ValueError, TypeError) as error:
            raise no_tracker(address, error) from error


def queue_of(address: TrackerAddress) -> dict[str, dict[str, int]]:
    """Return key -> total, free and pending devices of the tracker; agents: how many of them run our agent."""
    summary = summary_of(address)
    total: dict[str, int] = {}
    agents: dict[str, int] = {}
    for entry in summary["server_info"]:
        key = str(entry["key"]).removeprefix("server:")
        total[key] = total.get(key, 0) + 1
        agents[key] = agents.get(key, 0) + (AGENT in entry)
    queue = summary["queue_info"]
    return {
        key: {
            "total": total.get(key, 0),
            "free": int(queue.get(key, {}).get("free", 0)),
            "pending": int(queue.get(key, {}).get("pending", 0)),
            "agents": agents.get(key, 0),
        }
        for key in sorted({*total, *queue})
    }


def unit_of_agent(connection: AgentConnection, about: Mapping[str, Any]) -> str:
    named = sanitize_name(about.get("unit", ""))
    return named or sanitize_name(connection.ask("probe", "reading its name").get("unit", "")) or connection.place


def request_session(request: Request, session_timeout_s: float) -> Link:
    """Return a session with a TVM server. Raises DeviceUnknownError, DeviceBusyError or TrackerError."""

    def open_given(host: str, port: int, matched: str) -> Link:
        if is_agent(matched):
            raise _wrong_kind(request.key, False, "a device has our agent")
        return _with_time_limit(lambda: _connect_server(host, port, matched, session_timeout_s), request.key)

    return _request_device(request, open_given, _Wish[Link](lambda link: link.unit, lambda _link: None))


def request_agent(request: Request, secret: bytes) -> tuple[AgentConnection, dict[str, Any]]:
    """Return a connection to an agent and its entry in the tracker. Raises DeviceUnknownError, DeviceBusyError,
    TrackerError, and the errors of connecting.
    """

    def open_given(host: str, port: int, matched: str) -> tuple[AgentConnection, dict[str, Any]]:
        if not is_agent(matched):
            raise _wrong_kind(request.key, True, "a device has TVM's server")
        listed = [
            one for one in summary_of(request.address)["server_info"] if list(one.get("addr", ())) == [host, port]
        ]
        about = dict(listed[0][AGENT]) if listed and AGENT in listed[0] else {}
        return AgentConnection(host, port, secret, request.key), about

    wish = _Wish[tuple[AgentConnection, dict[str, Any]]](
        lambda given: unit_of_agent(*given), lambda given: given[0].close(), agents=True
    )
    return _request_device(request, open_given, wish)


class _Place:
    """A place in the tracker's queue of a key, in the order of priority; it ends with its connection."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._connection: TrackerConnection | None = None

    def given(self, within_s: float) -> tuple[str, int, str] | None:
        """Return address and match key of the device that the tracker gives within this time, else None: then the
        place is kept.
        """
        address = self.request.address
        if self._connection is None:
            self._connection = TrackerConnection(address)
            self._connection.send(REQUEST, self.request.key, "", self.request.priority)
        if not self._connection.has_reply(within_s):
            return None
        try:
            code, value = self._connection.receive()
            if code != SUCCESS:
                raise ValueError(f"the tracker refused: {value}")
            return str(value[0]), int(value[1]), str(value[2])
        except (TimeoutError, TypeError, ValueError, LookupError) as error:
            raise no_tracker(address, error) from error
        finally:
            self.leave()

    def leave(self) -> None:
        """Give the place up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True)
class _Wish(Generic[Given]):
    """name, end: of what the tracker gave; agents: whether agents are wanted."""

    name: Callable[[Given], str]
    end: Callable[[Given], None]
    agents: bool = False


class _Others(Generic[Given]):
    """Units that the tracker gave instead of the wanted one, which it hands out next only while these are kept."""

    def __init__(self, unit: str, wish: _Wish[Given]) -> None:
        self.unit, self.wish, self.kept, self.again_at = unit, wish, list[Given](), 0.0

    def accept(self, given: Given) -> bool:
        """Return whether it is the wanted unit; keep another one."""
        if not self.unit or self.wish.name(given) == self.unit:
            return True
        self.kept.append(given)
        return False

    def give_back(self) -> None:
        """Leave the units to others; the wanted one is in use."""
        if self.kept:
            self.again_at = time.monotonic() + _UNIT_PAUSE_S
        while self.kept:
            self.wish.end(self.kept.pop())


def _request_device(request: Request, open_given: Callable[[str, int, str], Given], wish: _Wish[Given]) -> Given:
    """Wait for a device of the key at the tracker, which serves who waits there by priority.

    TVM's own request blocks forever on an unknown key; so the key is looked up before, and while waiting. Who wants one
    unit takes a place only while one is free: the tracker would give it any.
    """
    others, place = _Others(request.unit, wish), _Place(request)

    def take() -> Given | None:
        counts = _counts(request, wish.agents)
        if request.unit and not counts["free"]:
            others.give_back()
            return None
        if request.unit and time.monotonic() < others.again_at:
            return None
        offered = place.given(0.0 if not counts["free"] else _ANSWER_S if request.unit else _SOON_S)
        if offered is None:
            return None
        given = open_given(*offered)
        return given if others.accept(given) else None

    key = request.key
    what = f"{request.unit} of the devices {key!r}" if request.unit else f"a device {key!r}"
    try:
        return wait_for(what, take, lambda: holders(lock_name(request.address, key)), request.wait_s)
    finally:
        place.leave()
        others.give_back()


def _counts(request: Request, agents: bool) -> dict[str, int]:
    """Return the numbers of the key at the tracker. Raises DeviceUnknownError, and UsageError for devices of another
    kind.
    """
    address, key = request.address, request.key
    queue = queue_of(address)
    counts = queue.get(key, {"total": 0, "agents": 0})
    if counts["total"] == 0:
        raise DeviceUnknownError(
            f"no device with key {key!r} at tracker {address.host}:{address.port}",
            "one of " + (", ".join(k for k, v in queue.items() if v["total"]) or "(none is registered)"),
            f"register it: tvmflow device register TARGET --agent HOST:PORT, or python -m tvm.exec.rpc_server "
            f"--tracker {address.host}:{address.port} --key {key}",
        )
    if counts["agents"] != (counts["total"] if agents else 0):
        raise _wrong_kind(key, agents, f"{counts['agents']} of {counts['total']} devices have our agent")
    return counts


def lock_name(address: TrackerAddress, key: str, unit: str = "") -> str:
    return f"tracker-{address.host}:{address.port}-{key}-{unit}"


def _wrong_kind(key: str, agents: bool, found: str) -> UsageError:
    if agents:
        return UsageError(
            f"key {key!r} with secret_file:, and {found}",
            "agents only: TVM's servers have no secret",
            "remove secret_file: from the device, or register the others under another key",
        )
    return UsageError(
        f"key {key!r} without secret_file:, and {found}",
        "TVM's servers only",
        "set the file with the agents' secret as secret_file: of the device, or register them under another key",
    )


def _with_time_limit(ask: Callable[[], Link], key: str) -> Link:
    reply: list[Link | Exception] = []

    def asked() -> None:
        try:
            reply.append(ask())
        except Exception as error:
            reply.append(error)

    thread = threading.Thread(target=asked, daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    if not reply:
        raise _silent(key, f"nothing within {_ANSWER_S:.0f} s")
    if isinstance(reply[0], DeviceError | UsageError):
        raise reply[0]
    if isinstance(reply[0], Exception):
        raise _silent(key, first_line(reply[0])) from reply[0]
    return reply[0]


def _silent(key: str, why: str) -> TrackerError:
    return TrackerError(
        f"the tracker handed out device {key!r}, but it does not respond: {why}",
        "a device that accepts the session",
        "check the RPC server on the device; restart it",
    )


def _connect_server(host: str, port: int, matched: str, session_timeout_s: float) -> Link:
    """Do the same as TVM's own request after the tracker's reply, and keep the server's address, which TVM drops.

    A tracker knows a server only by its address, so that is the unit: a board with a new address is a new unit.
    """
    from tvm import rpc

    return Link(rpc.connect(host, port, matched, session_timeout_s), f"{host}:{port}")
