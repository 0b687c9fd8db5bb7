"""Reach a device with our agent by its address: a board behind a tunnel, or a phone behind adb forward."""

from __future__ import annotations

import contextlib
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tvmflow.backends.backend import Backend
from tvmflow.config.options import Options, read_options
from tvmflow.config.params import DeviceEntry
from tvmflow.config.value_types import Host, PathText
from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.agent.session import AgentSession
from tvmflow.devices.device_lock import hold
from tvmflow.devices.gpu_facts import sanitize_name
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.transport import DeviceState, Transport
from tvmflow.devices.waiting import WAITS_HERE
from tvmflow.support.errors import DeviceLostError, DeviceUnknownError, UsageError
from tvmflow.targets.cores import core_of
from tvmflow.targets.device_processor import DeviceFacts

_RETRY_S = 1.0
_START_S = 10.0  # an agent may still be starting


class MeasuringOptions(Options):
    """Options of measurements on an agent. cpu_mask: bit i allows CPU i; max_celsius: wait above it."""

    cpu_mask: Annotated[int, Field(gt=0, lt=1 << 64)] | None = None
    max_celsius: Annotated[float, Field(ge=20, le=120)] | None = None


class AgentOptions(MeasuringOptions):
    """Address of the agent, and the file with its secret, which only its owner may read."""

    host: Host = "127.0.0.1"
    port: Annotated[int, Field(gt=0, lt=65536)]
    secret_file: PathText


class AgentTransport(Transport):
    """One device with an agent."""

    options = AgentOptions
    has_tvm = False

    @contextlib.contextmanager
    def open(self, device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
        options, secret = _options_and_secret(device)
        with (
            hold(f"agent-{options.host}:{options.port}", device.key, limits.wait_s),
            contextlib.closing(
                connect_agent(options.host, options.port, secret, device.key, limits.wait_s)
            ) as connection,
        ):
            session = measuring_session(connection, "", backend, limits, options)
            with WAITS_HERE.holding():
                yield session

    def processor(self, device: DeviceEntry, wait_s: float | None) -> DeviceFacts:
        options, secret = _options_and_secret(device)
        with contextlib.closing(connect_agent(options.host, options.port, secret, device.key, wait_s)) as connection:
            return processor_facts(connection, options)

    def shared_units(self, device: DeviceEntry) -> tuple[str, int] | None:
        options, secret = _options_and_secret(device)
        with contextlib.closing(AgentConnection(options.host, options.port, secret, device.key)) as connection:
            unit = sanitize_name(connection.ask("probe", "reading its description").get("unit", ""))
        return (f"{device.key} {unit}", 1) if unit else None

    def state(self, device: DeviceEntry) -> DeviceState:
        options, secret = _options_and_secret(device)
        with contextlib.closing(AgentConnection(options.host, options.port, secret, device.key)) as connection:
            taken = bool(connection.ask("probe", "reading its description").get("taken"))
        return DeviceState(True, "in use" if taken else "free", {"total": 1, "free": int(not taken)})


def _options_and_secret(device: DeviceEntry) -> tuple[AgentOptions, bytes]:
    options = read_options(AgentOptions, device.options, "device")
    return options, read_secret(Path(options.secret_file))


def connect_agent(host: str, port: int, secret: bytes, name: str, wait_s: float | None) -> AgentConnection:
    """Connect to an agent that may still be starting, within wait_s. Raises DeviceLostError, DeviceRefusedError,
    AgentVersionError.
    """
    deadline = time.monotonic() + (_START_S if wait_s is None else min(wait_s, _START_S))
    while True:
        try:
            return AgentConnection(host, port, secret, name)
        except DeviceLostError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def processor_facts(connection: AgentConnection, options: MeasuringOptions) -> DeviceFacts:
    """Return what an agent reports about its processor: about the fastest core that is used."""
    found = connection.ask("probe", "reading its description")
    mask = options.cpu_mask or -1
    cores = [core for core in found.get("cores", ()) if mask >> int(core.get("cpu", 0)) & 1]
    rank = [(int(core.get("capacity", 0)), int(core.get("max_khz", 0)), at) for at, core in enumerate(cores)]
    fastest = cores[max(rank)[2]] if rank else {}
    return DeviceFacts(
        str(found.get("machine", "")), core_of(str(fastest.get("midr", ""))), str(found.get("features", ""))
    )


def measuring_session(
    connection: AgentConnection, unit: str, backend: Backend, limits: SessionLimits, options: MeasuringOptions
) -> AgentSession:
    """Return a session with exclusive use of the device, which waits for it to cool down."""
    session = AgentSession(connection, unit, backend.target, limits, options.cpu_mask or 0)
    session.max_celsius = options.max_celsius
    session.times_kernels = backend.has_own_clock
    facts = session.probe()
    session.build = sanitize_name(facts.get("build", ""))
    session.unit = unit or sanitize_name(facts.get("unit", "")) or connection.place
    return session


def read_secret(path: Path) -> bytes:
    """Return the first line of a file that only its owner may read. Raises UsageError, and DeviceUnknownError where
    there is no such file: on a machine that no agent was set up for.
    """
    try:
        mode = path.expanduser().stat().st_mode
        found = path.expanduser().read_bytes()[:1000].split(b"\n")[0]
    except OSError as error:
        kind = DeviceUnknownError if isinstance(error, FileNotFoundError) else UsageError
        raise kind(
            f"the secret of an agent cannot be read: {error}",
            "the file with which the agent was started",
            "correct secret_file: of the device",
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO) or not 16 <= len(found) <= 256:
        raise UsageError(
            f"{path}, the secret of an agent, is readable by others, or has {len(found)} characters",
            "16 to 256 characters in a file of mode 0600",
            f"chmod 600 {path}",
        )
    return found
