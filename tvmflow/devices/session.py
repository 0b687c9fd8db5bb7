"""One session with one device: upload, run, time. The same for every way to reach a device."""

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
from tvmflow.support.errors import DeviceError, DeviceLostError, last_line
from tvmflow.targets.resolve import ResolvedTarget

if TYPE_CHECKING:
    from tvmflow.devices.gpu_facts import Probed

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
# What a process on a device tells of itself and its machine, in the order of runtime/measure/process_state.h.
STATE = ("wall_s", "own_s", "waited_s", "switches", "busy_s", "processors", "khz", "loop_ns", "round_trip_ns")
# What an emulated device counts, in the order of runtime/emulator/count.c.
EXECUTED = ("instructions", "multiply_add_instructions", "multiply_adds", "loaded_bytes", "stored_bytes")


def known_state(numbers: Iterable[float]) -> dict[str, float]:
    """Return those numbers of a process's state that its device knows, by name of STATE."""
    return {name: number for name, number in zip(STATE, numbers, strict=True) if 0 <= number < math.inf}


class DeviceSession(ABC):
    """An open session. All device failures come out as DeviceLostError, which may be tried again, or another
    DeviceError.

    unit: which of the devices of its key this is; build: of its system, "" where nobody knows. gpu: that computes the
    networks which were opened; None for none, or before. has_tvm: it runs libraries that need TVM's runtime; others run
    what needs nothing (network.so, and kernels that were linked alike).
    """

    has_tvm: ClassVar[bool] = False
    build = ""
    gpu: GpuFacts | None = None

    def __init__(self, name: str, unit: str, target: ResolvedTarget) -> None:
        self.name, self.unit, self.target = name, unit, target

    @abstractmethod
    def upload(self, library: Path) -> str:
        """Upload a file; returns the name under which this session knows it."""

    @abstractmethod
    def network(
        self, remote_name: str, beside: Path, outputs: list[dict[str, Any]], design: str | None = None
    ) -> RemoteModel:
        """Start a library without TVM that was uploaded. beside: the folder with what else `build` left of it.

        outputs: shape and dtype of each, as in manifest.json. design: of the accelerator that computes a part of it,
        None for none. Raises StageError where the library refuses.
        """

    @abstractmethod
    def bench(self, arrays: Sequence[Array]) -> WorkloadBench:
        """Put the arguments of a kernel on the device, the last of which is its output before it ran."""

    def model_on_device(self, remote_name: str) -> RemoteModel:
        """Start a library that was uploaded in TVM's virtual machine."""
        raise self._without_tvm(f"starting {remote_name}")

    def model(self, library: Path) -> RemoteModel:
        """Upload the library of a whole network and start it in TVM's virtual machine."""
        return self.model_on_device(self.upload(library))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that the device provides beside libraries, and return its output."""
        raise self._without_tvm(f"calling {name}")

    def gpus(self) -> Probed:
        """Return which GPUs of the device can be computed on, tried there. Raises DeviceError where nothing tries
        them.
        """
        raise DeviceError(
            f"device {self.name!r} has nothing that tries GPUs",
            "a device with our agent",
            "reach it through transport: agent or adb; 'tvmflow devices' tries those of this machine",
        )

    def opening_ms(self, remote_name: str, keeps_programs: bool) -> float | None:
        """Return what opening a library that was uploaded takes on the device; None where no GPU computes it.

        keeps_programs: it takes the programs that an earlier start compiled, and keeps them; else it compiles them
        anew.
        """
        return None

    def rest(self) -> None:  # noqa: B027 (most know nothing of it)
        """Wait until the device is cool enough to be measured, where it tells. Raises DeviceHotError."""

    def _without_tvm(self, doing: str) -> DeviceError:
        return DeviceError(
            f"{doing} on device {self.name!r}, which has no TVM",
            "a cell with a network.so (build makes one where all of it runs on the CPU)",
            "reach the device through TVM's RPC server: transport: tracker",
        )


class RemoteModel(ABC):
    """A library of a whole network, loaded on a device. takes_sizes: runs may choose sizes (`set_sized`) where the
    library has several.
    """

    takes_sizes: ClassVar[bool] = False

    @abstractmethod
    def set_inputs(self, *inputs: Array) -> None:
        """Copy the inputs to the device, in the model's order."""

    def set_sized(self, sizes: Numbers, *inputs: Array) -> None:
        """Copy inputs of other sizes than the largest to the device. Raises DeviceError where it takes none."""
        raise DeviceError(f"inputs of sizes {sizes}", "a device that is reached through TVM's RPC server")

    def at(self, sizes: Numbers) -> SizedModel:
        """Return what runs the library at these sizes."""
        return SizedModel(self, sizes)

    @abstractmethod
    def invoke(self) -> None:
        """Run once on the inputs that were set."""

    @abstractmethod
    def outputs(self) -> Arrays:
        """Copy the outputs of the last run from the device."""

    @abstractmethod
    def time_runs(self, repeat: int) -> list[float]:
        """Return `repeat` times of one run each on the device's own clock, in seconds; copies not included."""

    def profile(self, runs: int) -> list[tuple[str, int, int]]:
        """Run so often on the inputs that were set; return name, calls and nanoseconds of each kernel call, in order;
        none where nothing tells them.
        """
        return []

    def executed(self) -> dict[str, int] | None:
        """Run once on the inputs that were set and return what that executed, by name of EXECUTED; None where nothing
        counts.
        """
        return None

    def last_run_ms(self) -> float | None:
        """Return what the last run took on the device's own clock; None where that is not told."""
        return None

    def copies_ms(self, runs: int) -> tuple[float, float] | None:
        """Return the mean time that it takes to bring the inputs to a GPU, and its outputs to the host's memory; None
        where none computes.
        """
        return None

    def memory_bytes(self) -> int | None:
        """Return by how much the device's process has grown since just before it loaded the library; None where nobody
        knows.
        """
        return None

    def state(self, threads: int, look: bool) -> dict[str, float] | None:
        """Return what the device knows of the state of the process, by name of STATE, and `celsius`; None where it
        tells nothing.

        Counters only grow: what happened is the difference of two calls. look: also at the clock, the temperature and
        the CPUs on which `threads` threads compute, which takes some milliseconds.
        """
        return None

    def close(self) -> None:  # noqa: B027 (most are freed with the object)
        """Free the library on the device."""

    def run(self, *inputs: Array) -> Arrays:
        """Run one batch of inputs with the shapes of the model's; returns all outputs."""
        self.set_inputs(*inputs)
        self.invoke()
        return self.outputs()


