"""Run libraries through TVM's RPC server, with TVM's client and virtual machine."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvmflow.backends.backend import Backend
from tvmflow.config.buckets import Numbers, shape_at
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.session import (
    STATE,
    Array,
    Arrays,
    DeviceSession,
    Executed,
    RemoteKernel,
    RemoteModel,
    SessionLimits,
    WorkloadBench,
    convert_errors,
    decode_state,
)
from tvmflow.devices.transport import Link, Transport
from tvmflow.devices.waiting import WAITS_HERE
from tvmflow.frontends.source_model import OutputSpec
from tvmflow.support.errors import DeviceError, DeviceLostError, StageError, TvmflowError, session_expired_error
from tvmflow.support.runtime_binding import DRIVER_ERROR_FUNCTION, DRIVER_FUNCTION
from tvmflow.targets.resolve import ResolvedTarget

# In a network, weights that are larger than a core's own cache come from memory; a kernel that is run repeatedly would
# find some of them in the cache.
_LARGE_BYTES = 2 << 20
_COLD_RUNS = 9
_FLUSH = "cache_flush_cpu_non_first_arg"
_WORKPATH = "tvm.rpc.server.workpath"


class RpcTransport(Transport):
    """A transport that uses TVM's RPC client."""

    @abstractmethod
    def connect(
        self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits
    ) -> AbstractContextManager[Link]:
        """Connect to one device of the key and close everything at the end.

        Raises TrackerError, DeviceUnknownError, DeviceBusyError.
        """

    @contextlib.contextmanager
    def open(self, device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
        with self.connect(device, backend.target, limits) as link:
            begin = time.monotonic()
            try:
                session = RpcSession(link, backend, device.key)
                session.configured = backend.configure(session.call, session.upload_to_path)
            except TvmflowError:
                end_link(link)  # the error refers to the session, and the device would serve it until its time is over
                raise
            if said := (session.configured or {}).get("programmed_s"):
                WAITS_HERE.say(f"programmed the FPGA of {device.key} ({link.unit}) in {said:.2f} s")
            try:
                yield session
            except DeviceLostError as error:
                if time.monotonic() - begin < limits.session_timeout_s:
                    raise
                raise session_expired_error(device.key, f"in use ({error.found})", limits.session_timeout_s) from error
            _drop_handles(session)


class RpcSession(DeviceSession):
    """A session of TVM's RPC client. remote: the client's session; device: holds its tensors."""

    has_tvm = True

    def __init__(self, link: Link, backend: Backend, name: str) -> None:
        super().__init__(name, link.unit, backend.target)
        self.remote = link.remote
        self._uploads = itertools.count()
        self._servers: dict[Path, Any] = {}
        remote, target = link.remote, backend.target
        self.device = backend.tvm_device(remote)
        self.on_cpu = backend.is_cpu and backend.accelerator is None
        with convert_errors(name, "setting the number of threads"):
            remote.get_function("runtime.config_threadpool")(1, target.threads)
            threads = int(remote.get_function("runtime.NumThreads")())
        if threads < target.threads:  # TVM's pool has half of the visible CPUs and cannot grow
            raise DeviceError(
                f"device {name!r} computes on {threads} of the {target.threads} threads of its target",
                f"a server started with TVM_NUM_THREADS={target.threads} or more, on as many CPUs",
                "start the server with that variable, or set threads: of the target",
            )

    def upload(self, library: Path) -> str:
        """Upload a file under a unique name of this session and return the name.

        Overwriting a loaded library would change its code and crash the session.
        """
        remote_name = f"{next(self._uploads)}-{library.name}"
        with convert_errors(self.name, f"uploading {library.name}"):
            self.remote.upload(str(library), remote_name)
        return remote_name

    def upload_to_path(self, file: Path) -> str:
        """Upload a file and return its path on the device."""
        name = self.upload(file)
        return str(self.call(_WORKPATH, name))

    def load(self, library: Path) -> Any:
        """Upload a library, load it and return the remote module."""
        remote_name = self.upload(library)
        with convert_errors(self.name, f"loading {library.name}"):
            return self.remote.load_module(remote_name)

    def network(
        self, remote_name: str, beside: Path, outputs: Sequence[OutputSpec], design: str | None = None
    ) -> RemoteModel:

        server = beside / "rpc.so"
        if server not in self._servers:
            self._servers[server] = self.load(server)
        return RemoteNetwork(self, self._servers[server], remote_name, outputs, design)

    def model_on_device(self, remote_name: str) -> RemoteModel:
        from tvm import relax

        with convert_errors(self.name, "starting the library"):
            machine = relax.VirtualMachine(self.remote.load_module(remote_name), self.device)
            return RemoteLibrary(self, machine)

    def bench(self, arrays: Sequence[Array]) -> WorkloadBench:
        return _RpcBench(self, arrays)

    def tensor(self, array: Array) -> Any:
        import tvm

        with convert_errors(self.name, "copying an input"):
            return tvm.runtime.tensor(np.asarray(array, order="C"), self.device)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Return uninitialized memory on the device for an output."""
        import tvm

        with convert_errors(self.name, "allocating an output"):
            return tvm.runtime.empty(tuple(shape), dtype, self.device)

    def call(self, name: str, *arguments: Any) -> Any:
        with convert_errors(self.name, f"calling {name}"):
            return self.remote.get_function(name)(*arguments)


def open_local_session(backend: Backend) -> RpcSession:
    """Return a session with this process, on one thread: for outputs, not for times."""
    from tvm import rpc

    alone = type(backend)(replace(backend.target, threads=1))
    return RpcSession(Link(rpc.LocalSession(), "here"), alone, "this process")


class RemoteLibrary(RemoteModel):
    """A library in TVM's virtual machine."""

    def __init__(self, session: RpcSession, machine: Any) -> None:
        self.session, self.machine = session, machine

    def set_inputs(self, *inputs: Array) -> None:
        tensors = [self.session.tensor(x) for x in inputs]
        with convert_errors(self.session.name, "setting the inputs"):
            self.machine.set_input("main", *tensors)

    def invoke(self) -> None:
        with convert_errors(self.session.name, "running the library"):
            self.machine.invoke_stateful("main")

    def outputs(self) -> Arrays:
        with convert_errors(self.session.name, "copying an output"):
            found = self.machine.get_outputs("main")
            return tuple(np.asarray(tensor.numpy()) for tensor in ([found] if hasattr(found, "numpy") else found))

    def time_runs(self, repeat: int) -> list[float]:
        with convert_errors(self.session.name, "timing the library"):
            timer = self.machine.time_evaluator("invoke_stateful", self.session.device, number=1, repeat=repeat)
            return [float(seconds) for seconds in timer("main").results]


class _RpcBench(WorkloadBench):
    def __init__(self, session: RpcSession, arrays: Sequence[Array]) -> None:
        self.session = session
        self.arguments = [session.tensor(array) for array in arrays]
        self.cold = session.on_cpu and any(array.nbytes > _LARGE_BYTES for array in arrays[1:-1])
        self._unwritten = arrays[-1]

    def load(self, library: Path) -> RemoteKernel:
        return _RpcKernel(self, self.session.load(library))

    def clear(self) -> None:
        """Reset the output to its values before the kernel ran."""
        self.arguments[-1] = self.session.tensor(self._unwritten)


@dataclass(frozen=True)
class _RpcKernel(RemoteKernel):
    bench: _RpcBench
    module: Any

    def output(self) -> Array:
        self.bench.clear()
        with convert_errors(self.bench.session.name, "running a kernel"):
            self.module["main"](*self.bench.arguments)
            return np.asarray(self.bench.arguments[-1].numpy())

    def time(self, repeat: int, min_repeat_ms: float) -> list[float]:
        session = self.bench.session
        with convert_errors(session.name, "timing a kernel"):
            if self.bench.cold:
                timer = self.module.time_evaluator(
                    "main", session.device, number=1, repeat=repeat * _COLD_RUNS, f_preproc=_FLUSH
                )
                found = [float(seconds) for seconds in timer(*self.bench.arguments).results]
                return [median(found[at::repeat]) for at in range(repeat)]
            timer = self.module.time_evaluator(
                "main", session.device, number=1, repeat=repeat, min_repeat_ms=int(min_repeat_ms)
            )
            return [float(seconds) for seconds in timer(*self.bench.arguments).results]


def end_link(link: Link) -> None:
    """End a session on the device now, not when the last reference to it is gone."""
    with contextlib.suppress(Exception):  # of a device that is gone
        link.remote.get_function("CloseRPCConnection")()


def _drop_handles(session: RpcSession) -> None:
    """Drop the remote handles while the device still listens; otherwise their destructors use a closed socket."""
    import gc

    done = threading.Thread(target=gc.collect, daemon=True)
    done.start()
    done.join(timeout=5)
    del session.device


_ERROR_BYTES = 512  # ERROR_SIZE of runtime/rpc/rpc.c


class RemoteNetwork(RemoteModel):
    """A library without TVM, opened through runtime/rpc/rpc.c, which the device has loaded as `server`.

    outputs: in its order. design: of its accelerator, whose driver the server provides,
    or None. Raises StageError with the library's message.
    """

    takes_sizes = True

    def __init__(
        self, session: RpcSession, server: Any, remote_name: str, outputs: Sequence[OutputSpec], design: str | None
    ) -> None:
        self.session, self._design = session, design
        self._run = server["run"]
        self._server, self._close = server, server["close"]
        self._error = session.tensor(np.zeros(_ERROR_BYTES, np.uint8))
        driver = int(session.call(DRIVER_FUNCTION, design)) if design is not None else 0
        with convert_errors(session.name, "opening the library"):
            self._before = int(server["resident"]())
            path = session.remote.get_function(_WORKPATH)(remote_name)
            self._handle = int(server["open"](self._text(path), session.target.threads, driver, self._error))
        if not self._handle:
            raise self._library_error("opened")
        self._inputs: list[Any] = []
        self._described = outputs
        self._outputs = [session.empty(one.shape, one.dtype) for one in outputs]

    def _text(self, text: str) -> Any:
        return self.session.tensor(np.frombuffer(text.encode() + b"\0", np.uint8))

    def _library_error(self, doing: str) -> StageError:
        text = bytes(self._error.numpy()).split(b"\0")[0].decode(errors="replace")
        if self._design is not None and (why := self.session.call(DRIVER_ERROR_FUNCTION)):
            text += f": {why}"
        return StageError(f"the library without TVM cannot be {doing} on device {self.session.name!r}: {text}")

    def set_inputs(self, *inputs: Array) -> None:
        self._inputs = [self.session.tensor(x) for x in inputs]

    def set_sized(self, sizes: Numbers, *inputs: Array) -> None:
        self.set_inputs(*inputs)
        self._outputs = [self.session.empty(shape_at(one.shape, one.axes, sizes), one.dtype) for one in self._described]

    def invoke(self) -> None:
        with convert_errors(self.session.name, "running the library"):
            status = int(self._run(self._handle, *self._inputs, *self._outputs, self._error))
        if status:
            raise self._library_error("run")

    def outputs(self) -> Arrays:
        with convert_errors(self.session.name, "copying an output"):
            return tuple(np.asarray(tensor.numpy()) for tensor in self._outputs)

    def time_runs(self, repeat: int) -> list[float]:
        with convert_errors(self.session.name, "timing the library"):
            timer = self._server.time_evaluator("run", self.session.device, number=1, repeat=repeat)
            return [float(s) for s in timer(self._handle, *self._inputs, *self._outputs, self._error).results]

    def executed(self) -> Executed | None:
        counters = self.session.tensor(np.zeros(len(fields(Executed)), np.int64))
        with convert_errors(self.session.name, "counting instructions"):
            status = int(self._server["count"](self._handle, *self._inputs, *self._outputs, counters, self._error))
            found = counters.numpy()
        if status:
            raise self._library_error("run")
        return Executed(*map(int, found)) if found[0] else None

    def profile(self, runs: int) -> list[tuple[str, int, int]]:
        name, counts = self._text(" " * (_ERROR_BYTES - 1)), self.session.tensor(np.zeros(2, np.int64))
        found: list[tuple[str, int, int]] = []
        with convert_errors(self.session.name, "profiling the library"):
            self._server["profile"](self._handle, 1)
        self.invoke()
        with convert_errors(self.session.name, "profiling the library"):
            if runs > 2:  # without pauses, in which threads would sleep; includes the timer's first run
                timer = self._server.time_evaluator("run", self.session.device, number=runs - 2, repeat=1)
                timer(self._handle, *self._inputs, *self._outputs, self._error)
            while int(self._server["kernel"](self._handle, len(found), name, counts)) == 0:
                calls, nanoseconds = counts.numpy()
                found.append((name.numpy().tobytes().split(b"\0")[0].decode(), int(calls), int(nanoseconds)))
            self._server["profile"](self._handle, 0)
        return found

    def memory_bytes(self) -> int | None:
        with convert_errors(self.session.name, "reading the memory of its process"):
            now = int(self._server["resident"]())
        return max(0, now - self._before) if now else None

    def state(self, threads: int, look: bool) -> dict[str, float] | None:
        with convert_errors(self.session.name, "reading its state"):
            try:
                read = self._server["state"]
            except AttributeError:  # a build of an earlier tvmflow
                return None
            numbers = self.session.tensor(np.full(len(STATE), -1.0))
            read(threads, int(look), numbers)
            return decode_state(map(float, numbers.numpy()))

    def close(self) -> None:
        """Free the network on the device."""
        with convert_errors(self.session.name, "closing the library"):
            self._close(self._handle)
