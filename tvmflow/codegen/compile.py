"""Compile lowered modules, and run modules or libraries in this process for checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from tvmflow.backends.backend import Backend
from tvmflow.codegen.lower import lower
from tvmflow.codegen.parallel_codegen import compile_in_pieces, compile_machine_code, replace_by_objects
from tvmflow.ir.tir.kernel_schedules import KernelSchedule, Schedule
from tvmflow.passes import run_pass
from tvmflow.passes.kernel.apply_schedules import ApplySchedules
from tvmflow.passes.kernel.rename_kernels import RenameKernels
from tvmflow.passes.pipeline import KERNEL_PIPELINE, prepare_kernels
from tvmflow.support.errors import StageError, last_line
from tvmflow.support.temporary import temporary_folder

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
_MOST_UNOPTIMIZED = 5e10  # operations in all runs: ten runs of ResNet-18, whose kernels take twice as long so


class Scheduled(NamedTuple):
    """A compiled module.

    executable: TVM's or the backend's; kernels: by name; module: the scheduled kernels.
    """

    executable: Any
    kernels: tuple[KernelSchedule, ...]
    module: Any
    backend: Backend


def compile_module(mod: IRModule, backend: Backend, level: int | None = None) -> Any:
    """Return the executable of a module, TVM's or the backend's own; raises whatever TVM raises.

    level: of LLVM's optimizations, None for all.
    """
    if (own := backend.compile_kernels(mod)) is not None:
        return own
    target = backend.tvm_target() if level is None else _at_level(backend.tvm_target(), level)
    ready = prepare_kernels(mod, target)
    if any(isinstance(function, relax.Function) for function in mod.functions.values()):
        return compile_in_pieces(ready, target, KERNEL_PIPELINE)
    with target:
        return tvm.compile(ready, target, tir_pipeline=KERNEL_PIPELINE)


def _at_level(target: Any, level: int) -> Any:
    """Return a target whose kernels LLVM optimizes at this level."""
    options = dict(target.export())
    host = {**options.pop("host"), "opt-level": level}
    return tvm.target.Target({**options, "opt-level": level}, host=host)


def compile_lowered(lowered: IRModule, backend: Backend, level: int | None = None) -> Any:
    """Return the executable of a module whose kernels are scheduled, `level` as in `compile_module`. Raises
    StageError.
    """
    try:
        return compile_module(lowered, backend, level)
    except StageError:
        raise
    except Exception as error:  # TVM raises RuntimeError, tvm.error.* and ValueError
        raise StageError(f"TVM could not compile the module: {last_line(error, 400)}") from error


def build_scheduled(
    packed: IRModule,
    backend: Backend,
    best: Mapping[str, Schedule],
    dump: Any = None,
    winograd: Mapping[str, int] | None = None,
    prefix: str = "",
) -> Scheduled:
    """Lower, schedule and compile a packed module. Raises StageError.

    prefix: of kernel names, for kernels that are linked with those of other modules.
    """
    lowered = lower(packed, backend, dump, winograd)
    return schedule_lowered(run_pass(RenameKernels(prefix), lowered) if prefix else lowered, backend, best, dump)


def schedule_lowered(lowered: IRModule, backend: Backend, best: Mapping[str, Schedule], dump: Any = None) -> Scheduled:
    """Schedule and compile a module of kernels. Raises StageError."""
    step = ApplySchedules(best, backend.template_for)
    scheduled = run_pass(step, lowered)
    if dump is not None:
        dump("schedule_kernels", scheduled)
    kernels = tuple(sorted(step.kernels, key=lambda kernel: kernel.name))
    return Scheduled(compile_lowered(scheduled, backend), kernels, scheduled, backend)


class LocalRunner:
    """Run a Relax module in this process, compiled with default schedules, for checks between stages.

    runs: how often at most. For few runs of little work LLVM optimizes less, which takes a third of the time.
    """

    def __init__(self, mod: IRModule, backend: Backend, runs: int | None = None) -> None:
        step = ApplySchedules({}, backend.template_for)
        scheduled = run_pass(step, lower(mod, backend))
        work = sum(kernel.operations for kernel in step.kernels)
        level = None if runs is None else 0 if work * runs <= _MOST_UNOPTIMIZED else 1
        self.executable = compile_lowered(scheduled, backend, level)
        set_threads(backend.target.threads)
        self.machine = _create_machine(self.executable)

    @classmethod
    def of_plain(cls, mod: IRModule, backend: Backend, runs: int | None = None) -> LocalRunner:
        """Return the runner of an unpacked module, packed for the backend first: a hundred times as fast."""
        return cls(backend.pack(mod, None)[0], backend, runs)

    def run(self, *inputs: Array) -> Arrays:
        return _call(self.machine, inputs)


class LoadedLibrary:
    """Run an exported library in this process: the check of `build`, if the architecture fits."""

    def __init__(self, library: Path, threads: int) -> None:
        set_threads(threads)
        self.machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

    def run(self, *inputs: Array) -> Arrays:
        return _call(self.machine, inputs)


def make_runner(executable: Any) -> Callable[[Arrays], Arrays]:
    """Return a function that runs TVM's executable in this process."""
    machine = _create_machine(executable)
    return lambda inputs: _call(machine, inputs)


def _create_machine(executable: Any) -> Any:
    compile_machine_code(executable)
    return relax.VirtualMachine(executable, tvm.cpu())


def _call(machine: Any, inputs: Arrays) -> Arrays:
    found = machine["main"](*(tvm.runtime.tensor(np.asarray(x, order="C")) for x in inputs))
    return tuple(np.asarray(tensor.numpy()) for tensor in ([found] if hasattr(found, "numpy") else found))


def set_threads(threads: int) -> None:
    """Set the thread pool of TVM's runtime in this process; mode 1 = any cores.

    TVM also binds the calling thread to one core. The affinity is restored: threads and processes started later would
    inherit it.
    """
    allowed = os.sched_getaffinity(0)
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)
    os.sched_setaffinity(0, allowed)


def export(scheduled: Scheduled, path: Path) -> None:
    """Link the executable of a network into a shared library for TVM.

    Its parts are written as object files in parallel first, and do not run any more.
    """
    with temporary_folder("objects") as folder:
        replace_by_objects(scheduled.executable, Path(folder))
    scheduled.backend.export(scheduled.executable, path)