@dataclass(frozen=True)
class SizedModel:
    """A library on a device that takes inputs of certain sizes alone."""

    model: RemoteModel
    sizes: Numbers

    def run(self, *inputs: Array) -> Arrays:
        """Run one batch; returns all outputs."""
        self.model.set_sized(self.sizes, *inputs)
        self.model.invoke()
        return self.model.outputs()


class RemoteKernel(ABC):
    """A kernel of a workload, loaded on a device."""

    @abstractmethod
    def output(self) -> Array:
        """Run once and return the output; what the kernel did not write is as it was before."""

    @abstractmethod
    def time(self, repeat: int, min_repeat_ms: float) -> list[float]:
        """Return `repeat` mean times in seconds, each of as many runs as take min_repeat_ms together, after one that is
        not counted.
        """


class WorkloadBench(ABC):
    """The arguments of one workload on a device."""

    @abstractmethod
    def load(self, library: Path) -> RemoteKernel:
        """Upload a library of the workload and load it."""


@contextlib.contextmanager
def translated(name: str, doing: str) -> Iterator[None]:
    """Turn whatever the RPC client raises into a DeviceLostError that says what was going on."""
    try:
        yield
    except Exception as error:  # TVM raises RuntimeError, RPCError, OSError and its own types here
        if isinstance(error, DeviceLostError):
            raise
        raise DeviceLostError(
            f"device {name!r} failed while {doing}: {last_line(error)}",
            "a device that responds until the end",
            "look at the device; the stage can be run again and goes on from what is stored",
        ) from error


@dataclass(frozen=True)
class SessionLimits:
    """session_timeout_s: the device ends a session that lasts longer; wait_s: how long to wait for a free device."""

    session_timeout_s: float
    wait_s: float
