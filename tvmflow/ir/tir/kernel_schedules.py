"""Describe the schedules of a network's kernels: those in best.json, which build reads, and those in its library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

ESTIMATED = "estimated"  # status of a record from a cost model, not from a device


class Schedule(Protocol):
    """A kernel's schedule. trace: as TVM's trace JSON; status: ok, or ESTIMATED."""

    @property
    def trace(self) -> Any: ...

    @property
    def status(self) -> str: ...


@dataclass(frozen=True)
class MeasuredSchedule:
    """A schedule of a workload, measured on a device kind. seconds: one mean per repeat; empty unless status is ok.

    trace: the schedule as TVM's trace JSON.
    """

    workload: str
    name: str
    template: str
    knobs: dict[str, int]
    trace: Any
    seconds: tuple[float, ...]
    status: str
    device_kind: str
    toolchain: dict[str, str]


@dataclass(frozen=True)
class BestSchedule(MeasuredSchedule):
    """The best schedule of a workload, as its tuning record describes it. calls: of the workload in a run."""

    flops: float
    extents: tuple[int, ...]
    calls: int


@dataclass(frozen=True)
class BestSchedules:
    """The content of best.json. winograd: convolution key -> tile size of those that use Winograd's algorithm; part:
    the schedules of what an accelerator computes.
    """

    device_kind: str
    winograd: dict[str, int]
    records: tuple[BestSchedule, ...]
    part: list[dict[str, Any]]

    def on(self, device_kind: str) -> tuple[Mapping[str, BestSchedule], Mapping[str, int]]:
        """Return workload key -> schedule, and `winograd`, for kernels on a kind of device; both empty for another."""
        if device_kind != self.device_kind:
            return {}, {}
        return {record.workload: record for record in self.records}, self.winograd


@dataclass(frozen=True)
class KernelSchedule:
    """A kernel of a library. schedule: where its schedule is from: `record`, `estimate`, `default` or `none`.

    operations: of all calls in the network; dtype: type of the multiplied values; constant_bytes: lower bound of the
    constants that all calls read.
    """

    name: str
    workload: str
    schedule: str
    template: str
    operations: float
    dtype: str
    constant_bytes: int


def coverage(kernels: Sequence[KernelSchedule], schedule: str = "record") -> float:
    """Return the share (0 to 1) of operations whose kernels have a measured schedule, or another kind of `schedule`."""
    total = sum(kernel.operations for kernel in kernels)
    return sum(kernel.operations for kernel in kernels if kernel.schedule == schedule) / total if total else 0.0


def count_coverage(kernels: Sequence[KernelSchedule]) -> dict[str, Any]:
    """Return the number of kernels by the source of their schedules, and the measured share of operations."""
    counts = {how: sum(one.schedule == how for one in kernels) for how in ("record", "estimate", "default", "none")}
    return {
        "kernels": len(kernels),
        "coverage": coverage(kernels),
        "kernels_tuned": counts["record"],
        "kernels_default": counts["default"],
        "kernels_estimated": counts["estimate"],
        "kernels_unscheduled": counts["none"],
    }
