"""Open the device of a cell for a stage."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from tvmflow.backends.registry import backend_of
from tvmflow.config.params import Cell, DeviceEntry
from tvmflow.config.workspace import Workspace
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.targets.resolve import ResolvedTarget

LIMIT_READS = ("targets.{target}.device", "deploy.session_timeout_s", "deploy.device_wait_s")

_unit = ""  # of this process; it changes no output, so it is no parameter of a stage


@dataclass(frozen=True)
class DeviceLimits:
    """Parameters to reach a device and to wait for it; they do not change outputs."""

    device: DeviceEntry
    session_timeout_s: float
    device_wait_s: float | None


def device_limits(workspace: Workspace, cell: Cell) -> DeviceLimits:
    block = workspace.params.deploy
    return DeviceLimits(workspace.params.targets[cell.target].device, block.session_timeout_s, block.device_wait_s)


def use_unit(unit: str) -> None:
    """Let the sessions of this process, which runs one stage, use this unit of its device."""
    global _unit
    _unit = unit


def session_of(limits: DeviceLimits, target: ResolvedTarget) -> AbstractContextManager[DeviceSession]:
    """Open a session within the limits."""
    asked = SessionLimits(limits.session_timeout_s, limits.device_wait_s, _unit)
    return open_session(limits.device, backend_of(target), asked)
