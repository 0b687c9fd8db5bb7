"""The transports, a row each: what `transport:` of a device may be."""

from __future__ import annotations

from tvmflow.config.params import DeviceEntry
from tvmflow.config.plugins import Table
from tvmflow.devices.agent.local import LocalAgentTransport
from tvmflow.devices.agent.transport import AgentTransport
from tvmflow.devices.android.transport import PhoneTransport
from tvmflow.devices.rpc.emulated import EmulatedTransport
from tvmflow.devices.rpc.local import LocalTransport
from tvmflow.devices.rpc.tracker import TrackerTransport
from tvmflow.devices.transport import Transport
from tvmflow.support.errors import UnknownNameError

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
