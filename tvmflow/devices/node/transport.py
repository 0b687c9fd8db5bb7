"""Run modules of WebAssembly in node on this machine, one session at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tvmflow.backends.backend import Backend
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.node.program import node_program, node_version
from tvmflow.devices.node.session import NodeSession
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.this_host import measure_on_this_host, this_unit
from tvmflow.devices.transport import DeviceState, Transport
from tvmflow.support.errors import ToolchainError


class NodeTransport(Transport):
    """This machine by an engine of WebAssembly."""

    has_tvm = False
    is_this_host = True

    @contextlib.contextmanager
    def open(self, device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
        program, version = node_program(), f"node {node_version()}"
        with (
            measure_on_this_host(limits.wait_s),
            contextlib.closing(
                NodeSession(device.key, this_unit(), backend.target, program, version, limits.session_timeout_s)
            ) as session,
        ):
            yield session

    def state(self, device: DeviceEntry) -> DeviceState:
        try:
            node_program()
        except ToolchainError as error:
            return DeviceState(False, str(error.found), {}, error.hint or "")
        return DeviceState(True, f"node {node_version()} on this machine", {})
