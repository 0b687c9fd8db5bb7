"""Run a library without TVM in this process, without TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.backends.registry import simulated_driver
from tvmflow.support.runtime_binding import network_binding


class OpenedNetwork:
    """Run a network in this process by the binding that apps use; a Runner. An accelerator is simulated."""

    def __init__(self, path: Path, threads: int) -> None:
        self.network = network_binding().Network(path, threads, driver=simulated_driver)

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        found = self.network(*inputs)
        return found if isinstance(found, tuple) else (found,)
