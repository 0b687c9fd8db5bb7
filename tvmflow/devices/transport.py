"""Define the interface of a transport. A new one is a file here and an entry of TRANSPORTS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tvmflow.backends.backend import Backend
from tvmflow.config.options import Options
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.support.errors import UsageError
from tvmflow.targets.device_processor import DeviceFacts


@dataclass(frozen=True)
class Link:
    """An open connection of TVM's RPC. remote: the client's session; unit: the device among those of the key."""

    remote: Any
    unit: str


@dataclass(frozen=True)
class DeviceState:
    """The state of a device without a session. counts: numbers to show, by name; hint: what to do if it is missing."""

    is_there: bool
    text: str
    counts: dict[str, int]
    hint: str = ""


class Transport(ABC):
    """A way to reach the devices of a `device:` entry.

    options: the entry's fields beside `transport` and `key`. is_this_host: its devices compute on this machine, so
    measurements exclude each other, and baselines can be measured beside them. is_emulated: the devices' clock counts
    executed instructions as nanoseconds. has_tvm: its sessions have TVM, unless has_tvm_on says otherwise for a device.
    """

    options: ClassVar[type[Options]] = Options
    is_this_host: ClassVar[bool] = False
    has_tvm: ClassVar[bool] = True
    is_emulated: ClassVar[bool] = False

    def kind_of(self, kind: str) -> str:
        """Return the device kind of records; records of emulated devices are not used for real ones."""
        return f"{kind}-emulated" if self.is_emulated else kind

    def has_tvm_on(self, device: DeviceEntry) -> bool:
        """Return whether sessions with a device have TVM; without it, the tuner links self-contained kernels."""
        return self.has_tvm

    def registry(self, device: DeviceEntry) -> Registry | None:
        """Return the tracker of a device's agents; None for another transport. Raises UsageError."""
        return None

    def processor(self, device: DeviceEntry, wait_s: float | None) -> DeviceFacts:
        """Return a device's description of its processor, for `mcpu: device`. Raises DeviceError, UsageError if it has
        none.
        """
        raise UsageError(
            f"mcpu: device of a device with transport {device.transport}, which does not report its processor",
            "a device with our agent: transport agent, adb, or tracker with secret_file",
            "set the processor as mcpu: of the target (host: this machine's)",
        )

    def shared_units(self, device: DeviceEntry) -> tuple[str, int] | None:
        """Return a name of a device and the number of its units, if other machines reach it too; None otherwise.

        Raises TvmflowError if it cannot be asked.
        """
        return None

    def runs_code_of_strangers(self, device: DeviceEntry) -> bool:
        """Return whether whoever reaches a device can run code there, as TVM's servers let everyone."""
        return False

    def units(self, device: DeviceEntry) -> tuple[str, ...]:
        """Return the names of the units that a session can ask for; empty if there is one, which only a session names.

        Raises TvmflowError if they cannot be asked.
        """
        return ()

    @abstractmethod
    def open(
        self, device: DeviceEntry, backend: Backend, limits: SessionLimits
    ) -> AbstractContextManager[DeviceSession]:
        """Open a session with one device of the key, with `limits.unit` if that has a name, and close everything at the
        end.

        Raises TrackerError, DeviceUnknownError, DeviceBusyError.
        """

    @abstractmethod
    def state(self, device: DeviceEntry) -> DeviceState:
        """Return the state of the devices of the key. Raises TvmflowError if it is unknown."""


@dataclass(frozen=True)
class Registry:
    """A tracker, and the secret of all agents registered with it under one key."""

    tracker: TrackerAddress
    secret_file: Path
    secret: bytes
