"""Define a session with a device: upload, run and time, the same for every transport."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tvmflow.config.buckets import Numbers
from tvmflow.devices.gpu_facts import GpuFacts
from tvmflow.frontends.source_model import OutputSpec
from tvmflow.support.errors import DeviceError, DeviceLostError, last_line
from tvmflow.targets.resolve import ResolvedTarget

if TYPE_CHECKING:
    from tvmflow.devices.gpu_facts import Probed

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
# State of a process and its device, in the order of runtime/measure/process_state.h.
STATE = ("wall_s", "own_s", "waited_s", "switches", "busy_s", "processors", "khz", "loop_ns", "round_trip_ns")


@dataclass(frozen=True)
class Executed:
    """Counters of a run on an emulated device, in the order of runtime/emulator/count.c."""

    instructions: int
    multiply_add_instructions: int
    multiply_adds: int
    loaded_bytes: int
    stored_bytes: int


def decode_state(numbers: Iterable[float]) -> dict[str, float]:
    """Return the known values of a process's state, by name of STATE."""
    return {name: number for name, number in zip(STATE, numbers, strict=True) if 0 <= number < math.inf}


class DeviceSession(ABC):
    """An open session. Device failures are raised as DeviceLostError, which may be retried, or another DeviceError.

    unit: the device among those of its key; build: the version of its system, "" if unknown. gpu: the GPU of the opened
    networks, None without one. configured: what was done to the device at the beginning, None for nothing. has_tvm: it
    runs libraries that need TVM's runtime; others run only network.so and kernels linked alike.
    """

    has_tvm: ClassVar[bool] = False
    build = ""
    gpu: GpuFacts | None = None
    configured: dict[str, Any] | None = None

    def __init__(self, name: str, unit: str, target: ResolvedTarget) -> None:
        self.name, self.unit, self.target = name, unit, target

    @abstractmethod
    def upload(self, library: Path) -> str:
        """Upload a file; return its name in this session."""

    @abstractmethod
    def network(
        self, remote_name: str, beside: Path, outputs: Sequence[OutputSpec], design: str | None = None
    ) -> RemoteModel:
        """Start an uploaded library without TVM.

        beside: the build folder. outputs: in its order. design: of the accelerator that
        computes a part of it, None for none. Raises StageError if the library fails.
        """

    @abstractmethod
    def bench(self, arrays: Sequence[Array]) -> WorkloadBench:
        """Upload the arguments of a kernel; the last is its output, with the values before the run."""

    def model_on_device(self, remote_name: str) -> RemoteModel:
        """Start an uploaded library in TVM's virtual machine."""
        raise self._without_tvm(f"starting {remote_name}")

    def model(self, library: Path) -> RemoteModel:
        """Upload a network's library and start it in TVM's virtual machine."""
        return self.model_on_device(self.upload(library))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that the device provides, and return its output."""
        raise self._without_tvm(f"calling {name}")

    def gpus(self) -> Probed:
        """Return the usable GPUs of the device, as probed there. Raises DeviceError without a probe."""
        raise DeviceError(
            f"device {self.name!r} cannot probe GPUs",
            "a device with our agent",
            "reach it through transport: agent or adb; 'tvmflow devices' probes those of this machine",
        )

    def opening_ms(self, remote_name: str, keeps_programs: bool) -> float | None:
        """Return the time to open an uploaded library on the device; None without a GPU.

        keeps_programs: use and fill the cache of compiled programs; else compile them again.
        """
        return None

    def rest(self) -> None:  # noqa: B027 (most know nothing of it)
        """Wait until the device is cool enough to be measured, if it reports a temperature. Raises DeviceHotError."""

    def _without_tvm(self, doing: str) -> DeviceError:
        return DeviceError(
            f"{doing} on device {self.name!r}, which has no TVM",
            "a cell with a network.so (build makes one where all of it runs on the CPU)",
            "reach the device through TVM's RPC server: transport: tracker",
        )


class RemoteModel(ABC):
    """A network's library loaded on a device. takes_sizes: it can run several buckets (`set_sized`)."""

    takes_sizes: ClassVar[bool] = False

    @abstractmethod
    def set_inputs(self, *inputs: Array) -> None:
        """Copy the inputs to the device, in the model's order."""

    def set_sized(self, sizes: Numbers, *inputs: Array) -> None:
        """Copy inputs of sizes below the largest to the device. Raises DeviceError if it does not support them."""
        raise DeviceError(f"inputs of sizes {sizes}", "a device that is reached through TVM's RPC server")

    def at(self, sizes: Numbers) -> SizedModel:
        """Return a model that runs the library at these sizes."""
        return SizedModel(self, sizes)

    @abstractmethod
    def invoke(self) -> None:
        """Run once on the current inputs."""

    @abstractmethod
    def outputs(self) -> Arrays:
        """Copy the outputs of the last run from the device."""

    @abstractmethod
    def time_runs(self, repeat: int) -> list[float]:
        """Return `repeat` times of one run each on the device's clock, in seconds, without copies."""

    def profile(self, runs: int) -> list[tuple[str, int, int]]:
        """Run `runs` times on the current inputs; return name, calls and nanoseconds of each kernel call in order;
        empty without a profile.
        """
        return []

    def executed(self) -> Executed | None:
        """Run once on the current inputs and return its counters; None without counters."""
        return None

    def last_run_ms(self) -> float | None:
        """Return the time of the last run on the device's clock; None if not available."""
        return None

    def copies_ms(self, runs: int) -> tuple[float, float] | None:
        """Return the mean times to copy the inputs to a GPU and the outputs to the host; None without a GPU."""
        return None

    def memory_bytes(self) -> int | None:
        """Return the growth of the device's process since just before it loaded the library; None if unknown."""
        return None

    def state(self, threads: int, look: bool) -> dict[str, float] | None:
        """Return the state of the process by name of STATE, and `celsius`; None if not available.

        Counters are cumulative: take the difference of two calls. look: also measure the clock, the temperature and the
        CPUs of `threads` computing threads, which takes some milliseconds.
        """
        return None

    def close(self) -> None:  # noqa: B027 (most are freed with the object)
        """Free the library on the device."""

    def run(self, *inputs: Array) -> Arrays:
        """Run one batch of inputs with the model's shapes; return all outputs."""
        self.set_inputs(*inputs)
        self.invoke()
        return self.outputs()


