"""The transports, a row each: what `transport:` of a device may be."""

from __future__ import annotations

from tvmflow.devices.adb_transport import PhoneTransport
from tvmflow.devices.agent import AgentTransport
from tvmflow.devices.emulated import EmulatedTransport
from tvmflow.devices.local import LocalTransport
from tvmflow.devices.local_agent import LocalAgentTransport
from tvmflow.devices.tracker import TrackerTransport
from tvmflow.devices.transport import Transport
from tvmflow.errors import UnknownNameError
from tvmflow.params import DeviceEntry
from tvmflow.plugins import Table

TRANSPORTS: Table[Transport] = Table(
    "transports",
    {
        "local": LocalTransport(), "tracker": TrackerTransport(), "agent": AgentTransport(), "adb": PhoneTransport(),
        "emulated": EmulatedTransport(), "local-agent": LocalAgentTransport(),
    },
)  # fmt: skip


def transport_of(device: DeviceEntry) -> Transport:
    """Return the row by which a device is reached. Raises UnknownNameError."""
    if device.transport not in TRANSPORTS:
        raise UnknownNameError(f"no transport {device.transport!r}", legal=TRANSPORTS)
    return TRANSPORTS[device.transport]
