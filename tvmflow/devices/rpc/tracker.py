"""Request a device from an RPC tracker by its key, with time limits: a TVM server or our agent."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from tvmflow.backends.backend import Backend
from tvmflow.config.options import read_options
from tvmflow.config.params import DeviceEntry
from tvmflow.config.value_types import Host, PathText
from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.agent.registration import AGENT, is_agent
from tvmflow.devices.agent.transport import MeasuringOptions, measuring_session, processor_facts, read_secret
from tvmflow.devices.device_lock import DeviceLock, holders
from tvmflow.devices.gpu_facts import sanitize_name
from tvmflow.devices.rpc.session import RpcTransport
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.tracker_protocol import (
    CONNECT_TIMEOUT_S,
    REQUEST,
    SUCCESS,
    SUMMARY,
    TrackerAddress,
    TrackerConnection,
    no_tracker,
)
from tvmflow.devices.transport import DeviceState, Link, Registry
from tvmflow.devices.waiting import WAITS_HERE, wait_for
from tvmflow.support.errors import (
    DeviceBusyError,
    DeviceError,
    DeviceUnknownError,
    TrackerError,
    UsageError,
    first_line,
)
from tvmflow.targets.device_processor import DeviceFacts
from tvmflow.targets.resolve import ResolvedTarget

Given = TypeVar("Given")
_ANSWER_S = 30.0  # for a tracker and its device to answer when one is free
_UNIT_PAUSE_S = 5.0  # before the free units are asked again for one that is in use


class TrackerOptions(MeasuringOptions):
    """The tracker's address, by default TVM_TRACKER_HOST and TVM_TRACKER_PORT.

    secret_file: the file with the agents' secret, if the devices of the key run our agent.
    """

    host: Host | None = None
    port: Annotated[int, Field(gt=0, lt=65536)] | None = None
    secret_file: PathText | None = None


class TrackerTransport(RpcTransport):
    """The devices of one key that are registered with an RPC tracker."""

    options = TrackerOptions

    def has_tvm_on(self, device: DeviceEntry) -> bool:
        return tracker_options(device).secret_file is None

    def runs_code_of_strangers(self, device: DeviceEntry) -> bool:
        return self.has_tvm_on(device)

    def registry(self, device: DeviceEntry) -> Registry | None:
        named = tracker_options(device).secret_file
        return None if named is None else Registry(tracker_of(device), Path(named), read_secret(Path(named)))

    @contextlib.contextmanager
    def open(self, device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
        options = tracker_options(device)
        if options.secret_file is None:
            with super().open(device, backend, limits) as session:
                yield session
            return
        secret = read_secret(Path(options.secret_file))
        address = tracker_of(device)
        connection, about = request_agent(address, device.key, secret, limits.wait_s, limits.unit)
        with contextlib.closing(connection):
            session = measuring_session(connection, sanitize_name(about.get("unit", "")), backend, limits, options)
            session.build = sanitize_name(about.get("build", "")) or session.build
            with _in_use(address, device.key, session.unit):
                yield session

    def processor(self, device: DeviceEntry, wait_s: float | None) -> DeviceFacts:
        options = tracker_options(device)
        if options.secret_file is None:
            return super().processor(device, wait_s)
        secret = read_secret(Path(options.secret_file))
        connection, _ = request_agent(tracker_of(device), device.key, secret, wait_s)
        with contextlib.closing(connection):
            return processor_facts(connection, options)

    @contextlib.contextmanager
    def connect(self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits) -> Iterator[Link]:
        address = tracker_of(device)
        link = request_session(address, device.key, limits.session_timeout_s, limits.wait_s, limits.unit)
        with _in_use(address, device.key, link.unit):
            yield link

    def units(self, device: DeviceEntry) -> tuple[str, ...]:
        options, address = tracker_options(device), tracker_of(device)
        secret = read_secret(Path(options.secret_file)) if options.secret_file else None
        return tuple(
            _unit_of_entry(entry, device.key, secret)
            for entry in _summary(address)["server_info"]
            if str(entry["key"]).removeprefix("server:") == device.key
        )

    def shared_units(self, device: DeviceEntry) -> tuple[str, int] | None:
        address = tracker_of(device)
        units = queue_of(address).get(device.key, {"total": 0})["total"]
        return (f"{device.key} of tracker {address.host}:{address.port}", units) if units else None

    def state(self, device: DeviceEntry) -> DeviceState:
        counts = queue_of(tracker_of(device)).get(device.key, {"total": 0, "free": 0, "pending": 0, "agents": 0})
        text = f"{counts['free']} of {counts['total']} free, {counts['pending']} waiting"
        return DeviceState(counts["total"] > 0, text, counts)


def tracker_options(device: DeviceEntry) -> TrackerOptions:
    return read_options(TrackerOptions, device.options, "device")


def tracker_of(device: DeviceEntry) -> TrackerAddress:
    """Return the address of a device's tracker. Raises UsageError."""
    options = tracker_options(device)
    return TrackerAddress.find(options.host, options.port)


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


