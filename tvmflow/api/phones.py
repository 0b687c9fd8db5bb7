"""Prepare devices with our agent: list and prepare phones, register agents with a tracker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tvmflow.api.results import DeviceCheck, PhoneState, ProcessorState, ReadyPhone
from tvmflow.api.workspace import Where, open_workspace
from tvmflow.config.params import DeviceEntry, TargetEntry
from tvmflow.support.errors import DeviceError, TvmflowError, UnknownNameError, UsageError
from tvmflow.support.extras import missing_extras_named

if TYPE_CHECKING:
    from tvmflow.config.workspace import Workspace
    from tvmflow.devices.transport import Registry


def phones() -> tuple[PhoneState, ...]:
    """Return the phones connected through adb, including unauthorized ones; none without adb."""
    from tvmflow.devices.android.adb import Phone, find_adb, list_phones

    try:
        find_adb()
    except DeviceError:
        return ()
    states = []
    for one in list_phones():
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
                one.serial,
                "authorized",
                facts.model,
                facts.android,
                facts.soc,
                facts.abi,
                facts.features,
                facts.cores,
                facts.battery,
                facts.celsius,
            )
        )
    return tuple(states)


@contextlib.contextmanager
def prepared_phone(serial: str, target: str, secret_file: Path, workspace: Where = None) -> Iterator[ReadyPhone]:
    """Prepare a phone for `transport: agent`: install and start the agent, forward its port, keep the screen on; undo
    all of it at the end.

    target: its compiler builds the agent. secret_file: exists during the context, unless the target's device is
    reached through a tracker: then its secret_file is shared by all phones of its key. Raises DeviceError, UsageError.
    """
    with missing_extras_named():  # not around `yield`: what the caller lacks is no extra of ours
        from tvmflow.backends.registry import resolve
        from tvmflow.devices.android.adb import Phone
        from tvmflow.devices.android.phones import check_architecture, keep_awake, prepare_phone, remove
        from tvmflow.devices.programs import agent_for
        from tvmflow.targets.device_processor import processor_from
        from tvmflow.targets.probed_processors import DEVICE, record

        entry = _target(workspace, target)
        phone = Phone(serial)
        facts = phone.facts()
        if entry.mcpu == DEVICE:
            record(entry, *processor_from(facts.processor, entry.mtriple or ""))
        resolved, registry = resolve(entry), _registry(entry.device)
        check_architecture(phone, facts, resolved)
        secret = registry.secret if registry is not None else None
    with (
        keep_awake(phone),
        remove(phone),
        prepare_phone(phone, facts, agent_for(resolved), secret=secret, unit=serial) as ready,
    ):
        if registry is not None:
            yield ReadyPhone(serial, facts.model, ready.port, registry.secret_file, facts.build, is_for_tracker=True)
            return
        try:
            secret_file.touch(mode=0o600, exist_ok=False)
        except OSError as error:
            raise UsageError(
                f"{secret_file} cannot be created: {error.strerror}",
                "a path for the secret that does not exist yet",
                "name another one with --secret-file",
            ) from None
        try:
            secret_file.write_bytes(ready.secret + b"\n")
            yield ReadyPhone(serial, facts.model, ready.port, secret_file, facts.build)
        finally:
            secret_file.unlink(missing_ok=True)


def check_device(target: str, workspace: Where = None) -> DeviceCheck:
    """Check each processor of a target's device with a small kernel; store its processor for `mcpu: device`.

    Raises DeviceError if the device cannot be reached, ToolchainError if nothing can be compiled for it.
    """
    where = open_workspace(workspace)
    return _check(target, where, where.params.deploy.device_wait_s)


def check_devices(workspace: Where = None) -> dict[str, DeviceCheck | TvmflowError]:
    """Check the device of each target as `check_device` does, or say why it cannot be; none in use is waited for.

    Targets that share a device are checked once, by the name of the first for a GPU, or else the first.
    """
    from tvmflow.targets.gpu_features import GPU_KINDS

    where = open_workspace(workspace)
    targets = sorted(where.params.targets.items(), key=lambda one: one[1].kind not in GPU_KINDS)
    found: dict[str, DeviceCheck | TvmflowError] = {}
    seen = []
    for name, entry in targets:
        if entry.device not in seen:
            seen.append(entry.device)
            try:
                found[name] = _check(name, where, 0.0)
            except TvmflowError as error:
                found[name] = error
    return found


def _check(target: str, workspace: Workspace, wait_s: float | None) -> DeviceCheck:
    from tvmflow.backends.registry import backend_for
    from tvmflow.devices.probe_driver import keep_driver
    from tvmflow.devices.probe_processor import ask_processor
    from tvmflow.devices.registry import open_session, transport_of
    from tvmflow.devices.session import SessionLimits
    from tvmflow.evaluation.processor_check import CPU, check_processors, first_failure
    from tvmflow.targets.gpu_features import GPU_KINDS
    from tvmflow.targets.probed_processors import DEVICE

    entry, params = _target(workspace, target), workspace.params
    try:
        core, attributes = ask_processor(entry, wait_s)
    except UsageError:  # a transport that does not report its processor
        if entry.mcpu == DEVICE:
            raise
        core, attributes = "", ()
    backend = backend_for(entry)
    limits = SessionLimits(params.deploy.session_timeout_s, wait_s)
    has_tvm = transport_of(entry.device).has_tvm_on(entry.device)
    with open_session(entry.device, backend, limits) as session:
        checked = check_processors(session, backend, not has_tvm)
        found = checked.processors
        unit, build = session.unit, session.build
        if entry.kind in GPU_KINDS:
            keep_driver(workspace.root, target, entry.kind, unit, checked.gpus)
    wanted = getattr(backend, "api", CPU)
    checks = tuple(ProcessorState(one.kind, one.name, one.works, one.reason, one.seconds) for one in found)
    return DeviceCheck(unit, build, core, attributes, checks, first_failure(found, wanted))


def offer_device(
    target: str,
    host: str,
    port: int,
    workspace: Where = None,
    over: threading.Event | None = None,
    unit: str = "",
    build: str = "",
) -> None:
    """Register an agent with the tracker of a target's device, under its key, until `over` is set.

    host, port: where the agent listens; unit, build: its name and build in measurements, if not those that it reports.
    Raises UsageError, DeviceLostError if the agent disconnects, TrackerError if the tracker does.
    """
    from tvmflow.devices.agent.registration import Offer, offer_agent

    device = _target(workspace, target).device
    registry = _registry(device)
    if registry is None:
        raise UsageError(
            f"the device of target {target!r} is not reached through a tracker with agents",
            "device: {transport: tracker, key: ..., host: ..., port: ..., secret_file: ...}",
            "correct the target, or name another one",
        )
    offer = Offer(device.key, host, port, registry.secret, unit, build)
    offer_agent(registry.tracker, offer, over or threading.Event())


def _target(workspace: Where, name: str) -> TargetEntry:
    targets = open_workspace(workspace).params.targets
    if name not in targets:
        raise UnknownNameError(f"no target {name!r}", legal=targets, name=name)
    return targets[name]


def _registry(device: DeviceEntry) -> Registry | None:
    from tvmflow.devices.registry import transport_of

    return transport_of(device).registry(device)
