"""This process as a device, so that a search can be tested without servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tvmflow.backends.cpu import CpuBackend
from tvmflow.devices.rpc.session import open_local_session
from tvmflow.targets.resolve import host_target
from tvmflow.tuning.measure.jobs import DevicePoolRules
from tvmflow.tuning.measure.kernel_bench import MeasureRules
from tvmflow.tuning.search.rules import SearchRules

# A few short measurements, believed whatever else the machine does.
QUICK_RULES = SearchRules(
    tuner="grid",
    loss="rank",
    trials=2,
    total_trials=0,
    early_stopping=100,
    seed=0,
    replay_slowdown=1e9,
    build_workers=1,
    build_timeout_s=60.0,
    overlap=False,
    device_pool=DevicePoolRules(
        slots=1,
        kernel_timeout_s=60.0,
        session_s=3600.0,
        canary_every=4,
        max_drift=1e9,
        cool_s=0.0,
        give_up_s=1.0,
        measure=MeasureRules(1, 0.1),
    ),
)


@contextlib.contextmanager
def here() -> Iterator[Any]:
    """Open a session with this process."""
    yield open_local_session(CpuBackend(host_target()))