def _summary(address: TrackerAddress) -> dict[str, Any]:
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
    summary = _summary(address)
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


def _unit_of_entry(entry: Mapping[str, Any], key: str, secret: bytes | None) -> str:
    """Return the name of a unit in measurements by its entry in the tracker. Agents without a name there are asked."""
    host, port = entry["addr"]
    if secret is None or AGENT not in entry:
        return f"{host}:{port}"
    if unit := sanitize_name(entry[AGENT].get("unit", "")):
        return unit
    with contextlib.closing(AgentConnection(str(host), int(port), secret, key)) as connection:
        return _unit_of_agent(connection, {})


def _unit_of_agent(connection: AgentConnection, about: Mapping[str, Any]) -> str:
    named = sanitize_name(about.get("unit", ""))
    return named or sanitize_name(connection.ask("probe", "reading its name").get("unit", "")) or connection.place


def request_session(
    address: TrackerAddress, key: str, session_timeout_s: float, wait_s: float | None, unit: str = ""
) -> Link:
    """Return a session with a TVM server of that key, and of that unit if it has a name.

    Raises DeviceUnknownError, DeviceBusyError or TrackerError.
    """

    def ask(left_s: float) -> Link:
        return _with_time_limit(lambda: _ask(address, key, session_timeout_s), key, left_s)

    return _request_device(address, key, wait_s, ask, _Wish[Link](unit, lambda link: link.unit, lambda _link: None))


def request_agent(
    address: TrackerAddress, key: str, secret: bytes, wait_s: float | None, unit: str = ""
) -> tuple[AgentConnection, dict[str, Any]]:
    """Return a connection to an agent of that key, of that unit if it has a name, and its entry in the tracker. Raises
    DeviceUnknownError, DeviceBusyError, TrackerError, and the errors of connecting.
    """
    wish = _Wish[tuple[AgentConnection, dict[str, Any]]](
        unit, lambda given: _unit_of_agent(*given), lambda given: given[0].close(), agents=True
    )
    return _request_device(address, key, wait_s, lambda left_s: _ask_agent(address, key, secret, left_s), wish)


@dataclass(frozen=True)
class _Wish(Generic[Given]):
    """unit: the one that is wanted, "" for any; name, end: of what the tracker gave; agents: whether agents are."""

    unit: str
    name: Callable[[Given], str]
    end: Callable[[Given], None]
    agents: bool = False


class _Others(Generic[Given]):
    """Units that the tracker gave instead of the wanted one, which it hands out next only while these are kept."""

    def __init__(self, wish: _Wish[Given]) -> None:
        self.wish, self.kept, self.again_at = wish, list[Given](), 0.0

    def accept(self, given: Given) -> bool:
        """Return whether it is the wanted unit; keep another one."""
        if not self.wish.unit or self.wish.name(given) == self.wish.unit:
            return True
        self.kept.append(given)
        return False

    def give_back(self) -> None:
        """Leave the units to others; the wanted one is in use."""
        if self.kept:
            self.again_at = time.monotonic() + _UNIT_PAUSE_S
        while self.kept:
            self.wish.end(self.kept.pop())


