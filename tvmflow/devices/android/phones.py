"""Prepare a phone through adb: push and start the agent, forward its port, and undo all of it at the end."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tvmflow.devices.agent.process import exchange_secret, new_secret
from tvmflow.devices.android.adb import Phone, PhoneFacts, find_adb
from tvmflow.devices.this_host import end_process
from tvmflow.support.errors import DeviceError, WrongProcessorError
from tvmflow.support.files import sha256_of
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.triples import Triple, triple_of

FOLDER = "/data/local/tmp/tvmflow"


@dataclass(frozen=True)
class PreparedPhone:
    """A phone with a listening agent. port: the forwarded port of this machine."""

    phone: Phone
    facts: PhoneFacts
    port: int
    secret: bytes


def check_architecture(phone: Phone, facts: PhoneFacts, target: ResolvedTarget) -> None:
    """Raise WrongProcessorError if a phone cannot execute a target's code."""
    if facts.architectures and triple_of(target.mtriple).architecture not in facts.architectures:
        raise WrongProcessorError(
            f"phone {phone.serial} has the ABI {facts.abi}, and the target compiles for {target.mtriple}",
            f"mtriple: {facts.architecture}-linux-{Triple(facts.architecture, 'android').ending}",
            "correct the target, or select other phones with serials: of the device",
        )


@contextlib.contextmanager
def prepare_phone(
    phone: Phone, facts: PhoneFacts, program: Path, folder: str = FOLDER, secret: bytes | None = None, unit: str = ""
) -> Iterator[PreparedPhone]:
    """Push the agent, start it and forward its port; stop it and remove the forward at the end.

    secret: of the agent, a new one by default. unit: the phone's name as reported by the agent, "" for none. Uploaded
    files stay for the next session. The agent ends with the connection to it, even if this process is killed.
    """
    remote = f"{folder}/agent-{sha256_of(program)[:16]}"
    if not phone.succeeds(f"test -x {remote}"):
        phone.shell(f"mkdir -p {folder} && rm -f {folder}/agent-*")
        phone.push(program, f"{remote}.part")
        phone.shell(f"chmod 700 {remote}.part && mv {remote}.part {remote}")
    secret = secret or new_secret()
    named = f" --unit {shlex.quote(unit)}" if unit else ""
    command = [
        find_adb(),
        "-s",
        phone.serial,
        "shell",
        f"exec {remote} --folder {shlex.quote(folder + '/store')} --life-line{named}",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    port = 0
    try:
        try:
            port = phone.forward(exchange_secret(process, secret))
        except DeviceError as error:
            if type(error) is DeviceError:  # the agent did not start, maybe because of the phone
                raise phone.why(error.found) from error
            raise
        yield PreparedPhone(phone, facts, port, secret)
    finally:
        end_process(process)
        if port:
            with contextlib.suppress(DeviceError):
                phone.end_forward(port)


@contextlib.contextmanager
def keep_awake(phone: Phone) -> Iterator[None]:
    """Keep a phone's screen and processor on while it is plugged in; restore the setting afterwards."""
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
    """Delete our folder on a phone at the end of a context."""
    try:
        yield
    finally:
        with contextlib.suppress(DeviceError):
            phone.shell(f"rm -rf {folder}")
