"""ApplySchedules: give every kernel its best measured schedule, or its template's default where none was measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import WalkResult, structural_walk

from tvmflow.ir.tir.blocks import new_schedule, region_buffer
from tvmflow.ir.tir.workloads import constants_of, count_calls, multiplied, operations, workload_key
from tvmflow.ir.tvm_compat import block_class, load_class
from tvmflow.schedules.intrinsics.registration import register_all_in
from tvmflow.schedules.registry import Knobs, Template, scheduled
from tvmflow.schedules.template import MOST_DEFAULTS

ESTIMATED = "estimated"  # the status of a record that no device measured
_NOT_APPLICABLE = (s_tir.ScheduleError, RuntimeError, ValueError, TypeError)
_HIDES = "UnsafeHideBufferAccess"

Match = tuple[Template, list[Knobs]]  # a template that serves a kernel, and its candidates


@dataclass(frozen=True)
class Choice:
    """How one kernel came to its schedule: `record`, `estimate`, `default` or `none`. work: operations of all calls in
    the network.

    dtype: that it multiplies. constant_bytes: that all calls read at least.
    """

    kernel: str
    workload: str
    how: str
    template: str
    work: float
    dtype: str
    constant_bytes: int


def coverage(choices: list[Choice], how: str = "record") -> float:
    """Return the share of the network's operations whose kernels have a measured (or so made) schedule, 0 to 1."""
    total = sum(choice.work for choice in choices)
    return sum(choice.work for choice in choices if choice.how == how) / total if total else 0.0


def replay(function: Any, trace: Any) -> Any:
    """Return a kernel's schedule rebuilt from the JSON of a trace. Raises where the trace does not fit."""
    text = str(trace)
    register_all_in(text)  # this process may have scheduled nothing yet
    schedule = new_schedule(function)
    s_tir.Trace.apply_json_to_schedule(trace, schedule)
    if _HIDES in text:
        check_accesses_are_declared(schedule.mod["main"])
    return schedule


def check_accesses_are_declared(function: Any) -> None:
    """Raise ValueError where a block uses a buffer of the kernel's own that it does not declare: these are made as
    small as what is declared.

    A trace of anybody may hide accesses, which templates do of what a block no longer reads.
    """
    own: list[Any] = []
    structural_walk(function.body, (block_class(), lambda block: own.extend(block.alloc_buffers)))

    def look(block: Any) -> None:
        declared = [region_buffer(region) for region in (*block.reads, *block.writes)]

        def access(buffer: Any) -> None:
            if _is_among(buffer, own) and not _is_among(buffer, declared):
                raise ValueError(f"block {block.name_hint} does not declare that it uses {buffer.name}")

        for match in block.match_buffers:
            access(region_buffer(match.source))
        callbacks = (
            (block_class(), lambda _inner: WalkResult.SKIP),  # has its own declarations
            ((load_class(), tirx.BufferStore), lambda use: access(region_buffer(use))),
        )
        structural_walk(block.body, callbacks, order="pre")

    structural_walk(function.body, (block_class(), look))


def _is_among(buffer: Any, buffers: list[Any]) -> bool:
    return any(one.same_as(buffer) for one in buffers)


def default_schedule(function: Any, match: Match | None) -> tuple[Any, Knobs] | None:
    """Return the schedule of a kernel that was not measured, and its knobs: of its template's first candidates the
    first that applies; None where none does.
    """
    if match is None:
        return None
    template, candidates = match
    for knobs in candidates[:MOST_DEFAULTS]:
        with contextlib.suppress(*_NOT_APPLICABLE):
            return scheduled(function, template, knobs), knobs
    return None


@tvm.transform.module_pass(opt_level=0, name="ApplySchedules")
class ApplySchedules:
    """IRModule -> IRModule; `best` maps workload keys to tuning records, `template_for` is the backend's. What was
    chosen is left in `choices`.
    """

    def __init__(self, best: dict[str, Any], template_for: Callable[[Any], Match | None]) -> None:
        self.best, self.template_for = best, template_for
        self.choices: list[Choice] = []

    def transform_module(self, mod: Any, _context: Any) -> Any:
        self._calls, self._constants = count_calls(mod), constants_of(mod)
        replaced = dict(mod.functions.items())
        for variable, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc):
                replaced[variable] = self._schedule(variable.name_hint, function)
        return tvm.IRModule(replaced, attrs=mod.attrs, global_infos=mod.global_infos)

    def _schedule(self, name: str, function: Any) -> Any:
        key, match = workload_key(function), self.template_for(function)
        template = match[0].name if match else "none"
        how, schedule = "none", None
        if key in self.best:
            with contextlib.suppress(*_NOT_APPLICABLE):
                schedule = replay(function, self.best[key]["trace"])
                how = "estimate" if self.best[key].get("status") == ESTIMATED else "record"
        if schedule is None and (made := default_schedule(function, match)):
            how, schedule = "default", made[0]
        self._chose(name, key, how, template, function)
        return function if schedule is None else with_attributes(schedule.mod["main"], function)

    def _chose(self, name: str, key: str, how: str, template: str, function: Any) -> None:
        work = operations(function)
        # A step reads one value of a constant at most: of a table that is looked up in, not all.
        constants = (
            min(nbytes, round(work * nbytes / max(values, 1))) for values, nbytes in self._constants.get(name, [])
        )
        self.choices.append(
            Choice(name, key, how, template, self._calls[name] * work, multiplied(function), sum(constants))
        )


def with_attributes(new: Any, old: Any) -> Any:
    """Return a scheduled kernel with the attributes of the kernel that it was made of."""
    for key in ("global_symbol", "tirx.noalias", "tir.noalias"):
        if old.attrs is not None and key in old.attrs:
            new = new.with_attr(key, old.attrs[key])
    return new