def _request_device(
    address: TrackerAddress, key: str, wait_s: float | None, ask: Callable[[float], Given], wish: _Wish[Given]
) -> Given:
    """Wait until a device of the key is free and request it.

    TVM's own request blocks forever on an unknown key or a busy device; so the key is looked up first, and the waiting
    is done here.
    """
    others, agents = _Others(wish), wish.agents

    def take() -> Given | None:
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
        if not counts["free"]:
            others.give_back()
        elif time.monotonic() >= others.again_at:
            with contextlib.suppress(DeviceBusyError):  # another host was faster
                given = ask(_ANSWER_S)
                return given if others.accept(given) else None
        return None

    what = f"{wish.unit} of the devices {key!r}" if wish.unit else f"a device {key!r}"
    try:
        return wait_for(what, take, lambda: holders(_lock_name(address, key)), wait_s)
    finally:
        others.give_back()


def _lock_name(address: TrackerAddress, key: str, unit: str = "") -> str:
    return f"tracker-{address.host}:{address.port}-{key}-{unit}"


@contextlib.contextmanager
def _in_use(address: TrackerAddress, key: str, unit: str) -> Iterator[None]:
    """Tell other processes of this machine who uses a device; the tracker hands it to one host at a time."""
    lock = DeviceLock(_lock_name(address, key, unit))
    lock.try_take()
    try:
        with WAITS_HERE.holding():
            yield
    finally:
        lock.release()


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


def _with_time_limit(ask: Callable[[], Link], key: str, wait_s: float) -> Link:
    reply: list[Link | Exception] = []

    def asked() -> None:
        try:
            reply.append(ask())
        except Exception as error:
            reply.append(error)

    thread = threading.Thread(target=asked, daemon=True)
    thread.start()
    thread.join(wait_s)
    if not reply:
        raise _busy(key, wait_s)
    if isinstance(reply[0], DeviceError | UsageError):
        raise reply[0]
    if isinstance(reply[0], Exception):
        raise TrackerError(
            f"the tracker handed out device {key!r}, but it does not respond: {first_line(reply[0])}",
            "a device that accepts the session",
            "check the RPC server on the device; restart it",
        ) from reply[0]
    return reply[0]


def _ask(address: TrackerAddress, key: str, session_timeout_s: float) -> Link:
    """Do the same as TVM's own request, and keep the server's address, which TVM drops.

    A tracker knows a server only by its address, so that is the unit: a board with a new address is a new unit.
    """
    from tvm import rpc
    from tvm.rpc import base

    tracker = connect(address)
    base.sendjson(tracker._sock, [base.TrackerCode.REQUEST, key, "", 1])
    code, value = base.recvjson(tracker._sock)
    if code != base.TrackerCode.SUCCESS:
        raise RuntimeError(f"the tracker refused: {value}")
    host, port, matched = value
    if is_agent(matched):
        raise _wrong_kind(key, False, "a device has our agent")
    return Link(rpc.connect(host, port, matched, session_timeout_s), f"{host}:{port}")


def _ask_agent(
    address: TrackerAddress, key: str, secret: bytes, wait_s: float
) -> tuple[AgentConnection, dict[str, Any]]:
    try:
        with contextlib.closing(TrackerConnection(address)) as tracker:
            code, value = tracker.ask(REQUEST, key, "", 1, within_s=wait_s)
            if code != SUCCESS:
                raise ValueError(f"the tracker refused: {value}")
            host, port, matched = str(value[0]), int(value[1]), str(value[2])
    except TimeoutError:
        raise _busy(key, wait_s) from None
    except (TypeError, ValueError, LookupError) as error:
        raise no_tracker(address, error) from error
    if not is_agent(matched):
        raise _wrong_kind(key, True, "a device has TVM's server")
    listed = [one for one in _summary(address)["server_info"] if list(one.get("addr", ())) == [host, port]]
    return AgentConnection(host, port, secret, key), dict(listed[0][AGENT]) if listed and AGENT in listed[0] else {}


def _busy(key: str, wait_s: float) -> DeviceBusyError:
    return DeviceBusyError(
        f"every device with key {key!r} stayed busy for {wait_s:.0f} s",
        "a free device",
        "wait, add a device of that key, or raise deploy.device_wait_s in params.yaml",
    )
