"""Phones through adb: the agent is pushed and started, its port forwarded, and all of it taken back at the end."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tvmflow.devices.agent.process import new_secret, told_port
from tvmflow.devices.android.adb import Phone, PhoneFacts, find_adb
from tvmflow.support.errors import DeviceError, WrongProcessorError
from tvmflow.support.files import sha256_of
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.triples import Triple, triple_of

FOLDER = "/data/local/tmp/tvmflow"


@dataclass(frozen=True)
class PreparedPhone:
    """A phone on which the agent listens. port: of this machine, which leads there."""

    phone: Phone
    facts: PhoneFacts
    port: int
    secret: bytes


def check_architecture(phone: Phone, facts: PhoneFacts, target: ResolvedTarget) -> None:
    """Raise WrongProcessorError where a phone does not execute what a target compiles."""
    if facts.architectures and triple_of(target.mtriple).architecture not in facts.architectures:
        raise WrongProcessorError(
            f"phone {phone.serial} has the ABI {facts.abi}, and the target compiles for {target.mtriple}",
            f"mtriple: {facts.architecture}-linux-{Triple(facts.architecture, 'android').ending}",
            "correct the target, or name other phones with serials: of the device",
        )


@contextlib.contextmanager
def prepared(
    phone: Phone, facts: PhoneFacts, program: Path, folder: str = FOLDER, secret: bytes | None = None, unit: str = ""
) -> Iterator[PreparedPhone]:
    """Push the agent, start it and forward its port; at the end it is stopped and the forward taken back.

    secret: of the agent, a new one where none is given. unit: what the agent says that the phone is called, "" for
    nothing.

    Files that were uploaded stay, for the next session. The agent ends with the connection to it, also when this
    process is killed.
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