@dataclass(frozen=True)
class SizedModel:
    """A library on a device with inputs of fixed sizes."""

    model: RemoteModel
    sizes: Numbers

    def run(self, *inputs: Array) -> Arrays:
        """Run one batch; return all outputs."""
        self.model.set_sized(self.sizes, *inputs)
        self.model.invoke()
        return self.model.outputs()


class RemoteKernel(ABC):
    """A kernel of a workload, loaded on a device."""

    @abstractmethod
    def output(self) -> Array:
        """Run once and return the output; values that the kernel does not write are unchanged."""

    @abstractmethod
    def time(self, repeat: int, min_repeat_ms: float) -> list[float]:
        """Return `repeat` mean times in seconds, each over runs of at least min_repeat_ms in total, after one warm-up
        run.
        """


class WorkloadBench(ABC):
    """The arguments of one workload on a device."""

    @abstractmethod
    def load(self, library: Path) -> RemoteKernel:
        """Upload a library of the workload and load it."""


@contextlib.contextmanager
def convert_errors(name: str, doing: str) -> Iterator[None]:
    """Convert errors of the RPC client to a DeviceLostError that names the operation."""
    try:
        yield
    except Exception as error:  # TVM raises RuntimeError, RPCError, OSError and its own types here
        if isinstance(error, DeviceLostError):
            raise
        raise DeviceLostError(
            f"device {name!r} failed while {doing}: {last_line(error)}",
            "a device that responds until the end",
            "check the device, then run the stage again; it resumes from the stored results",
        ) from error


@dataclass(frozen=True)
class SessionLimits:
    """session_timeout_s: the device ends a longer session; wait_s: longest wait for a free device, None
    for no limit; unit: the one to use among those of the key, "" for any.
    """

    session_timeout_s: float
    wait_s: float | None = None
    unit: str = ""
