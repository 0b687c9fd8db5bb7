"""What ships, on a device: the library without TVM, run through TVM's RPC server; and how each form of a network is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.config.buckets import Numbers, axes_from, shape_at
from tvmflow.devices.rpc.session import RpcSession
from tvmflow.devices.session import EXECUTED, STATE, Array, Arrays, DeviceSession, RemoteModel, known_state, translated
from tvmflow.support.errors import StageError
from tvmflow.support.runtime_binding import DRIVER_ERROR_FUNCTION, DRIVER_FUNCTION

_ERROR_BYTES = 512  # ERROR_SIZE of runtime/rpc/rpc.c


class RemoteNetwork(RemoteModel):
    """A library without TVM, opened by the functions of runtime/rpc/rpc.c, which the device has loaded as `server`.

    outputs: shape and dtype of each, as in manifest.json. design: of its accelerator, whose driver the server provides, or None.
    Raises StageError with the text of the library where it refuses.
    """

    takes_sizes = True

    def __init__(
        self, session: RpcSession, server: Any, remote_name: str, outputs: list[dict[str, Any]], design: str | None
    ) -> None:
        self.session, self._design = session, design
        self._run = server["run"]
        self._server, self._close = server, server["close"]
        self._error = session.tensor(np.zeros(_ERROR_BYTES, np.uint8))
        driver = int(session.call(DRIVER_FUNCTION, design)) if design is not None else 0
        with translated(session.name, "opening the library"):
            self._before = int(server["resident"]())
            path = session.remote.get_function("tvm.rpc.server.workpath")(remote_name)
            self._handle = int(server["open"](self._text(path), session.target.threads, driver, self._error))
        if not self._handle:
            raise self._refused("opened")
        self._inputs: list[Any] = []
        self._described = outputs
        self._outputs = [session.empty(one["shape"], one["dtype"]) for one in outputs]

    def _text(self, text: str) -> Any:
        return self.session.tensor(np.frombuffer(text.encode() + b"\0", np.uint8))

    def _refused(self, doing: str) -> StageError:
        text = bytes(self._error.numpy()).split(b"\0")[0].decode(errors="replace")
        if self._design is not None and (why := self.session.call(DRIVER_ERROR_FUNCTION)):
            text += f": {why}"
        return StageError(f"the library without TVM cannot be {doing} on device {self.session.name!r}: {text}")

    def set_inputs(self, *inputs: Array) -> None:
        self._inputs = [self.session.tensor(x) for x in inputs]

    def set_sized(self, sizes: Numbers, *inputs: Array) -> None:
        self.set_inputs(*inputs)
        shapes = (shape_at(one["shape"], axes_from([one]), sizes) for one in self._described)
        self._outputs = [
            self.session.empty(shape, one["dtype"]) for shape, one in zip(shapes, self._described, strict=True)
        ]

    def invoke(self) -> None:
        with translated(self.session.name, "running the library"):
            status = int(self._run(self._handle, *self._inputs, *self._outputs, self._error))
        if status:
            raise self._refused("run")

    def outputs(self) -> Arrays:
        with translated(self.session.name, "copying an output"):
            return tuple(np.asarray(tensor.numpy()) for tensor in self._outputs)

    def time_runs(self, repeat: int) -> list[float]:
        with translated(self.session.name, "timing the library"):
            timer = self._server.time_evaluator("run", self.session.device, number=1, repeat=repeat)
            return [float(s) for s in timer(self._handle, *self._inputs, *self._outputs, self._error).results]

    def executed(self) -> dict[str, int] | None:
        counters = self.session.tensor(np.zeros(len(EXECUTED), np.int64))
        with translated(self.session.name, "counting instructions"):
            status = int(self._server["count"](self._handle, *self._inputs, *self._outputs, counters, self._error))
            found = counters.numpy()
        if status:
            raise self._refused("run")
        return dict(zip(EXECUTED, map(int, found), strict=True)) if found[0] else None

    def profile(self, runs: int) -> list[tuple[str, int, int]]:
        name, counts = self._text(" " * (_ERROR_BYTES - 1)), self.session.tensor(np.zeros(2, np.int64))
        found: list[tuple[str, int, int]] = []
        with translated(self.session.name, "profiling the library"):
            self._server["profile"](self._handle, 1)
        self.invoke()
        with translated(self.session.name, "profiling the library"):
            if runs > 2:  # without pauses, in which threads fall asleep; the timer's first run is one of them
                timer = self._server.time_evaluator("run", self.session.device, number=runs - 2, repeat=1)
                timer(self._handle, *self._inputs, *self._outputs, self._error)
            while int(self._server["kernel"](self._handle, len(found), name, counts)) == 0:
                calls, nanoseconds = counts.numpy()
                found.append((name.numpy().tobytes().split(b"\0")[0].decode(), int(calls), int(nanoseconds)))
            self._server["profile"](self._handle, 0)
        return found

    def memory_bytes(self) -> int | None:
        with translated(self.session.name, "reading the memory of its process"):
            now = int(self._server["resident"]())
        return max(0, now - self._before) if now else None

    def state(self, threads: int, look: bool) -> dict[str, float] | None:
        with translated(self.session.name, "reading its state"):
            try:
                read = self._server["state"]
            except AttributeError:  # a build of an earlier tvmflow
                return None
            numbers = self.session.tensor(np.full(len(STATE), -1.0))
            read(threads, int(look), numbers)
            return known_state(map(float, numbers.numpy()))

    def close(self) -> None:
        """Free the network on the device."""
        with translated(self.session.name, "closing the library"):
            self._close(self._handle)


@dataclass(frozen=True)
class Form:
    """A file that computes the network on a device. start(session, remote_name): of the file, uploaded under that name."""

    file: Path
    start: Callable[[DeviceSession, str], RemoteModel]

    def started(self, session: DeviceSession) -> RemoteModel:
        """Upload the file and start it."""
        return self.start(session, session.upload(self.file))


def in_machine(folder: Path) -> Form:
    """Return the form in TVM's virtual machine of what `build` left in a folder."""
    return Form(folder / "library.so", lambda session, name: session.model_on_device(name))


def shipped(folder: Path, manifest: dict[str, Any]) -> Form:
    """Return the form that apps get, without TVM; the virtual machine's of a build from before there was one."""
    network = manifest.get("network")
    if not network:
        return in_machine(folder)
    outputs, design = manifest["outputs"], network.get("device")
    return Form(folder / "network.so", lambda session, name: session.network(name, folder, outputs, design))
