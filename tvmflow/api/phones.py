"""Calls about phones at this machine: which there are, and one that is made ready and taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tvmflow.api.opening import Where, opened
from tvmflow.api.results import PhoneState, ReadyPhone
from tvmflow.errors import DeviceError, UnknownNameError, UsageError


def phones() -> tuple[PhoneState, ...]:
    """Return the phones that adb sees, also those that cannot be used yet; none where there is no adb."""
    from tvmflow.devices.adb import Phone, attached, find_adb

    try:
        find_adb()
    except DeviceError:
        return ()
    states = []
    for one in attached():
        if one.state != "device":
            states.append(PhoneState(one.serial, one.state, one.model))
            continue
        try:
            facts = Phone(one.serial).facts()
        except DeviceError as error:
            states.append(PhoneState(one.serial, error.found, one.model))
            continue
        states.append(
            PhoneState(
                one.serial, "authorized", facts.model, facts.android, facts.soc, facts.abi, facts.features, facts.battery, facts.celsius
            )
        )  # fmt: skip
    return tuple(states)


@contextlib.contextmanager
def prepared_phone(serial: str, target: str, secret_file: Path, workspace: Where = None) -> Iterator[ReadyPhone]:
    """Make a phone ready for `transport: agent`: agent pushed and started, port forwarded, screen kept on; all of it is taken back at the end.

    target: of params.yaml, whose compiler makes the agent. secret_file: is written for as long. Raises DeviceError, UsageError.
    """
    from tvmflow.backends.table import resolve
    from tvmflow.devices.adb import Phone
    from tvmflow.devices.phones import agent_for, awake, check_architecture, prepared, remove

    targets = opened(workspace).params.targets
    if target not in targets:
        raise UnknownNameError(f"no target {target!r}", legal=targets, name=target)
    resolved = resolve(targets[target])
    phone = Phone(serial)
    facts = phone.facts()
    check_architecture(phone, facts, resolved)
    with awake(phone), remove(phone), prepared(phone, facts, agent_for(resolved)) as ready:
        try:
            secret_file.touch(mode=0o600, exist_ok=False)
        except OSError as error:
            raise UsageError(
                f"{secret_file} cannot be made: {error.strerror}",
                "a place for the secret that is free",
                "name another one with --secret-file",
            ) from None
        try:
            secret_file.write_bytes(ready.secret + b"\n")
            yield ReadyPhone(serial, facts.model, ready.port, secret_file)
        finally:
            secret_file.unlink(missing_ok=True)
