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


@dataclass(frozen=True)
class DeviceLimits:
    """Parameters to reach a device and to wait for it; they do not change outputs."""

    device: DeviceEntry
    session_timeout_s: float
    device_wait_s: float | None


def device_limits(workspace: Workspace, cell: Cell) -> DeviceLimits:
    block = workspace.params.deploy
    return DeviceLimits(workspace.params.targets[cell.target].device, block.session_timeout_s, block.device_wait_s)


def session_of(limits: DeviceLimits, target: ResolvedTarget) -> AbstractContextManager[DeviceSession]:
    """Open a session within the limits."""
    return open_session(
        limits.device, backend_of(target), SessionLimits(limits.session_timeout_s, limits.device_wait_s)
    )
