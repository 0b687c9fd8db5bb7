"""List the transports, the values of `transport:` of a device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from tvmflow.backends.backend import Backend
from tvmflow.config.params import DeviceEntry
from tvmflow.config.plugins import Table
from tvmflow.devices.agent.local import LocalAgentTransport
from tvmflow.devices.agent.transport import AgentTransport
from tvmflow.devices.android.transport import PhoneTransport
from tvmflow.devices.no_device import NoTransport
from tvmflow.devices.node.transport import NodeTransport
from tvmflow.devices.rpc.direct import DirectTransport
from tvmflow.devices.rpc.emulated import EmulatedTransport
from tvmflow.devices.rpc.local import LocalTransport
from tvmflow.devices.rpc.tracker import TrackerTransport
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.transport import Transport
from tvmflow.support.errors import UnknownNameError

TRANSPORTS: Table[Transport] = Table(
    "transports",
    {
        "local": LocalTransport(),
        "tracker": TrackerTransport(),
        "direct": DirectTransport(),
        "agent": AgentTransport(),
        "adb": PhoneTransport(),
        "emulated": EmulatedTransport(),
        "local-agent": LocalAgentTransport(),
        "node": NodeTransport(),
        "no-device": NoTransport(),
    },
)


def transport_of(device: DeviceEntry) -> Transport:
    """Return the transport of a device. Raises UnknownNameError."""
    if device.transport not in TRANSPORTS:
        raise UnknownNameError(f"no transport {device.transport!r}", legal=TRANSPORTS)
    return TRANSPORTS[device.transport]


@contextlib.contextmanager
def open_session(device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
    """Open a session with the device of a target and close it at the end.

    Raises TrackerError, DeviceUnknownError, DeviceBusyError, and UnknownNameError for an unknown transport or unit.
    """
    transport = transport_of(device)
    check_unit(device, limits.unit)
    with transport.open(device, backend, limits) as session:
        if limits.unit not in ("", session.unit):
            raise _no_unit(device, limits.unit, (session.unit,))
        yield session


def check_unit(device: DeviceEntry, unit: str) -> None:
    """Raise UnknownNameError for a unit that a device does not have, if its transport knows them."""
    units = transport_of(device).units(device) if unit else ()
    if units and unit not in units:
        raise _no_unit(device, unit, units)


def _no_unit(device: DeviceEntry, unit: str, units: Iterable[str]) -> UnknownNameError:
    return UnknownNameError(f"no unit {unit!r} of device {device.key!r}", legal=units, name=unit)
