"""What a fleet of devices is told and tells: rules, kernels to measure, what came out, and what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmflow.devices.session import DeviceSession
from tvmflow.ir.tir.workloads import Workload
from tvmflow.tuning.measure.build_pool import Built
from tvmflow.tuning.measure.kernel_bench import Array

OpenSession = Callable[[], AbstractContextManager[DeviceSession]]


@dataclass
class Job:
    """One candidate to measure. best_s: the best time of its workload so far."""

    workload: Workload
    library: Path
    best_s: float
    tries: int = 0
    token: Any = None


@dataclass(frozen=True)
class Measured:
    """status '' means that no device could be found for it: nothing is known, nothing may be recorded.

    unit, build: of the device, "" where it is not known.
    """

    job: Job
    status: str
    seconds: tuple[float, ...]
    canary_s: float
    device_s: float
    error: str = ""
    unit: str = ""
    build: str = ""


@dataclass
class FleetCounts:
    """What went wrong that was nobody's schedule, for the ledger."""

    lost: int = 0
    retried: int = 0
    given_up: int = 0
    drifts: int = 0
    discarded: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass
class References:
    """The inputs and the right output of each workload, shared by all devices; plain: the kernel that gives the
    output.
    """

    arrays: dict[str, list[Array]] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)
    plain: dict[str, Future[Built]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
