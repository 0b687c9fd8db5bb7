"""Open sessions with the devices of a key of an RPC tracker: with a TVM server, or with our agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tvmflow.backends.backend import Backend
from tvmflow.config.options import read_options
from tvmflow.config.params import DeviceEntry
from tvmflow.config.value_types import Host, PathText
from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.agent.registration import AGENT
from tvmflow.devices.agent.transport import MeasuringOptions, measuring_session, processor_facts, read_secret
from tvmflow.devices.device_lock import DeviceLock
from tvmflow.devices.gpu_facts import sanitize_name
from tvmflow.devices.rpc.session import RpcTransport
from tvmflow.devices.rpc.tracker_requests import (
    Request,
    lock_name,
    queue_of,
    request_agent,
    request_session,
    summary_of,
    unit_of_agent,
)
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.devices.transport import DeviceState, Link, Registry
from tvmflow.devices.waiting import WAITS_HERE
from tvmflow.targets.device_processor import DeviceFacts
from tvmflow.targets.resolve import ResolvedTarget


class TrackerOptions(MeasuringOptions):
    """The tracker's address, by default TVM_TRACKER_HOST and TVM_TRACKER_PORT.

    secret_file: the file with the agents' secret, if the devices of the key run our agent. priority: of several hosts
    that wait for a device of the key, the one with the highest is served first. session_timeout_s: a longer session is
    closed; by default deploy.session_timeout_s, which for agents limits each request instead.
    """

    host: Host | None = None
    port: Annotated[int, Field(gt=0, lt=65536)] | None = None
    secret_file: PathText | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 1
    session_timeout_s: Annotated[float, Field(gt=0, le=86400)] | None = None


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
        if options.session_timeout_s is not None:
            limits = replace(limits, session_timeout_s=options.session_timeout_s)
        if options.secret_file is None:
            with super().open(device, backend, limits) as session:
                yield session
            return
        secret = read_secret(Path(options.secret_file))
        address = tracker_of(device)
        request = Request(address, device.key, limits.wait_s, limits.unit, options.priority)
        connection, about = request_agent(request, secret)
        with contextlib.closing(connection), connection.closed_after(options.session_timeout_s):
            session = measuring_session(connection, sanitize_name(about.get("unit", "")), backend, limits, options)
            session.build = sanitize_name(about.get("build", "")) or session.build
            with _in_use(address, device.key, session.unit):
                yield session

    def processor(self, device: DeviceEntry, wait_s: float | None) -> DeviceFacts:
        options = tracker_options(device)
        if options.secret_file is None:
            return super().processor(device, wait_s)
        secret = read_secret(Path(options.secret_file))
        request = Request(tracker_of(device), device.key, wait_s, priority=options.priority)
        connection, _ = request_agent(request, secret)
        with contextlib.closing(connection):
            return processor_facts(connection, options)

    @contextlib.contextmanager
    def connect(self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits) -> Iterator[Link]:
        address = tracker_of(device)
        request = Request(address, device.key, limits.wait_s, limits.unit, tracker_options(device).priority)
        link = request_session(request, limits.session_timeout_s)
        with _in_use(address, device.key, link.unit):
            yield link

    def units(self, device: DeviceEntry) -> tuple[str, ...]:
        options, address = tracker_options(device), tracker_of(device)
        secret = read_secret(Path(options.secret_file)) if options.secret_file else None
        return tuple(
            _unit_of_entry(entry, device.key, secret)
            for entry in summary_of(address)["server_info"]
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


def _unit_of_entry(entry: Mapping[str, Any], key: str, secret: bytes | None) -> str:
    """Return the name of a unit in measurements by its entry in the tracker. Agents without a name there are asked."""
    host, port = entry["addr"]
    if secret is None or AGENT not in entry:
        return f"{host}:{port}"
    if unit := sanitize_name(entry[AGENT].get("unit", "")):
        return unit
    with contextlib.closing(AgentConnection(str(host), int(port), secret, key)) as connection:
        return unit_of_agent(connection, {})


@contextlib.contextmanager
def _in_use(address: TrackerAddress, key: str, unit: str) -> Iterator[None]:
    """Tell other processes of this machine who uses a device; the tracker hands it to one host at a time."""
    lock = DeviceLock(lock_name(address, key, unit))
    lock.try_take()
    try:
        with WAITS_HERE.holding():
            yield
    finally:
        lock.release()
