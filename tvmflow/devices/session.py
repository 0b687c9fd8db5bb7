"""One session with one device: upload, load, run, time. The same for every way to reach a device."""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.backends.backend import Backend
from tvmflow.devices.table import transport_of
from tvmflow.devices.transport import Link, SessionLimits
from tvmflow.errors import DeviceError, DeviceLostError, last_line
from tvmflow.params import DeviceEntry

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]


class DeviceSession:
    """An open session. All device failures come out as DeviceLostError, which may be tried again.

    unit: which of the devices of its key this is; device: where its tensors lie.
    """

    def __init__(self, link: Link, backend: Backend, name: str) -> None:
        self.remote, self.unit, self.target, self.name = link.remote, link.unit, backend.target, name
        self._uploads = itertools.count()
        remote, target = link.remote, backend.target
        self.device = backend.tvm_device(remote)
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

    def model(self, library: Path) -> RemoteModel:
        """Upload the library of a whole network and start it in TVM's virtual machine."""
        return self.model_on_device(self.upload(library))

    def model_on_device(self, remote_name: str) -> RemoteModel:
        """Load and start a library that was uploaded before."""
        from tvm import relax

        with translated(self.name, "starting the library"):
            machine = relax.VirtualMachine(self.remote.load_module(remote_name), self.device)
            return RemoteLibrary(self, machine)

    def tensor(self, array: Array) -> Any:
        import tvm

        with translated(self.name, "copying an input"):
            return tvm.runtime.tensor(np.ascontiguousarray(array), self.device)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Return memory on the device for an output, with no values yet."""
        import tvm

        with translated(self.name, "allocating an output"):
            return tvm.runtime.empty(tuple(shape), dtype, self.device)

    def call(self, name: str) -> Any:
        """Call a function that the device provides beside libraries, and return its output."""
        with translated(self.name, f"calling {name}"):
            return self.remote.get_function(name)()


class RemoteModel(ABC):
    """A library of a whole network, loaded on a device."""

    def __init__(self, session: DeviceSession) -> None:
        self.session = session

    @abstractmethod
    def set_inputs(self, *inputs: Array) -> None:
        """Copy the inputs to the device, in the model's order."""

    @abstractmethod
    def invoke(self) -> None:
        """Run once on the inputs that were set."""

    @abstractmethod
    def outputs(self) -> Arrays:
        """Copy the outputs of the last run from the device."""

    @abstractmethod
    def time_runs(self, repeat: int) -> list[float]:
        """Return `repeat` times of one run each on the device's own clock, in seconds; copies not included."""

    def memory_bytes(self) -> int | None:
        """Return by how much the device's process has grown since just before it loaded the library; None where nobody knows."""
        return None

    def run(self, *inputs: Array) -> Arrays:
        """Run one batch of inputs with the shapes of the model's; returns all outputs."""
        self.set_inputs(*inputs)
        self.invoke()
        return self.outputs()


class RemoteLibrary(RemoteModel):
    """A library in TVM's virtual machine."""

    def __init__(self, session: DeviceSession, machine: Any) -> None:
        super().__init__(session)
        self.machine = machine

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


@contextlib.contextmanager
def translated(name: str, doing: str) -> Iterator[None]:
    """Turn whatever the RPC client raises into a DeviceLostError that says what was going on."""
    try:
        yield
    except Exception as error:  # TVM raises RuntimeError, RPCError, OSError and its own types here
        if isinstance(error, DeviceLostError):
            raise
        raise DeviceLostError(
            f"device {name!r} failed while {doing}: {last_line(error)}",
            "a device that responds until the end",
            "look at the device; the stage can be run again and goes on from what is stored",
        ) from error


@contextlib.contextmanager
def open_session(device: DeviceEntry, backend: Backend, limits: SessionLimits) -> Iterator[DeviceSession]:
    """Open a session with the device of a target and close everything again, whatever happens.

    Raises TrackerError, DeviceUnknownError, DeviceBusyError, and UnknownNameError for a transport that there is not.
    """
    with transport_of(device).open(device, backend.target, limits) as link:
        session = DeviceSession(link, backend, device.key)
        yield session
        _let_go(session)


def _let_go(session: DeviceSession) -> None:
    """Drop the remote handles while the device still listens; without this their destructors speak to a dead socket."""
    import gc

    done = threading.Thread(target=gc.collect, daemon=True)
    done.start()
    done.join(timeout=5)
    del session.device
