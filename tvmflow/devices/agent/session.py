"""Run networks and kernels without TVM through an agent, each in a process of its own on the device."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.gpu.probe import TIME_LIMIT_S
from tvmflow.devices.gpu_facts import GpuFacts, Probed, describe_signal, parse_probe, sanitize_name
from tvmflow.devices.session import (
    STATE,
    Array,
    Arrays,
    DeviceSession,
    RemoteKernel,
    RemoteModel,
    SessionLimits,
    WorkloadBench,
    decode_state,
)
from tvmflow.devices.waiting import wait_for
from tvmflow.frontends.source_model import OutputSpec
from tvmflow.support.dtypes import numpy_dtype
from tvmflow.support.errors import DeviceBusyError, DeviceHotError, DeviceLostError, StageError
from tvmflow.targets.resolve import ResolvedTarget

# Numbers of tvmflow_dtype in runtime/include/tvmflow.h.
_DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
_PROCESSOR = re.compile(r"cpu|soc|tsens|big|little|mid|x86_pkg|package", re.IGNORECASE)  # names of CPU thermal zones
_COOL_S = 60.0  # longest wait for a device to cool down without deploy.device_wait_s
_SENSIBLE = (1.0, 130.0)  # degrees Celsius; disabled sensors report 0 or invalid values


class AgentSession(DeviceSession):
    """A session with exclusive use of an agent's device. Raises DeviceBusyError if another host holds it."""

    def __init__(
        self, connection: AgentConnection, unit: str, target: ResolvedTarget, limits: SessionLimits, mask: int = 0
    ) -> None:
        super().__init__(connection.name, unit, target)
        self.connection, self.mask, self.longest_s = connection, mask, limits.session_timeout_s
        self.max_celsius: float | None = None
        self.times_kernels = False  # whether kernels are timed by the GPU's own clock
        self.cool_s = _COOL_S if limits.wait_s is None else limits.wait_s
        wait_for(f"device {connection.name!r}", self._take, lambda: "another host has the device", limits.wait_s)

    def _take(self) -> bool | None:
        try:
            self.connection.ask("take wait_ms=0", "taking it")
        except DeviceBusyError:
            return None
        return True

    def upload(self, library: Path) -> str:
        return self.connection.upload(library, library.name)

    def network(
        self, remote_name: str, beside: Path, outputs: Sequence[OutputSpec], design: str | None = None
    ) -> AgentNetwork:
        return AgentNetwork(self, remote_name)

    def bench(self, arrays: Sequence[Array]) -> WorkloadBench:
        return _AgentBench(self, arrays)

    def opening_ms(self, remote_name: str, keeps_programs: bool) -> float | None:
        return AgentNetwork(self, remote_name, keeps_programs).opened_ms

    def probe(self) -> dict[str, Any]:
        """Return what the device reports about itself."""
        return self.connection.ask("probe", "reading its description")

    def gpus(self) -> Probed:
        said = self.connection.ask("gpus", "trying its GPUs", within_s=TIME_LIMIT_S)
        lines, number = said.get("gpus"), said.get("signal")
        ended = describe_signal(number) if isinstance(number, int) and number else ""
        if said.get("late"):
            ended = f"it did not end within {TIME_LIMIT_S:g} s"
        return parse_probe(lines if isinstance(lines, list) else [], ended)

    def rest(self) -> None:
        if self.max_celsius is None:
            return
        deadline = time.monotonic() + self.cool_s
        while (now := hottest(self.connection.ask("temperature", "asking its temperature"))) is not None:
            if now <= self.max_celsius:
                return
            if time.monotonic() > deadline:
                raise DeviceHotError(
                    f"device {self.name!r} has {now:.0f} degrees Celsius and did not cool down within "
                    f"{self.cool_s:g} s",
                    f"at most max_celsius: {self.max_celsius:g}",
                    "let it cool down, take it out of its case, or raise max_celsius: of the device",
                )
            time.sleep(min(1.0, self.cool_s))


def hottest(reply: dict[str, Any]) -> float | None:
    """Return the highest temperature of a device's CPU sensors, or of all sensors if none is named so; None without
    sensors.
    """
    found = [(str(one["zone"]), one["millidegrees"] / 1e3) for one in reply.get("temperatures", ())]
    sensible = [(zone, degrees) for zone, degrees in found if _SENSIBLE[0] <= degrees <= _SENSIBLE[1]]
    named = [degrees for zone, degrees in sensible if _PROCESSOR.search(zone)]
    return max(named or [degrees for _, degrees in sensible], default=None)


