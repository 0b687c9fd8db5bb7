"""Compile a lowered module and export it as a shared library; run a module in this process for a check."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.building import intrinsics
from tvmflow.building.lower import lower
from tvmflow.errors import StageError, TvmflowError, last_line
from tvmflow.passes.round_bfloat16 import with_rounding
from tvmflow.passes.schedule_kernels import Choice, ScheduleKernels
from tvmflow.targets.machine import machine_of
from tvmflow.targets.resolve import ResolvedTarget

Array = np.ndarray[Any, Any]


def compile_module(mod: Any, target: Any) -> Any:
    """Return TVM's executable of a module; raises whatever TVM raises."""
    import tvm

    intrinsics.register()
    with target:
        return tvm.compile(with_rounding(mod, target), target)


def compile_lowered(lowered: Any, target: Any) -> Any:
    """Return TVM's executable of a module whose kernels are scheduled. Raises StageError."""
    try:
        return compile_module(lowered, target)
    except Exception as error:  # the compiler raises RuntimeError, tvm.error.*, and ValueError alike
        raise StageError(f"TVM could not compile the module: {last_line(error, 400)}") from error


def export(executable: Any, path: Path, target: ResolvedTarget) -> None:
    """Link the executable into a shared library with the target's compiler. Raises TvmflowError without one."""
    from tvm.support import cc

    def link(output: str, objects: Any, options: Any = None, **_ignored: Any) -> None:
        # No build id and sorted input: the same objects give the same bytes.
        cc.create_shared(output, objects, [*(options or []), "-Wl,--build-id=none"], cc=target.cc)

    link.output_format = "so"  # type: ignore[attr-defined]
    try:
        subprocess.run([target.cc, "--version"], capture_output=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        raise TvmflowError(
            f"no C++ compiler {target.cc!r}",
            "the compiler of the target on PATH",
            "install it, or set cc: of the target",
        ) from None
    executable.export_library(str(path), fcompile=link)


def run_pass(step: Any, mod: Any) -> Any:
    """Apply a pass; module_pass makes ours callable in a way that type checkers cannot see."""
    return step(mod)


def build_scheduled(
    packed: Any, target: ResolvedTarget, best: dict[str, Any], dump: Any = None, winograd: dict[str, int] | None = None
) -> tuple[Any, list[Choice]]:
    """Lower, schedule and compile a packed module. Returns the executable and how each kernel was scheduled."""
    tvm_target = target.tvm_target()
    lowered = lower(packed, tvm_target, dump, winograd)
    step = ScheduleKernels(best, machine_of(target))
    scheduled = run_pass(step, lowered)
    if dump is not None:
        dump("schedule_kernels", scheduled)
    return compile_lowered(scheduled, tvm_target), list(step.choices)


class LocalRunner:
    """Run a Relax module in this process, compiled with default schedules: for checks between stages only."""

    def __init__(self, mod: Any, target: ResolvedTarget) -> None:
        import tvm
        from tvm import relax

        executable, _ = build_scheduled(mod, target, {})
        set_threads(target.threads)
        self.machine = relax.VirtualMachine(executable, tvm.cpu())

    def run(self, x: Array) -> Array:
        return _call(self.machine, x)


class LoadedLibrary:
    """Run an exported library in this process: the check of build, where the architecture fits."""

    def __init__(self, library: Path, threads: int) -> None:
        import tvm
        from tvm import relax

        set_threads(threads)
        self.machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

    def run(self, x: Array) -> Array:
        return _call(self.machine, x)


def _call(machine: Any, x: Array) -> Array:
    import tvm

    answer = machine["main"](tvm.runtime.tensor(np.ascontiguousarray(x)))
    return np.asarray((answer if hasattr(answer, "numpy") else answer[0]).numpy())


def set_threads(threads: int) -> None:
    """Set the thread pool of TVM's runtime in this process; mode 1 = any cores."""
    import tvm_ffi

    tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)
