"""Apply the best measured schedule to each kernel, or the default of its template."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import WalkResult, structural_walk

from tvmflow.ir.tir.blocks import new_schedule, region_buffer
from tvmflow.ir.tir.kernel_schedules import ESTIMATED, KernelSchedule, Schedule
from tvmflow.ir.tir.workloads import constants_of, count_calls, multiplied, operations, workload_key
from tvmflow.ir.tvm_compat import IRModule, PrimFunc, block_class, load_class
from tvmflow.schedules.intrinsics.registration import register_all_in
from tvmflow.schedules.registry import Knobs, Template, apply_template
from tvmflow.schedules.template import MOST_DEFAULTS

_NOT_APPLICABLE = (s_tir.ScheduleError, RuntimeError, ValueError, TypeError)
_HIDES = "UnsafeHideBufferAccess"

Match = tuple[Template, list[Knobs]]  # a template that covers a kernel, and its candidates


def replay(function: PrimFunc, trace: Any) -> Any:
    """Return a kernel's schedule rebuilt from the JSON of a trace. Raises if the trace does not fit."""
    text = str(trace)
    register_all_in(text)  # the intrinsics may be unregistered in this process
    schedule = new_schedule(function)
    s_tir.Trace.apply_json_to_schedule(trace, schedule)
    if _HIDES in text:
        check_accesses_are_declared(schedule.mod["main"])
    return schedule


def check_accesses_are_declared(function: PrimFunc) -> None:
    """Raise ValueError if a block accesses a local buffer outside of its declared regions.

    Local buffers are shrunk to the declared regions. Templates hide accesses that a block no longer makes; a trace of
    unknown origin could hide others.
    """
    own: list[Any] = []
    structural_walk(function.body, (block_class(), lambda block: own.extend(block.alloc_buffers)))

    def visit(block: Any) -> None:
        declared = [region_buffer(region) for region in (*block.reads, *block.writes)]

        def check(buffer: Any) -> None:
            if _contains(buffer, own) and not _contains(buffer, declared):
                raise ValueError(f"block {block.name_hint} does not declare that it uses {buffer.name}")

        for match in block.match_buffers:
            check(region_buffer(match.source))
        callbacks = (
            (block_class(), lambda _inner: WalkResult.SKIP),  # an inner block declares its own accesses
            ((load_class(), tirx.BufferStore), lambda use: check(region_buffer(use))),
        )
        structural_walk(block.body, callbacks, order="pre")

    structural_walk(function.body, (block_class(), visit))


def _contains(buffer: Any, buffers: list[Any]) -> bool:
    return any(one.same_as(buffer) for one in buffers)


def default_schedule(function: PrimFunc, match: Match | None) -> tuple[Any, Knobs] | None:
    """Return the schedule and knobs of a kernel without a measurement: the first candidate of its template that
    applies.

    None if none of the first MOST_DEFAULTS candidates does.
    """
    if match is None:
        return None
    template, candidates = match
    for knobs in candidates[:MOST_DEFAULTS]:
        with contextlib.suppress(*_NOT_APPLICABLE):
            return apply_template(function, template, knobs), knobs
    return None


@tvm.transform.module_pass(opt_level=0, name="ApplySchedules")
class ApplySchedules:
    """IRModule -> IRModule; records the schedule of each kernel in `kernels`.

    best: workload key -> schedule; template_for: the backend's function.
    """

    def __init__(self, best: Mapping[str, Schedule], template_for: Callable[[Any], Match | None]) -> None:
        self.best, self.template_for = best, template_for
        self.kernels: list[KernelSchedule] = []

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        self._calls, self._constants = count_calls(mod), constants_of(mod)
        replaced = dict(mod.functions.items())
        for variable, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc):
                replaced[variable] = self._schedule(variable.name_hint, function)
        return tvm.IRModule(replaced, attrs=mod.attrs, global_infos=mod.global_infos)

    def _schedule(self, name: str, function: PrimFunc) -> Any:
        key, match = workload_key(function), self.template_for(function)
        template = match[0].name if match else "none"
        how, schedule = "none", None
        if key in self.best:
            with contextlib.suppress(*_NOT_APPLICABLE):
                schedule = replay(function, self.best[key].trace)
                how = "estimate" if self.best[key].status == ESTIMATED else "record"
        if schedule is None and (default := default_schedule(function, match)):
            how, schedule = "default", default[0]
        self._add_kernel(name, key, how, template, function)
        return function if schedule is None else copy_attributes(schedule.mod["main"], function)

    def _add_kernel(self, name: str, key: str, how: str, template: str, function: PrimFunc) -> None:
        work = operations(function)
        # Each operation reads at most one element of a constant: a gather does not read its whole table.
        constants = (
            min(nbytes, round(work * nbytes / max(values, 1))) for values, nbytes in self._constants.get(name, [])
        )
        self.kernels.append(
            KernelSchedule(name, key, how, template, self._calls[name] * work, multiplied(function), sum(constants))
        )


def copy_attributes(new: Any, old: Any) -> Any:
    """Return a scheduled kernel with the attributes of the original kernel."""
    for key in ("global_symbol", "tirx.noalias", "tir.noalias"):
        if old.attrs is not None and key in old.attrs:
            new = new.with_attr(key, old.attrs[key])
    return new
