"""Define the jobs, results, rules and counters of a device pool."""

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
    """One candidate to measure. best_s: the best time of its workload so far; beside_canary: in turns with the canary,
    for a comparison with another time.
    """

    workload: Workload
    library: Path
    best_s: float
    tries: int = 0
    token: Any = None
    beside_canary: bool = False


@dataclass(frozen=True)
class Measured:
    """The result of a job. Status '' means that no device was available: nothing is known, and nothing may be recorded.

    unit, build: of the device, "" if unknown.
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
class DevicePoolCounts:
    """Failures that are no schedule's fault, for MLflow."""

    lost: int = 0
    retried: int = 0
    given_up: int = 0
    drifts: int = 0
    discarded: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass
class References:
    """Inputs and reference output of each workload, shared by all devices. kernels: the reference kernel of each
    workload.
    """

    arrays: dict[str, list[Array]] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)
    kernels: dict[str, Future[Built]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
