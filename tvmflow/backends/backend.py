"""What a backend is: how one kind of processor is compiled for. A new one is a file here and a row of BACKENDS.

Knows nothing of stages, files of artifacts or how a device is reached. What is heavy is imported where it is used: the
command line reads the table of backends.
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
    from tvmflow.schedules.registry import Knobs, Template
    from tvmflow.targets.cpu_features import CpuFeatures

Progress = Callable[[str, int, int], None]
Call = Callable[[str], Any]  # name of a function that a device provides -> what it returns


class Backend(ABC):
    """A backend with its target. Everything that knows what kind of processor a target has is a method of this.

    options: what a target may say in the block under the backend's name. precisions: those that it computes in; empty
    for all. is_cpu: the whole network runs on the CPU. Only then other frameworks, which run on this machine's CPU, are
    its peers, and only then a network that `build` has not seen yet runs as fast as it will. has_own_clock: kernels are
    timed by the device that runs them. has_machine: TVM's virtual machine can run the network, too.
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
        """Return the target of an entry with nothing left to be guessed. Raises UsageError for what cannot be."""

    @abstractmethod
    def tvm_target(self) -> Any:
        """Return the tvm.target.Target of the kernels, with its host."""

    @abstractmethod
    def tvm_device(self, remote: Any) -> Any:
        """Return where a session's tensors lie: `remote.cpu(0)` of TVM's RPC session."""

    @property
    @abstractmethod
    def device_kind(self) -> str:
        """Return the kind of device that numbers of a whole network are measured on."""

    @property
    def accelerator(self) -> str | None:
        """Return the design of the device beside the CPU, as libraries without TVM name it; None where there is
        none.
        """
        return None

    @property
    @abstractmethod
    def kernel_kind(self) -> str:
        """Return the kind of device that tuning records of kernels hold for."""

    @property
    def software_driver(self) -> str | None:
        """Return which driver in software runs the network on machines without the device; None for the system's."""
        return None

    def check_precision(self, precision: str, cell: str) -> None:
        """Raise UsageError where the backend does not compute in a precision."""
        if self.precisions and precision not in self.precisions:
            legal = " or ".join(self.precisions)
            raise UsageError(
                f"precision {precision} in {cell}: a target of kind {self.target.kind}",
                f"{legal}, all that it computes in",
                f"run {cell.rpartition(':')[0]}:{self.precisions[0]}",
            )

    # -- from Relax to kernels --

    @abstractmethod
    def pack(self, mod: Any, block: int | None) -> tuple[Any, dict[str, Any]]:
        """Give a quantized module the layout of the processor; block: channels side by side, None for as many as fit.

        Returns the module and facts worth showing. What a device's part will compute is cut out here; until
        `compile_part` every such call runs by its definition.
        """

    @abstractmethod
    def lowering_passes(self, winograd: Mapping[str, int]) -> list[tuple[str, Any]]:
        """Return (name, pass) in order: packed operators become kernels, kernels that belong together become one.

        winograd: convolution key -> tile size, of those to be computed by Winograd's algorithm.
        """

    def winograd_weights(self, dtype: str) -> float:
        """Return how many weights a convolution of a dtype may have to be computed by Winograd's algorithm where
        nothing is measured; 0: it never is.
        """
        return 0

    @abstractmethod
    def cpu_features(self) -> CpuFeatures:
        """Return what schedules must know of the processor."""

    @abstractmethod
    def templates(self) -> tuple[Template, ...]:
        """Return the schedule templates of its kernels, in the order in which they are tried."""

    def template_for(self, function: Any) -> tuple[Template, list[Knobs]] | None:
        """Return the first template that covers a kernel, with its candidates; None where none does."""
        from tvmflow.schedules.registry import template_for

        return template_for(function, self.cpu_features(), self.templates())

    @property
    def plain(self) -> Backend:
        """Return who computes what the kernels should compute: the CPU beside a device that has kernels of its own."""
        return self

    def compile_kernels(self, mod: Any) -> Any:
        """Return what a library without TVM is linked from where that is no executable of TVM's; None where it is one.
        Raises StageError.
        """
        return None

    # -- what a device computes beside kernels --

    def search_part(self, packed: Any, progress: Progress) -> list[dict[str, Any]]:
        """Return the schedules of the device's part that need no measurement, as JSON; `compile_part` gets them
        back.
        """
        return []

    def compile_part(
        self, packed: Any, schedules: list[dict[str, Any]], folder: Path, progress: Progress
    ) -> tuple[Any, dict[str, Any] | None]:
        """Compile all that the device computes beside kernels, check it without running it, write it to `folder` as
        files.

        Returns the module that calls the compiled module, and what it is (None where there is nothing): `name`,
        `simulated` (then times of the device say nothing, and `estimated_ms` counts), `metrics` (name -> number); the
        rest is the backend's own. Raises ProgramError.
        """
        return packed, None

    def device_program(self, function: str, blob: bytes) -> DeviceProgram:
        """Return what the device computes in a call of a function that it provides. blob: the call's first argument.
        Raises StageError.
        """
        raise StageError(
            f"the lowered network calls {function}",
            "calls of kernels alone",
            "a library without TVM cannot be made of it yet; library.so, which needs TVM, can",
        )

    @classmethod
    def simulated_driver(cls, design: str) -> Any:
        """Return a simulated driver of a design, for libraries without TVM in this process; None for designs of
        others.
        """
        return None

    def provide(self) -> None:  # noqa: B027 (most need nothing)
        """Provide in this process what its libraries call, and the driver of an accelerator under DRIVER_FUNCTION.

        A server of this machine does so, and the checks between stages.
        """

    def verify(self, part: dict[str, Any] | None, call: Call) -> dict[str, Any] | None:
        """Return the part with what the device says that it did. Raises AgreementError when that is something else."""
        return part

    def cost(self, call: Call) -> int | None:
        """Return what all that ran on the device so far cost, where no clock says it; None where times count."""
        return None

    # -- the library --

    @abstractmethod
    def export(self, executable: Any, path: Path) -> None:
        """Write TVM's executable as the file that devices of this kind load. Raises TvmflowError without the tools."""
