"""Devices with TVM's RPC server on them: sessions of TVM's client, libraries in TVM's virtual machine."""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvmflow.backends.backend import Backend
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.session import Array, Arrays, DeviceSession, RemoteKernel, RemoteModel, WorkloadBench, translated
from tvmflow.devices.transport import Link, SessionLimits, Transport
from tvmflow.support.errors import DeviceError
from tvmflow.targets.resolve import ResolvedTarget

# Weights that no core's own cache holds come from afar in a network; a kernel that runs again and again would find some of them near.
_LARGE_BYTES = 2 << 20
_COLD_RUNS = 9
_FLUSH = "cache_flush_cpu_non_first_arg"


class RpcTransport(Transport):
    """A way to reach a device that ends in a session of TVM's RPC client."""

    @abstractmethod
    def connect(
        self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits
    ) -> AbstractContextManager[Link]:
        """Connect to one device of the key; at the end nothing of it stays open, whatever happened.

        Raises TrackerError, DeviceUnknownError, DeviceBusyError.
        """

    @contextlib.contextmanager
    def open(self, device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
        with self.connect(device, backend.target, limits) as link:
            session = RpcSession(link, backend, device.key)
            yield session
            _let_go(session)


class RpcSession(DeviceSession):
    """A session of TVM's RPC client. remote: what that client gives; device: where its tensors lie."""

    has_tvm = True

    def __init__(self, link: Link, backend: Backend, name: str) -> None:
        super().__init__(name, link.unit, backend.target)
        self.remote = link.remote
        self._uploads = itertools.count()
        self._servers: dict[Path, Any] = {}
        remote, target = link.remote, backend.target
        self.device = backend.tvm_device(remote)
        self.on_cpu = backend.is_cpu and backend.accelerator is None
        with translated(name, "setting the number of threads"):
            remote.get_function("runtime.config_threadpool")(1, target.threads)
            threads = int(remote.get_function("runtime.NumThreads")())
        if threads < target.threads:  # TVM makes its pool of half of the CPUs it sees, and never makes it larger
            raise DeviceError(
                f"device {name!r} computes on {threads} of the {target.threads} threads of its target",
                f"a server that was started with TVM_NUM_THREADS={target.threads} or more, on so many CPUs",
                "start the server with that variable, or set threads: of the target",
            )

    def upload(self, library: Path) -> str:
        """Upload a file under a name that no other upload of this session has, and return that name.

        Writing over a library that the device has loaded would change its code under it and crash the session.
        """
        remote_name = f"{next(self._uploads)}-{library.name}"
        with translated(self.name, f"uploading {library.name}"):
            self.remote.upload(str(library), remote_name)
        return remote_name

    def load(self, library: Path) -> Any:
        """Upload a library and load it. Returns the remote module."""
        remote_name = self.upload(library)
        with translated(self.name, f"loading {library.name}"):
            return self.remote.load_module(remote_name)

    def network(
        self, remote_name: str, beside: Path, outputs: list[dict[str, Any]], design: str | None = None
    ) -> RemoteModel:
        from tvmflow.devices.network_forms import RemoteNetwork

        server = beside / "rpc.so"
        if server not in self._servers:
            self._servers[server] = self.load(server)
        return RemoteNetwork(self, self._servers[server], remote_name, outputs, design)

    def model_on_device(self, remote_name: str) -> RemoteModel:
        from tvm import relax

        with translated(self.name, "starting the library"):
            machine = relax.VirtualMachine(self.remote.load_module(remote_name), self.device)
            return RemoteLibrary(self, machine)

    def bench(self, arrays: Sequence[Array]) -> WorkloadBench:
        return _RpcBench(self, arrays)

    def tensor(self, array: Array) -> Any:
        import tvm

        with translated(self.name, "copying an input"):
            return tvm.runtime.tensor(np.ascontiguousarray(array), self.device)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Return memory on the device for an output, with no values yet."""
        import tvm

        with translated(self.name, "allocating an output"):
            return tvm.runtime.empty(tuple(shape), dtype, self.device)

    def call(self, name: str, *arguments: Any) -> Any:
        with translated(self.name, f"calling {name}"):
            return self.remote.get_function(name)(*arguments)


def session_here(backend: Backend) -> RpcSession:
    """Return a session with this very process, on one thread: for outputs, not for times."""
    from tvm import rpc

    alone = type(backend)(replace(backend.target, threads=1))
    return RpcSession(Link(rpc.LocalSession(), "here"), alone, "this process")


class RemoteLibrary(RemoteModel):
    """A library in TVM's virtual machine."""

    def __init__(self, session: RpcSession, machine: Any) -> None:
        self.session, self.machine = session, machine

    def set_inputs(self, *inputs: Array) -> None:
        tensors = [self.session.tensor(x) for x in inputs]
        with translated(self.session.name, "setting the inputs"):
            self.machine.set_input("main", *tensors)

    def invoke(self) -> None:
        with translated(self.session.name, "running the library"):
            self.machine.invoke_stateful("main")

    def outputs(self) -> Arrays:
        with translated(self.session.name, "copying an output"):
            found = self.machine.get_outputs("main")
            return tuple(np.asarray(tensor.numpy()) for tensor in ([found] if hasattr(found, "numpy") else found))

    def time_runs(self, repeat: int) -> list[float]:
        with translated(self.session.name, "timing the library"):
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
        """Give the output the values that it has before a kernel ran."""
        self.arguments[-1] = self.session.tensor(self._unwritten)


@dataclass(frozen=True)
class _RpcKernel(RemoteKernel):
    bench: _RpcBench
    module: Any

    def output(self) -> Array:
        self.bench.clear()
        with translated(self.bench.session.name, "running a kernel"):
            self.module["main"](*self.bench.arguments)
            return np.asarray(self.bench.arguments[-1].numpy())

    def time(self, repeat: int, min_repeat_ms: float) -> list[float]:
        session = self.bench.session
        with translated(session.name, "timing a kernel"):
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


def _let_go(session: RpcSession) -> None:
    """Drop the remote handles while the device still listens; without this their destructors speak to a dead socket."""
    import gc

    done = threading.Thread(target=gc.collect, daemon=True)
    done.start()
    done.join(timeout=5)
    del session.device
