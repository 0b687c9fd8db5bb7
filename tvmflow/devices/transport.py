"""What a transport is: how a device is reached. A new one is a file here and a row of TRANSPORTS."""

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
    """An open connection of TVM's RPC. remote: what its client gives; unit: which of the devices of a key responds
    there.
    """

    remote: Any
    unit: str


@dataclass(frozen=True)
class DeviceState:
    """What is known of a device without a session. counts: numbers worth showing, by name; hint: what to do where it is
    not there.
    """

    is_there: bool
    text: str
    counts: dict[str, int]
    hint: str = ""


class Transport(ABC):
    """How the devices of an entry `device:` are reached.

    options: what the entry may say beside `transport` and `key`. is_this_host: its devices compute on this machine, so
    a measurement there must be alone, and frameworks of this machine can be measured beside it. is_emulated: the clock
    of its devices counts executed instructions, a nanosecond each, and is no time. has_tvm: its sessions have, where
    has_tvm_on does not say otherwise of a device.
    """

    options: ClassVar[type[Options]] = Options
    is_this_host: ClassVar[bool] = False
    has_tvm: ClassVar[bool] = True
    is_emulated: ClassVar[bool] = False

    def kind_of(self, kind: str) -> str:
        """Return a kind of device as records have it: what was measured on an emulated one serves no real one."""
        return f"{kind}-emulated" if self.is_emulated else kind

    def has_tvm_on(self, device: DeviceEntry) -> bool:
        """Whether sessions with a device have TVM; where not, the tuner links what it measures so that it needs
        nothing.
        """
        return self.has_tvm

    def registry(self, device: DeviceEntry) -> Registry | None:
        """Return where agents are offered for a device; None where it is reached otherwise. Raises UsageError."""
        return None

    def processor(self, device: DeviceEntry, wait_s: float) -> DeviceFacts:
        """Return what a device says of its processor, for `mcpu: device`. Raises DeviceError, UsageError where it
        cannot say it.
        """
        raise UsageError(
            f"mcpu: device of a device with transport {device.transport}, which says nothing of its processor",
            "a device with our agent: transport agent, adb, or tracker with secret_file",
            "name the processor with mcpu: of the target (host: this machine's)",
        )

    @abstractmethod
    def open(
        self, device: DeviceEntry, backend: Backend, limits: SessionLimits
    ) -> AbstractContextManager[DeviceSession]:
        """Open a session with one device of the key; at the end nothing of it stays open, whatever happened.

        Raises TrackerError, DeviceUnknownError, DeviceBusyError.
        """

    @abstractmethod
    def state(self, device: DeviceEntry) -> DeviceState:
        """Return whether there is a device of the key, and what it does. Raises TvmflowError when nobody knows."""


@dataclass(frozen=True)
class Registry:
    """A tracker, and the secret of all agents that are offered to it under one key."""

    tracker: TrackerAddress
    secret_file: Path
    secret: bytes
