"""Choose the task runner of cells: threads of this process, with or without a Dask cluster for what needs no device.

The stages of a cell ask the cluster themselves (tasks/dask_cluster.py), so Prefect, all stores and all devices stay on
this machine, and workers need to reach nothing but Dask's scheduler.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any, Self

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from tvmflow.config.params import FlowParams
from tvmflow.support.errors import ClusterAwayError, UsageError, first_line
from tvmflow.support.secrets import mask

_CONNECT_S = 15.0
_address = ""  # of the cluster that this process started


def started_cluster() -> str:
    """Return the address of the cluster that this process started, "" for none."""
    return _address


def task_runner(flows: FlowParams) -> TaskRunner[Any]:
    """Return the task runner of params.yaml. Raises UsageError if packages are missing."""
    if flows.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=flows.workers)
    try:
        import prefect_dask  # noqa: F401
    except ImportError:
        raise UsageError(
            "flows.runner is dask, but prefect-dask is not installed", hint="pip install 'tvmflow[dask]'"
        ) from None
    return DaskCells(flows.workers, flows.dask_address)


class DaskCells(ThreadPoolTaskRunner[Any]):
    """Threads that walk cells, while a Dask cluster compiles for them. address: None to start one on this machine."""

    def __init__(self, max_workers: int, address: str | None = None) -> None:
        super().__init__(max_workers=max_workers)
        self._workers, self._dask_address, self._stack = max_workers, address, ExitStack()

    def duplicate(self) -> DaskCells:
        return DaskCells(self._workers, self._dask_address)

    def __enter__(self) -> Self:
        from prefect_dask import DaskTaskRunner

        global _address
        logging.getLogger("distributed").setLevel(logging.ERROR)  # a worker that leaves is told by what it did
        options = {"n_workers": self._workers, "threads_per_worker": 1, "dashboard_address": None}
        cluster = (
            DaskTaskRunner(address=self._dask_address, client_kwargs={"timeout": _CONNECT_S})
            if self._dask_address
            else DaskTaskRunner(cluster_kwargs=options)
        )
        try:
            self._stack.enter_context(cluster)
            address = cluster.client.scheduler.address
        except OSError as error:
            self._stack.close()
            raise ClusterAwayError(
                f"no Dask cluster at {mask(self._dask_address or 'this machine')}: {first_line(error)}",
                "a scheduler at flows.dask_address",
                "start it, or set flows.runner to threads; then run the same command again",
            ) from None
        _address = "" if self._dask_address else address
        super().__enter__()
        return self

    def __exit__(self, *about: Any) -> None:
        global _address
        try:
            super().__exit__(*about)
        finally:
            _address = ""
            self._stack.close()
