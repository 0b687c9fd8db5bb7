"""How a stage reaches the device of its cell."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tvmflow.devices.session import DeviceSession, SessionLimits, open_session
from tvmflow.params import Cell, DeviceEntry
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.workspace import Workspace


def device_limits(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    """Return how to reach the device of a cell and how long to wait for it: nothing that changes an output."""
    block = workspace.params.deploy
    return {
        "device": workspace.params.targets[cell.target].device.model_dump(mode="json"),
        "session_timeout_s": block.session_timeout_s,
        "wait_s": block.device_wait_s,
    }


def session_of(limits: dict[str, Any], target: ResolvedTarget) -> AbstractContextManager[DeviceSession]:
    """Open the session that `device_limits` describes."""
    device = DeviceEntry.model_validate(limits["device"])
    return open_session(device, target, SessionLimits(limits["session_timeout_s"], limits["wait_s"]))