class AgentNetwork(RemoteModel):
    """A library without TVM in its own process of an agent, which ends with this object.

    kinds: name, shape and dtype of each output, as the library reports them; opened_ms: time to open it, for a GPU.
    Raises StageError if the library fails.
    """

    def __init__(self, session: AgentSession, digest: str, keeps_programs: bool = True) -> None:
        self.session, self.number = session, 0
        self.opened_ms: float | None = None
        self.ran_ms: float | None = None
        request = (
            f"open sha256={digest} threads={session.target.threads} mask={session.mask} keep={int(keeps_programs)}"
        )
        reply = session.connection.ask(request, "opening the library", within_s=session.longest_s)
        self.number = int(reply["library"])
        with _check_reply(session.name):
            self.inputs = [int(one["size"]) for one in reply["inputs"]]
            self.kinds = [
                (str(one["name"]), tuple(map(int, one["shape"])), _DTYPES[one["dtype"]]) for one in reply["outputs"]
            ]
            if "gpu" in reply:
                self.opened_ms = float(reply["opened_ns"]) / 1e6
                session.gpu = GpuFacts(*(sanitize_name(reply["gpu"][part.name]) for part in fields(GpuFacts)))

    def ask(self, request: str, doing: str) -> dict[str, Any]:
        return self.session.connection.ask(request, doing, self.number, self.session.longest_s)

    def set_inputs(self, *inputs: Array) -> None:
        if len(inputs) != len(self.inputs):
            raise StageError(
                f"{len(inputs)} inputs for a library of {len(self.inputs)} on device {self.session.name!r}"
            )
        for at, array in enumerate(inputs):
            content = memoryview(np.ascontiguousarray(array).tobytes())
            self.session.connection.send(f"input index={at}", "copying an input", self.number, content)

    def invoke(self) -> None:
        reply = self.ask("run", "running the library")
        with _check_reply(self.session.name):
            self.ran_ms = float(reply["ns"]) / 1e6

    def last_run_ms(self) -> float | None:
        return self.ran_ms

    def outputs(self) -> Arrays:
        return tuple(self.output(at) for at in range(len(self.kinds)))

    def output(self, at: int) -> Array:
        """Copy one output of the last run from the device."""
        _, shape, dtype = self.kinds[at]
        with _check_reply(self.session.name):
            size = math.prod(shape) * numpy_dtype(dtype).itemsize
        found = self.session.connection.receive(f"fetch index={at}", "copying an output", self.number, size)
        with _check_reply(self.session.name):
            return np.frombuffer(found, numpy_dtype(dtype)).reshape(shape)

    def time_runs(self, repeat: int) -> list[float]:
        return self.times(repeat, 0.0)

    def times(self, repeat: int, min_repeat_ms: float, of_kernels: bool = False) -> list[float]:
        """Return mean times in seconds, each over runs of at least min_repeat_ms in total; of_kernels: measured by the
        GPU's clock.
        """
        limits = f"repeats={repeat} min_us={round(min_repeat_ms * 1e3)}"
        reply = self.ask(f"time warmup=1 {limits} kernels={int(of_kernels)}", "timing the library")
        with _check_reply(self.session.name):
            return [float(one) / 1e9 for one in reply["ns"]]

    def memory_bytes(self) -> int | None:
        return int(self.ask("memory", "reading the memory of its process").get("grown", 0)) or None

    def peak_bytes(self) -> int:
        """Return the peak resident memory of its process."""
        return int(self.ask("memory", "reading the memory of its process").get("peak", 0))

    def state(self, threads: int, look: bool) -> dict[str, float] | None:
        connection = self.session.connection
        reply = connection.ask_if_known(f"state look={int(look)} threads={threads}", "reading its state", self.number)
        if reply is None:
            return None
        with _check_reply(self.session.name):
            found = decode_state(float(reply[name]) for name in STATE)
        celsius = hottest(connection.ask("temperature", "asking its temperature")) if look else None
        return found if celsius is None else {**found, "celsius": celsius}

    def profile(self, runs: int) -> list[tuple[str, int, int]]:
        reply = self.ask(f"profile runs={runs}", "profiling the library")
        with _check_reply(self.session.name):
            return [(str(name), int(calls), int(ns)) for name, calls, ns in reply["kernels"]]

    def copies_ms(self, runs: int) -> tuple[float, float] | None:
        reply = self.ask(f"profile runs={runs}", "profiling the library")
        with _check_reply(self.session.name):
            found = [float(one) / 1e6 / runs for one in reply["copies"]]
            return (found[0], found[1]) if found else None

    def close(self) -> None:
        """End the process with the next request."""
        if self.number:
            self.session.connection.end(self.number)
            self.number = 0

    def __del__(self) -> None:
        self.close()


class _AgentBench(WorkloadBench):
    def __init__(self, session: AgentSession, arrays: Sequence[Array]) -> None:
        self.session = session
        upload = session.connection.upload
        self.digests = [upload(np.ascontiguousarray(array).tobytes(), "an argument of a kernel") for array in arrays]

    def load(self, library: Path) -> RemoteKernel:
        network = AgentNetwork(self.session, self.session.upload(library))
        *inputs, output = self.digests
        for at, digest in enumerate(inputs):
            network.ask(f"input index={at} sha256={digest}", "setting an argument")
        network.ask(f"output index=0 sha256={output}", "setting an argument")
        return _AgentKernel(network)


class _AgentKernel(RemoteKernel):
    def __init__(self, network: AgentNetwork) -> None:
        self.network = network

    def output(self) -> Array:
        self.network.invoke()
        return self.network.output(0)

    def time(self, repeat: int, min_repeat_ms: float) -> list[float]:
        return self.network.times(repeat, min_repeat_ms, self.network.session.times_kernels)


@contextlib.contextmanager
def _check_reply(name: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise DeviceLostError(f"device {name!r} sent an invalid reply: {error}", "the agent of this tvmflow") from error
