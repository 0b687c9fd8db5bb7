"""Run our agent on this machine as a device, for networks that TVM's own RPC server cannot run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from tvmflow.backends.backend import Backend
from tvmflow.config.options import read_options
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.agent.transport import MeasuringOptions, measuring_session
from tvmflow.devices.programs import agent_for
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.devices.this_host import measure_on_this_host, this_unit
from tvmflow.devices.transport import DeviceState, Transport
from tvmflow.support.temporary import temporary_folder
from tvmflow.toolchain.software_gpus import software_drivers


class LocalAgentTransport(Transport):
    """This machine with an agent, one session at a time, with the driver of the backend."""

    options = MeasuringOptions
    has_tvm = False
    is_this_host = True

    @contextlib.contextmanager
    def open(self, device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
        options = read_options(MeasuringOptions, device.options, "device")
        command, environment = [str(agent_for(backend.target))], _environment(backend)
        with (
            measure_on_this_host(limits.wait_s),
            temporary_folder("agent") as folder,
            start_agent(command, folder, environment=environment) as agent,
            contextlib.closing(AgentConnection("127.0.0.1", agent.port, agent.secret, device.key)) as connection,
        ):
            yield measuring_session(connection, this_unit(), backend, limits, options)

    def state(self, device: DeviceEntry) -> DeviceState:
        return DeviceState(True, "this machine", {})


def _environment(backend: Backend) -> Mapping[str, str]:
    """Return environment variables for the backend's software driver, installed if necessary. Raises DeviceError."""
    name = backend.software_driver
    return software_drivers().named(name).environment if name else {}
