"""Phones through adb: the agent is pushed and started, its port forwarded, and all of it taken back at the end."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from filelock import FileLock
from pydantic import Field

from tvmflow.artifacts import digest_of, sha256_of
from tvmflow.backends.backend import Backend
from tvmflow.bounds import PathText
from tvmflow.devices.adb import Phone, PhoneFacts, attached, find_adb
from tvmflow.devices.agent import MeasuringOptions, measuring_session
from tvmflow.devices.agent_program import build_agent, new_secret, told_port
from tvmflow.devices.agent_wire import AgentConnection
from tvmflow.devices.lock import exclusive
from tvmflow.devices.session import DeviceSession
from tvmflow.devices.transport import DeviceState, SessionLimits, Transport
from tvmflow.errors import DeviceBusyError, DeviceError, DeviceRefusedError, DeviceUnpluggedError, WrongProcessorError
from tvmflow.options import read_options
from tvmflow.params import DeviceEntry
from tvmflow.recipe import RUNTIME
from tvmflow.sources.tool_environments import cache_folder
from tvmflow.targets.resolve import ResolvedTarget

FOLDER = "/data/local/tmp/tvmflow"
_PAUSE_S = 0.5
Serial = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$")]


class PhoneOptions(MeasuringOptions):
    """serials: which phones, all that are attached where none is named. agent: its program, compiled where it is not named.

    hash_serial: measurements have a digest of the serial instead of it.
    """

    serials: Annotated[tuple[Serial, ...], Field(strict=False)] = ()
    agent: PathText | None = None
    hash_serial: bool = False


@dataclass(frozen=True)
class PreparedPhone:
    """A phone on which the agent listens. port: of this machine, which leads there."""

    phone: Phone
    facts: PhoneFacts
    port: int
    secret: bytes


class PhoneTransport(Transport):
    """Phones at this machine's USB or in its network, one session each."""

    options = PhoneOptions
    has_tvm = False

    @contextlib.contextmanager
    def open(self, device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
        options = read_options(PhoneOptions, device.options, "device")
        with _free_phone(options.serials, limits.wait_s) as serial:
            phone = Phone(serial)
            facts = phone.facts()
            check_architecture(phone, facts, backend.target)
            program = Path(options.agent) if options.agent else agent_for(backend.target)
            with prepared(phone, facts, program) as ready:
                connection = PhoneConnection(ready, device.key, limits)
                with contextlib.closing(connection):
                    session = measuring_session(
                        connection, unit_of(serial, options.hash_serial), backend, limits, options
                    )
                    session.build = facts.build or session.build
                    yield session

    def state(self, device: DeviceEntry) -> DeviceState:
        options = read_options(PhoneOptions, device.options, "device")
        phones = [phone for phone in attached() if not options.serials or phone.serial in options.serials]
        ready = [phone for phone in phones if phone.state == "device"]
        others = "".join(f", {phone.serial} {phone.state}" for phone in phones if phone.state != "device")
        return DeviceState(bool(ready), f"{len(ready)} attached{others}", {"total": len(phones), "free": len(ready)})


class PhoneConnection(AgentConnection):
    """A connection that says whether the phone is why it ended."""

    def __init__(self, ready: PreparedPhone, name: str, limits: SessionLimits) -> None:
        self.ready = ready
        super().__init__("127.0.0.1", ready.port, ready.secret, name)

    def _lost(self, doing: str, error: Exception) -> DeviceError:
        if self.closed:  # by us; the phone is not asked
            return super()._lost(doing, error)
        return self.ready.phone.why(super()._lost(doing, error).found)


def unit_of(serial: str, hashed: bool) -> str:
    """Return what measurements name a phone by."""
    return f"phone-{hashlib.sha256(serial.encode()).hexdigest()[:12]}" if hashed else serial


def check_architecture(phone: Phone, facts: PhoneFacts, target: ResolvedTarget) -> None:
    """Raise WrongProcessorError where a phone does not execute what a target compiles."""
    if facts.architecture and facts.architecture != target.mtriple.split("-")[0]:
        raise WrongProcessorError(
            f"phone {phone.serial} has the ABI {facts.abi}, and the target compiles for {target.mtriple}",
            f"mtriple: {facts.architecture}-linux-android", "correct the target, or name other phones with serials: of the device",
        )  # fmt: skip


def agent_for(target: ResolvedTarget) -> Path:
    """Return the agent's program for a target, compiled now if it is not there. Raises ToolchainError."""
    words = target.compiler.words
    sources = {file.name: sha256_of(file) for file in sorted((RUNTIME / "agent").iterdir())}
    folder = cache_folder() / "agent" / digest_of([sources, list(words)])[:16]
    program = folder / "tvmflow-agent"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not program.exists():
            build_agent(folder / "unfinished", words).replace(program)
    return program


@contextlib.contextmanager
def prepared(phone: Phone, facts: PhoneFacts, program: Path, folder: str = FOLDER) -> Iterator[PreparedPhone]:
    """Push the agent, start it and forward its port; at the end it is stopped and the forward taken back.

    Files that were uploaded stay, for the next session. The agent ends with the connection to it, also when this process is killed.
    """
    remote = f"{folder}/agent-{sha256_of(program)[:16]}"
    if not phone.succeeds(f"test -x {remote}"):
        phone.shell(f"mkdir -p {folder} && rm -f {folder}/agent-*")
        phone.push(program, f"{remote}.part")
        phone.shell(f"chmod 700 {remote}.part && mv {remote}.part {remote}")
    secret = new_secret()
    command = [
        find_adb(),
        "-s",
        phone.serial,
        "shell",
        f"exec {remote} --folder {shlex.quote(folder + '/store')} --life-line",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    port = 0
    try:
        try:
            port = phone.forward(told_port(process, secret))
        except DeviceError as error:
            if type(error) is DeviceError:  # the agent did not start, or the phone is why
                raise phone.why(error.found) from error
            raise
        yield PreparedPhone(phone, facts, port, secret)
    finally:
        _end(process)
        if port:
            with contextlib.suppress(DeviceError):
                phone.end_forward(port)


@contextlib.contextmanager
def awake(phone: Phone) -> Iterator[None]:
    """Keep a phone's screen and processor on while it is plugged in; afterwards it is as it was."""
    setting = "settings {} global stay_on_while_plugged_in {}"
    before = phone.shell(setting.format("get", "")).strip()
    phone.shell("svc power stayon true")
    try:
        yield
    finally:
        with contextlib.suppress(DeviceError):
            phone.shell(setting.format("put", before if before.isdigit() else "0"))


@contextlib.contextmanager
def remove(phone: Phone, folder: str = FOLDER) -> Iterator[None]:
    """Delete our folder on a phone at the end."""
    try:
        yield
    finally:
        with contextlib.suppress(DeviceError):
            phone.shell(f"rm -rf {folder}")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    process.stderr.close()


@contextlib.contextmanager
def _free_phone(serials: Sequence[str], wait_s: float) -> Iterator[str]:
    """Choose an attached phone that no other process of this user has. Raises DeviceUnpluggedError, DeviceRefusedError, DeviceBusyError."""
    deadline = time.monotonic() + wait_s
    while True:
        states = {phone.serial: phone.state for phone in attached()}
        known = {serial: "device" for serial in serials if ":" in serial} | states  # one in the network is connected to
        wanted = [serial for serial in serials or known if known.get(serial) == "device"]
        if not wanted:
            _say_why_none(list(serials), states)
        for serial in wanted:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(exclusive(f"adb-{serial.replace(':', '_')}", 0.0))
                except DeviceBusyError:
                    continue
                yield serial
                return
        if time.monotonic() > deadline:
            raise DeviceBusyError(
                f"every phone ({', '.join(wanted)}) was in use by another tvmflow process for {wait_s:g} s",
                "a free phone", "wait, attach another one, or raise deploy.device_wait_s in params.yaml",
            )  # fmt: skip
        time.sleep(_PAUSE_S)


def _say_why_none(serials: list[str], states: dict[str, str]) -> None:
    seen = ", ".join(f"{serial} is {state}" for serial, state in states.items()) or "adb sees none"
    kind = DeviceRefusedError if "unauthorized" in states.values() else DeviceUnpluggedError
    raise kind(
        f"no phone that can be used{' of ' + ', '.join(serials) if serials else ''}: {seen}", "a phone with USB debugging allowed",
        "attach one, unlock it and confirm the question on its screen",
    )  # fmt: skip
