"""Run networks and kernels of WebAssembly, each in a process of node with runtime/javascript/measure.mjs."""

from __future__ import annotations

import json
import math
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.devices.session import Array, Arrays, DeviceSession, RemoteKernel, RemoteModel, WorkloadBench
from tvmflow.devices.this_host import end_process
from tvmflow.frontends.source_model import OutputSpec
from tvmflow.support.dtypes import numpy_dtype
from tvmflow.support.errors import DeviceLostError, StageError, last_words
from tvmflow.support.paths import RUNTIME
from tvmflow.targets.resolve import ResolvedTarget

_SCRIPT = RUNTIME / "javascript" / "measure.mjs"
# All functions are compiled at once by the optimizing compiler, which pages reach after the first runs.
_OPTIONS = ("--no-liftoff", "--no-wasm-lazy-compilation")
_MOST_HEADER = 1 << 20  # bytes of a reply's line


class NodeSession(DeviceSession):
    """A session that starts a process for each network. program: of node; build: its version."""

    def __init__(
        self, name: str, unit: str, target: ResolvedTarget, program: str, build: str, longest_s: float
    ) -> None:
        super().__init__(name, unit, target)
        self.program, self.build, self.longest_s = program, build, longest_s
        self._open: list[NodeNetwork] = []

    def upload(self, library: Path) -> str:
        return str(library.resolve())

    def network(
        self, remote_name: str, beside: Path, outputs: Sequence[OutputSpec], design: str | None = None
    ) -> RemoteModel:
        return self.start(remote_name)

    def start(self, library: str) -> NodeNetwork:
        """Start a module. Raises StageError if it cannot be instantiated."""
        self._open.append(NodeNetwork(self, library))
        return self._open[-1]

    def bench(self, arrays: Sequence[Array]) -> WorkloadBench:
        return _NodeBench(self, arrays)

    def close(self) -> None:
        """End all processes."""
        for network in self._open:
            network.close()


class NodeNetwork(RemoteModel):
    """A module in its own process of node, which ends with this object. Raises StageError if it does not start."""

    def __init__(self, session: NodeSession, library: str) -> None:
        self.name, self.longest_s = session.name, session.longest_s
        self.ran_ms: float | None = None
        self.process = subprocess.Popen(
            [session.program, *_OPTIONS, str(_SCRIPT), library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            facts, _ = self._receive("opening the module")
        except BaseException:
            self.close()
            raise
        self.inputs = [(str(one["name"]), int(one["size"])) for one in facts["inputs"]]
        self.kinds = [(tuple(map(int, one["shape"])), str(one["dtype"])) for one in facts["outputs"]]

    def ask(self, doing: str, content: bytes = b"", **request: Any) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the reply. Raises StageError for the module's errors, DeviceLostError without a
        reply.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({**request, "bytes": len(content)}).encode() + b"\n" + content)
            self.process.stdin.flush()
        except OSError:
            raise self._lost(doing) from None
        return self._receive(doing)

    def _receive(self, doing: str) -> tuple[dict[str, Any], bytes]:
        assert self.process.stdout is not None
        timer = threading.Timer(self.longest_s, self.process.kill)
        timer.start()
        try:
            header = json.loads(self.process.stdout.readline(_MOST_HEADER))
            content = self.process.stdout.read(int(header["bytes"])) if header.get("bytes") else b""
        except (ValueError, KeyError, TypeError):
            raise self._lost(doing) from None
        finally:
            timer.cancel()
        if "error" in header:
            raise StageError(f"{doing} in node: {header['error']}", "a module that this version of tvmflow built")
        return header, content

    def _lost(self, doing: str) -> DeviceLostError:
        assert self.process.stderr is not None
        self.process.kill()
        said = last_words(self.process.stderr.read(20_000))
        return DeviceLostError(
            f"node ended while {doing}" + (f": {said}" if said else ""),
            "a process that replies until the end",
            "run the stage again",
        )

    def set_inputs(self, *inputs: Array) -> None:
        if len(inputs) != len(self.inputs):
            raise StageError(f"{len(inputs)} inputs for a module of {len(self.inputs)}")
        for at, array in enumerate(inputs):
            self.ask("copying an input", np.ascontiguousarray(array).tobytes(), do="input", at=at)

    def invoke(self) -> None:
        facts, _ = self.ask("running the module", do="run")
        self.ran_ms = float(facts["ns"]) / 1e6

    def last_run_ms(self) -> float | None:
        return self.ran_ms

    def outputs(self) -> Arrays:
        return tuple(self.output(at) for at in range(len(self.kinds)))

    def output(self, at: int) -> Array:
        """Copy one output of the last run."""
        shape, dtype = self.kinds[at]
        _, content = self.ask("copying an output", do="output", at=at)
        kind = numpy_dtype(dtype)
        if len(content) != math.prod(shape) * kind.itemsize:
            raise self._lost("copying an output")
        return np.frombuffer(content, kind).reshape(shape)

    def preset(self, output: Array) -> None:
        """Set the first output's values before a run."""
        self.ask("setting an output", np.ascontiguousarray(output).tobytes(), do="preset", at=0)

    def time_runs(self, repeat: int) -> list[float]:
        return self.times(repeat, 0.0)

    def times(self, repeat: int, min_repeat_ms: float) -> list[float]:
        """Return mean times in seconds, each over runs of at least min_repeat_ms in total, after one warm-up run."""
        facts, _ = self.ask("timing the module", do="time", repeats=repeat, least_ns=round(min_repeat_ms * 1e6))
        return [float(one) / 1e9 for one in facts["ns"]]

    def profile(self, runs: int) -> list[tuple[str, int, int]]:
        facts, _ = self.ask("profiling the module", do="profile", runs=runs)
        return [(str(one["kernel"]), int(one["calls"]), int(one["nanoseconds"])) for one in facts["kernels"]]

    def memory_bytes(self) -> int | None:
        facts, _ = self.ask("reading the memory of its process", do="memory")
        return max(int(facts["grown"]), 0) or None

    def close(self) -> None:
        if self.process.poll() is None:
            end_process(self.process)


class _NodeBench(WorkloadBench):
    def __init__(self, session: NodeSession, arrays: Sequence[Array]) -> None:
        self.session, self.arrays = session, arrays

    def load(self, library: Path) -> RemoteKernel:
        network = self.session.start(self.session.upload(library))
        *inputs, output = self.arrays
        network.set_inputs(*inputs)
        network.preset(output)
        return _NodeKernel(network)


class _NodeKernel(RemoteKernel):
    def __init__(self, network: NodeNetwork) -> None:
        self.network = network

    def output(self) -> Array:
        self.network.invoke()
        return self.network.output(0)

    def time(self, repeat: int, min_repeat_ms: float) -> list[float]:
        return self.network.times(repeat, min_repeat_ms)

    def __del__(self) -> None:
        self.network.close()  # a search loads thousands
