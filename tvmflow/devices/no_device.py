"""Stand for devices that nothing here reaches: their libraries are built, and not measured."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tvmflow.backends.backend import Backend
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.transport import DeviceState, Transport
from tvmflow.support.errors import DeviceUnknownError

_HINT = "'tvmflow run CELL --without-device' builds the library, 'tvmflow bundle CELL --unmeasured' packs it"


class NoTransport(Transport):
    """No way to reach a device."""

    has_tvm = False

    def open(
        self, device: DeviceEntry, backend: Backend, limits: SessionLimits
    ) -> AbstractContextManager[DeviceSession]:
        raise DeviceUnknownError(f"{device.key!r} has the transport no-device", "a target with a device", _HINT)

    def state(self, device: DeviceEntry) -> DeviceState:
        return DeviceState(False, "nothing runs it here", {}, _HINT)
