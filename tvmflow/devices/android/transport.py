"""Define the transport adb: a session uses a free phone and restores it, except for uploaded files."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tvmflow.backends.backend import Backend
from tvmflow.config.options import read_options
from tvmflow.config.params import DeviceEntry
from tvmflow.config.value_types import PathText
from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.agent.transport import MeasuringOptions, measuring_session
from tvmflow.devices.android.adb import Phone, list_phones, unusable_reason
from tvmflow.devices.android.phones import PreparedPhone, check_architecture, prepare_phone
from tvmflow.devices.device_lock import DeviceLock
from tvmflow.devices.gpu_facts import sanitize_name
from tvmflow.devices.programs import agent_for
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.transport import DeviceState, Transport
from tvmflow.devices.waiting import WAITS_HERE, wait_for
from tvmflow.support.errors import DeviceError, DeviceRefusedError, DeviceUnpluggedError
from tvmflow.targets.device_processor import DeviceFacts

_ATTACH = "attach one, unlock it and confirm the question on its screen"
Serial = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$")]


class PhoneOptions(MeasuringOptions):
    """serials: usable phones, by default all that are attached. agent: its program, by default compiled. hash_serial:
    measurements contain a digest of the serial.
    """

    serials: Annotated[tuple[Serial, ...], Field(strict=False)] = ()
    agent: PathText | None = None
    hash_serial: bool = False


class PhoneTransport(Transport):
    """Phones connected by USB or network, one session each."""

    options = PhoneOptions
    has_tvm = False

    @contextlib.contextmanager
    def open(self, device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
        options = read_options(PhoneOptions, device.options, "device")
        wanted = [one for one in _usable(options) if limits.unit == unit_of(one, options.hash_serial)]
        with _free_phone(wanted or options.serials, limits.wait_s) as serial:
            phone = Phone(serial)
            facts = phone.facts()
            check_architecture(phone, facts, backend.target)
            program = Path(options.agent) if options.agent else agent_for(backend.target)
            with prepare_phone(phone, facts, program) as ready:
                connection = PhoneConnection(ready, device.key, limits)
                with contextlib.closing(connection):
                    session = measuring_session(
                        connection, unit_of(serial, options.hash_serial), backend, limits, options
                    )
                    session.build = sanitize_name(facts.build) or session.build
                    yield session

    def processor(self, device: DeviceEntry, wait_s: float | None) -> DeviceFacts:
        options = read_options(PhoneOptions, device.options, "device")
        with _free_phone(options.serials, wait_s) as serial:
            return Phone(serial).facts().processor

    def units(self, device: DeviceEntry) -> tuple[str, ...]:
        options = read_options(PhoneOptions, device.options, "device")
        return tuple(unit_of(serial, options.hash_serial) for serial in _usable(options))

    def state(self, device: DeviceEntry) -> DeviceState:
        options = read_options(PhoneOptions, device.options, "device")
        phones = [
            phone for phone in list_phones(options.serials) if not options.serials or phone.serial in options.serials
        ]
        ready = [phone for phone in phones if phone.state == "device"]
        others = "".join(f", {phone.serial} {phone.state}" for phone in phones if phone.state != "device")
        counts = {"total": len(phones), "free": len(ready)}
        return DeviceState(bool(ready), f"{len(ready)} attached{others}", counts, _ATTACH)


def _usable(options: PhoneOptions) -> tuple[str, ...]:
    """Return the serials of the phones that params.yaml names, or else of those that are attached."""
    return options.serials or tuple(phone.serial for phone in list_phones() if phone.state == "device")


class PhoneConnection(AgentConnection):
    """A connection that reports whether the phone caused its end."""

    def __init__(self, ready: PreparedPhone, name: str, limits: SessionLimits) -> None:
        self.ready = ready
        super().__init__("127.0.0.1", ready.port, ready.secret, name)

    def _lost(self, doing: str, error: Exception) -> DeviceError:
        if self.closed:  # closed by us
            return super()._lost(doing, error)
        return self.ready.phone.why(super()._lost(doing, error).found)


def unit_of(serial: str, hashed: bool) -> str:
    """Return the name of a phone in measurements."""
    return f"phone-{hashlib.sha256(serial.encode()).hexdigest()[:12]}" if hashed else serial


@contextlib.contextmanager
def _free_phone(serials: Sequence[str], wait_s: float | None) -> Iterator[str]:
    """Choose an attached phone that no other process of this machine holds. Raises DeviceUnpluggedError,
    DeviceRefusedError, DeviceBusyError.
    """
    locks: dict[str, DeviceLock] = {}

    def take() -> str | None:
        states = {phone.serial: phone.state for phone in list_phones(serials)}
        wanted = [serial for serial in serials or states if states.get(serial) == "device"]
        if not wanted:
            _raise_no_phone(list(serials), states)
        for serial in wanted:
            lock = locks.setdefault(serial, DeviceLock(f"adb-{serial}"))
            if lock.try_take():
                return serial
        return None

    def held_by() -> str:
        return "; ".join(f"{lock.held_by()} ({serial})" for serial, lock in locks.items())

    try:
        serial = wait_for("a phone", take, held_by, wait_s)
        for other in locks.keys() - {serial}:
            locks[other].release()
        with WAITS_HERE.holding():
            yield serial
    finally:
        for lock in locks.values():
            lock.release()


def _raise_no_phone(serials: list[str], states: dict[str, str]) -> None:
    why = unusable_reason(serials[0], states) if len(serials) == 1 else None
    if why is not None:
        raise why
    seen = ", ".join(f"{serial} is {state}" for serial, state in states.items()) or "adb sees none"
    refuses = "unauthorized" in [state for serial, state in states.items() if not serials or serial in serials]
    kind = DeviceRefusedError if refuses else DeviceUnpluggedError
    raise kind(
        f"no usable phone{' of ' + ', '.join(serials) if serials else ''}: {seen}",
        "a phone with USB debugging allowed",
        _ATTACH,
    )
