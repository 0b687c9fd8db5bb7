"""Define a minimal backend, transport, frontend and tuner as registry entries for tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.backends.backend import Call, Progress
from tvmflow.backends.cpu import CpuBackend
from tvmflow.config.options import Options
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.rpc.session import RpcTransport
from tvmflow.devices.session import SessionLimits
from tvmflow.devices.transport import DeviceState, Link
from tvmflow.frontends.registry import Frontend
from tvmflow.frontends.source_model import PreparedRun, SourceDescription, Variant
from tvmflow.sources.weights import WeightFiles
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.search.tuners import TunerArguments

Array = np.ndarray[Any, Any]


class PretendOptions(Options):
    level: int = 1


class PretendBackend(CpuBackend):
    """A CPU that says of itself that it is more."""

    options = PretendOptions
    precisions = ("float32",)
    is_cpu = False

    @property
    def device_kind(self) -> str:
        return f"pretend-{self.target.options['level']}"

    def pack(self, mod: Any, block: int | None) -> tuple[Any, dict[str, Any]]:
        mod, facts = super().pack(mod, block)
        return mod, {**facts, "pretended": True}

    def lowering_passes(self, winograd: Mapping[str, int]) -> list[tuple[str, Any]]:
        return [*super().lowering_passes(winograd), ("pretend", lambda mod: mod)]

    def search_part(self, packed: Any, progress: Progress) -> list[dict[str, Any]]:
        return [{"program": name} for name in ("first", "second")]

    def compile_part(
        self, packed: Any, schedules: list[dict[str, Any]], folder: Path, progress: Progress
    ) -> tuple[Any, dict[str, Any] | None]:
        (folder / "pretend").mkdir()
        for schedule in schedules:
            (folder / "pretend" / schedule["program"]).touch()
        metrics = {"pretend.programs": len(schedules)}
        return packed, {"name": self.device_kind, "simulated": True, "estimated_ms": 2.5, "metrics": metrics}

    def verify(self, part: dict[str, Any] | None, call: Call) -> dict[str, Any] | None:
        return {**(part or {}), "threads": int(call("runtime.NumThreads"))}


class InsideOptions(Options):
    room: str


class InsideTransport(RpcTransport):
    """The device is this very process."""

    options = InsideOptions
    is_this_host = True

    @contextlib.contextmanager
    def connect(self, device: DeviceEntry, target: ResolvedTarget, limits: SessionLimits) -> Iterator[Link]:
        from tvm import rpc

        yield Link(rpc.LocalSession(), f"inside-{device.options['room']}")

    def state(self, device: DeviceEntry) -> DeviceState:
        return DeviceState(True, f"in room {device.options['room']}", {"rooms": 1})


class Numbers:
    """A framework whose models are one matrix: y = relu(x @ w)."""

    def __init__(self, weights: Array, shape: tuple[int, ...]) -> None:
        self.weights, self.shape = weights, shape

    def use_threads(self, threads: int) -> None:
        """It has one."""

    def variants(self, *inputs: Array) -> tuple[Variant, ...]:
        return (Variant("numpy", lambda: PreparedRun(lambda: self.run(*inputs), lambda outputs: outputs)),)

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        return (np.maximum(inputs[0] @ self.weights, 0),)

    def output_names(self) -> tuple[str, ...]:
        return ("scores",)

    def layers(self, *inputs: Array) -> Iterator[tuple[str, Array]]:
        yield "matmul", inputs[0] @ self.weights

    def other_roundings(self) -> Iterator[Numbers]:
        yield from ()

    def prepare_conversion(self) -> None:
        pass

    def to_relax(self) -> Any:
        from tvm import relax

        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(self.shape, "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                product = builder.emit(relax.op.matmul(x, relax.const(self.weights)))
                output = builder.emit_output(relax.op.nn.relu(product))
            builder.emit_func_output(output)
        return builder.get()

    def to_onnx(self, path: Path) -> None:
        raise NotImplementedError


def _load(folder: Path, description: SourceDescription) -> Numbers:
    rows = json.loads((folder / description.weights_file).read_text(encoding="utf-8"))
    return Numbers(np.asarray(rows, np.float32), description.only_input.shape)


NUMBERS = Frontend(_load, ("numpy",), WeightFiles((".numbers",)), has_networks=False)


class BackwardsTuner:
    """Tries the last candidate first."""

    def __init__(self, given: TunerArguments) -> None:
        self.rest = list(range(len(given.candidates)))

    def ask(self, count: int) -> list[int]:
        taken = self.rest[::-1][:count]
        self.rest = self.rest[: len(self.rest) - len(taken)]
        return taken

    def tell(self, index: int, seconds: float) -> None:
        """It never learns."""
