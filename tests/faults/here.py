"""Use this process as a device, to test a search without servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tvmflow.backends.cpu import CpuBackend
from tvmflow.devices.rpc.session import open_local_session
from tvmflow.targets.resolve import host_target


@contextlib.contextmanager
def here() -> Iterator[Any]:
    """Open a session with this process."""
    yield open_local_session(CpuBackend(host_target()))
