"""Use a Dask cluster for what needs no device: stages that compile, and the candidates of the tuner.

Its workers share no path with this machine: files travel as bytes, in the arguments and results of Dask's tasks, so a
worker that dies costs only time. Stages that measure, and all that is stored or recorded, stay here.

In:  the address of a scheduler, whose workers have this version of tvmflow and the same tools
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.dask_worker import BuildWork, StageWork, build_kernel, run_stage, take_files
from tasks.stage_elsewhere import request_of
from tasks.worker_tools import tools_of_builds
from tvmflow.devices.waiting import WAITS, WAITS_HERE
from tvmflow.pipeline.record import RECORD_NAME
from tvmflow.pipeline.stage import AnyStage, StageContext
from tvmflow.support.errors import (
    ClusterAwayError,
    StageCrashedError,
    ToolchainError,
    TvmflowError,
    cause,
    first_line,
    from_json,
)
from tvmflow.support.progress import Progress
from tvmflow.support.secrets import mask
from tvmflow.tuning.records.record import UNKNOWN

_CONNECT_S = 15.0
_LOOK_S, _PAUSE_S = 2.0, 0.2
_SAY_S = 60.0
_DEVICE_WAITS = 10  # priority of kernels that a device waits for, over stages


class DaskCluster:
    """A Dask cluster. It is connected on first use, in the process of a stage."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connecting = threading.Lock()

    def can_run(self, stage: AnyStage) -> bool:
        """Return whether the workers can run a stage: it works on the outputs of others and measures nothing."""
        return bool(stage.inputs) and not stage.measures_device

    # -- stages --

    def run(self, stage: AnyStage, context: StageContext[Any, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Run a stage on a worker, fill its folder here, and return its facts. Raises the stage's error."""
        topic = f"tvmflow-{uuid.uuid4().hex}"
        files = {source: _files_of(folder, stage.inputs[source]) for source, folder in context.inputs.items()}
        what = f"{stage.name} of {context.cell}"
        work = StageWork(what, request_of(stage, context, recipe), files, topic)
        with self._hears(topic, context.progress) as started:
            done = self._result(self._submit(run_stage, work), what, context.progress, started)
        sys.stdout.write(done.log)
        sys.stdout.flush()
        if done.error is not None:
            raise from_json(done.error)
        take_files(done.files, context.out)
        facts: dict[str, Any] = done.facts
        return facts

    @contextlib.contextmanager
    def _hears(self, topic: str, progress: Progress) -> Iterator[threading.Event]:
        """Forward what a worker tells; set the event when one starts."""
        started = threading.Event()

        def hear(told: tuple[float, Any]) -> None:
            event = told[1] if isinstance(told[1], dict) else {}
            if "progress" in event:
                progress(*event["progress"])
            elif "paused" in event:
                WAITS_HERE.on_pause(bool(event["paused"]))
            elif "started" in event:
                started.set()

        self._client.subscribe_topic(topic, hear)
        try:
            yield started
        finally:
            with contextlib.suppress(Exception):  # the scheduler may be away by now
                self._client.unsubscribe_topic(topic)

    # -- candidates of the tuner --

    def count(self, here: int) -> int:
        """Return how many candidates are built side by side: one in each thread of the workers."""
        return sum(self._threads().values()) or here

    def start(self) -> _DaskBuilder:
        return _DaskBuilder(self)

    def begin_build(self, request: dict[str, Any], timeout_s: float) -> Any:
        """Let a worker build a kernel. Returns Dask's future."""
        work = BuildWork(request, _text_of(request["function"]), timeout_s, tools_of_builds(request["target"]))
        return self._submit(build_kernel, work, _DEVICE_WAITS)

    def end_build(self, future: Any, request: dict[str, Any]) -> dict[str, Any]:
        """Write the library to the path of the request; return the reply of the build process."""
        try:
            done = self._result(future, "building a kernel")
        except StageCrashedError as error:  # whose fault that is, is found out as for a process that dies
            return {"status": UNKNOWN, "error": str(error)}
        if done.error is not None:
            raise from_json(done.error)
        take_files(done.files, Path(request["path"]).parent)
        reply: dict[str, Any] = done.reply
        return reply

    # -- Dask --

    def _submit(self, function: Any, work: Any, priority: int = 0) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a graph is large: files in it survive every worker
            try:
                key = f"{function.__name__}-{uuid.uuid4().hex}"
                return self._client.submit(function, work, key=key, pure=False, priority=priority)
            except Exception as error:
                raise self._away(error) from None

    def _wait(self, future: Any, progress: Progress, started: threading.Event) -> None:
        """Wait until a worker has started, which does not count against the time limit of the stage."""
        say_at = time.monotonic() + _LOOK_S
        with WAITS_HERE.waiting():
            while not (started.wait(_PAUSE_S) or future.done()):
                if time.monotonic() >= say_at:
                    progress(f"{WAITS}a worker of the Dask cluster at {mask(self.address)}, {self._workers()}", 0, 0)
                    say_at = time.monotonic() + _SAY_S

    def _workers(self) -> str:
        count = len(self._threads())
        return f"{count} are busy" if count else "there is none"

    def _threads(self) -> dict[str, int]:
        """Return worker -> threads."""
        try:
            return dict(self._client.nthreads())
        except TvmflowError:
            raise
        except Exception as error:
            raise self._away(error) from None

    def _result(
        self, future: Any, what: str, progress: Progress | None = None, started: threading.Event | None = None
    ) -> Any:
        """Return what a worker returned. Raises ClusterAwayError, StageCrashedError, ToolchainError."""
        from distributed.scheduler import KilledWorker

        if progress is not None and started is not None:
            self._wait(future, progress, started)
        try:
            return future.result()
        except KilledWorker as error:
            raise StageCrashedError(
                f"{what} ended each Dask worker that ran it: {first_line(error)}",
                "workers that survive it",
                "read the workers' logs: most likely their memory was used up",
            ) from None
        except Exception as error:
            if future.status != "error":
                raise self._away(error) from None
            raise ToolchainError(
                f"a worker of the Dask cluster at {mask(self.address)} cannot run {what}: {cause(error, 160)}",
                "workers with the same tvmflow and packages, and with room on their disks",
                "install there what is installed here, and start the workers again",
            ) from None

    def _away(self, error: BaseException) -> ClusterAwayError:
        return ClusterAwayError(
            f"the Dask cluster at {mask(self.address)} does not answer: {cause(error, 160)}",
            "a scheduler at flows.dask_address",
            "start it, or set flows.runner to threads; then run the same command again",
        )

    @property
    def _client(self) -> Any:
        with self._connecting:
            return self._connected

    @functools.cached_property
    def _connected(self) -> Any:
        from distributed import Client

        try:
            return Client(self.address, timeout=_CONNECT_S, set_as_default=False)
        except Exception as error:  # it has many
            raise self._away(error) from None


class _DaskBuilder:
    """Builds one kernel at a time on any worker."""

    alive = True

    def __init__(self, cluster: DaskCluster) -> None:
        self._cluster = cluster
        self._running: Any = None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._running = self._cluster.begin_build(request, timeout_s)
        return self._cluster.end_build(self._running, request)

    def kill(self) -> float:
        """Give up what is being built."""
        if self._running is not None:
            with contextlib.suppress(Exception):
                self._running.cancel()
        return 0.0


@functools.lru_cache(maxsize=8)
def _text_of(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")


def _files_of(folder: Path, only: tuple[str, ...] | None) -> dict[str, bytes]:
    """Return the files of a stage's folder that the next one reads, by path in the folder."""
    if only is not None:
        return {name: (folder / name).read_bytes() for name in only}
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != RECORD_NAME)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
