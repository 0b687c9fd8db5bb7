"""Emulate an arm64 board: TVM's RPC server of the arm64 wheel under qemu, with a tracker of its own.

Each session starts a board and ends it, so that several can measure side by side. Its clock is not a time: it advances
by one nanosecond per executed instruction, and the tuner ranks by that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator

from tvmflow.config.options import Options, read_options
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.emulation.processors import PROCESSORS, Processor
from tvmflow.devices.emulation.system import emulated_system, is_made
from tvmflow.devices.rpc.local import Served, local_server
from tvmflow.devices.rpc.session import RpcTransport
from tvmflow.devices.session import SessionLimits
from tvmflow.devices.transport import DeviceState, Link
from tvmflow.support.errors import DeviceError
from tvmflow.support.paths import CODE_ROOT
from tvmflow.targets.resolve import ResolvedTarget

_START_TIMEOUT_S = 300.0  # 7 s on an idle machine


def _check_processor(name: str) -> str:
    if name not in PROCESSORS:
        raise ValueError(f"no emulated processor {name!a}; legal: {', '.join(PROCESSORS)}")
    return name


class EmulatedOptions(Options):
    """processor: one of PROCESSORS; a library for another one ends with SIGILL at an unsupported instruction."""

    processor: Annotated[str, AfterValidator(_check_processor)]


class EmulatedTransport(RpcTransport):
    """An emulated board with one thread per session."""

    options = EmulatedOptions
    is_emulated = True

    @contextlib.contextmanager
    def connect(self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits) -> Iterator[Link]:
        if target.threads != 1:
            raise DeviceError(
                f"{target.threads} threads on an emulated board",
                "one: waiting threads execute instructions too",
                "set threads: 1 of the target",
            )
        system, processor = emulated_system(), self._processor(device)
        served = Served(
            (*system.command(processor.name, counts=True), str(system.python)),
            {
                "PYTHONPATH": os.pathsep.join([str(system.packages()), str(CODE_ROOT)]),
                "TVM_USE_RUNTIME_LIB": "1",
                "TVMFLOW_COUNTERS": "1",
            },
            _START_TIMEOUT_S,
        )
        with local_server(device.key, 1, served=served) as server:
            yield Link(server.connect(limits.session_timeout_s), f"emulated-{processor.name}")

    def state(self, device: DeviceEntry) -> DeviceState:
        when = "" if is_made() else "; the arm64 system is installed on first use"
        return DeviceState(True, f"{self._processor(device).name}, emulated on this machine{when}", {})

    def _processor(self, device: DeviceEntry) -> Processor:
        return PROCESSORS[read_options(EmulatedOptions, device.options, "device").processor]
