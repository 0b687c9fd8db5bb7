"""Define the interface of a backend: how TVM compiles for one kind of processor.

A new backend is a file here and a row of BACKENDS. Backends know nothing of stages, artifact files or connections to
devices. Heavy modules are imported where they are used, since the command line reads the table of backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tvmflow.backends.device_program import DeviceProgram
from tvmflow.config.options import Options
from tvmflow.support.errors import StageError, UsageError
from tvmflow.targets.resolve import ResolvedTarget

if TYPE_CHECKING:
    from tvmflow.config.params import TargetEntry
    from tvmflow.ir.tvm_compat import IRModule, PrimFunc
    from tvmflow.schedules.registry import Knobs, Template
    from tvmflow.targets.cpu_features import CpuFeatures

Progress = Callable[[str, int, int], None]
Call = Callable[[str], Any]  # name of a function on the device -> its result


class Backend(ABC):
    """A backend with its target. All code that depends on the kind of processor is a method of this class.

    options: the fields of the target's block with the backend's name. precisions: supported ones; empty for all.
    is_cpu: whether the whole network runs on the CPU. Only then other frameworks, which run on this machine's CPU, are
    baselines, and only then an untuned network has its final speed. has_own_clock: whether the device times its
    kernels. has_machine: whether TVM's virtual machine can run the network, too.
    """

    options: ClassVar[type[Options]] = Options
    precisions: ClassVar[tuple[str, ...]] = ()
    is_cpu: ClassVar[bool] = True
    has_own_clock: ClassVar[bool] = False
    has_machine: ClassVar[bool] = True

    def __init__(self, target: ResolvedTarget) -> None:
        self.target = target

    # -- the target --

    @classmethod
    @abstractmethod
    def resolve(cls, entry: TargetEntry) -> ResolvedTarget:
        """Return the target of an entry with all values filled in. Raises UsageError if a value cannot
        be determined.
        """

    @abstractmethod
    def tvm_target(self) -> Any:
        """Return the tvm.target.Target of the kernels, with its host."""

    @abstractmethod
    def tvm_device(self, remote: Any) -> Any:
        """Return the device of a session's tensors: `remote.cpu(0)` of TVM's RPC session."""

    @property
    @abstractmethod
    def device_kind(self) -> str:
        """Return the kind of device on which whole networks are measured."""

    @property
    def accelerator(self) -> str | None:
        """Return the name of the accelerator's design for libraries without TVM, None if there is no accelerator."""
        return None

    @property
    @abstractmethod
    def kernel_kind(self) -> str:
        """Return the kind of device for which tuning records of kernels are valid."""

    @property
    def software_driver(self) -> str | None:
        """Return the software driver that runs the network on machines without the device, None for the system's."""
        return None

    def check_precision(self, precision: str, cell: str) -> None:
        """Raise UsageError if the backend does not support a precision."""
        if self.precisions and precision not in self.precisions:
            legal = " or ".join(self.precisions)
            raise UsageError(
                f"precision {precision} in {cell}: a target of kind {self.target.kind}",
                f"{legal}, all that it computes in",
                f"run {cell.rpartition(':')[0]}:{self.precisions[0]}",
            )

    def check_tools(self) -> None:  # noqa: B027 (most need none)
        """Raise ToolchainError if a vendor's tool that the target names is missing."""

    # -- from Relax to kernels --

    @abstractmethod
    def pack(self, mod: IRModule, block: int | None) -> tuple[Any, dict[str, Any]]:
        """Convert a quantized module to the layout of the processor; block: packed channels, None for the default.

        Return the module and facts to display. The parts that an accelerator computes are partitioned here; until
        `compile_part`, the numpy interpreter computes each call of them.
        """

    @abstractmethod
    def lowering_passes(self, winograd: Mapping[str, int]) -> list[tuple[str, Any]]:
        """Return (name, pass) in order: the passes that lower packed operators to fused kernels.

        winograd: convolution key -> tile size, for convolutions to compute by Winograd's algorithm.
        """

    def winograd_weights(self, dtype: str) -> float:
        """Return up to how many weights an unmeasured convolution of a dtype uses Winograd's algorithm; 0 for never."""
        return 0

    @abstractmethod
    def cpu_features(self) -> CpuFeatures:
        """Return the features of the CPU that schedules depend on."""

    @abstractmethod
    def templates(self) -> tuple[Template, ...]:
        """Return the schedule templates in the order in which they are tried."""

    def template_for(self, function: PrimFunc) -> tuple[Template, list[Knobs]] | None:
        """Return the first template that covers a kernel, with its candidates; None if none does."""
        from tvmflow.schedules.registry import template_for

        return template_for(function, self.cpu_features(), self.templates())

    @property
    def plain(self) -> Backend:
        """Return the backend that computes reference results: the CPU beside a device with kernels of its own."""
        return self

    def compile_kernels(self, mod: IRModule) -> Any:
        """Return the executable for a library without TVM if it is not one of TVM's, else None. Raises StageError."""
        return None

    # -- what a device computes beside kernels --

    def search_part(self, packed: IRModule, progress: Progress) -> list[dict[str, Any]]:
        """Return the schedules of the accelerator's parts that need no measurement, as JSON, for `compile_part`."""
        return []

    def compile_part(
        self, packed: IRModule, schedules: list[dict[str, Any]], folder: Path, progress: Progress
    ) -> tuple[Any, dict[str, Any] | None]:
        """Compile and check the parts that an accelerator computes, and write them to `folder`.

        Return the module that calls the compiled parts, and their description (None if there are none): `name`,
        `simulated` (then measured times are meaningless and `estimated_ms` is used), `metrics` (name -> number); other
        fields belong to the backend. Raises ProgramError.
        """
        return packed, None

    def device_program(self, function: str, blob: bytes) -> DeviceProgram:
        """Return the accelerator program of a call. blob: the first argument of the call.

        Raises StageError.
        """
        raise StageError(
            f"the lowered network calls {function}",
            "calls of kernels alone",
            "a library without TVM cannot be made of it yet; library.so, which needs TVM, can",
        )

    @classmethod
    def simulated_driver(cls, design: str) -> Any:
        """Return a simulated driver of a design, for libraries without TVM in this process; None for
        unknown designs.
        """
        return None

    def provide(self) -> None:  # noqa: B027 (most need nothing)
        """Register in this process the functions that its libraries call, and an accelerator's driver as
        DRIVER_FUNCTION.

        Servers on this machine and the checks between stages call this.
        """

    def configure(self, call: Callable[..., Any], upload: Callable[[Path], str]) -> dict[str, Any] | None:
        """Configure a device through its functions, and files uploaded to a path; return what was done."""
        return None

    def verify(self, part: dict[str, Any] | None, call: Call) -> dict[str, Any] | None:
        """Return the part with the counters of the device. Raises AgreementError if they differ from the plan."""
        return part

    def cost(self, call: Call) -> int | None:
        """Return the accumulated cost of all runs on a device without a clock, None if times are measured."""
        return None

    # -- the library --

    @abstractmethod
    def export(self, executable: Any, path: Path) -> None:
        """Write TVM's executable as the file that these devices load. Raises TvmflowError if tools are missing."""
