"""Estimate memory traffic and register use of a network's GPU kernels from their lowered functions.

No time is predicted. Bytes are those that threads load and store; the caches of a real GPU may serve most of them. Both
branches of a condition are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tvmflow.gpu_codegen.launches import DeviceKernel, DeviceProgram, Launch, Three
from tvmflow.gpu_codegen.memory import aliased_buffer
from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tir.blocks import region_buffer
from tvmflow.ir.tvm_compat import dtype_of, load_class
from tvmflow.support.errors import StageError

# Default workgroup sizes of TFLite's GPU delegate: tensorflow/lite/delegates/gpu/common/tasks.
DELEGATE_GROUPS: dict[str, Three] = {"mali": (4, 4, 1), "adreno": (8, 2, 1)}
_REGISTER_BYTES = 4


@dataclass(frozen=True)
class LaunchEstimate:
    """The estimate of a launch. asked_bytes: loaded and stored by all threads; registers: float32 values of a thread's
    arrays.
    """

    name: str
    asked_bytes: int
    registers: int
    groups: Three
    group_size: Three

    def lanes_used(self, warp: int) -> float:
        """Return the share of a warp's lanes that have a thread."""
        threads = math.prod(self.group_size)
        return threads / (math.ceil(threads / warp) * warp)


@dataclass(frozen=True)
class KernelEstimate:
    """The estimate of a kernel. calls: in an inference; least_bytes: size of its inputs, weights and outputs."""

    name: str
    calls: int
    launches: tuple[LaunchEstimate, ...]
    least_bytes: int

    @property
    def asked_bytes(self) -> int:
        return sum(launch.asked_bytes for launch in self.launches)


@dataclass(frozen=True)
class NetworkEstimate:
    """The estimates of a network's kernels, in the order of their first calls."""

    kernels: tuple[KernelEstimate, ...]

    @property
    def launches(self) -> int:
        return sum(kernel.calls * len(kernel.launches) for kernel in self.kernels)

    @property
    def asked_bytes(self) -> int:
        return sum(kernel.calls * kernel.asked_bytes for kernel in self.kernels)

    @property
    def least_bytes(self) -> int:
        return sum(kernel.calls * kernel.least_bytes for kernel in self.kernels)


def estimate(program: DeviceProgram, calls: Mapping[str, int]) -> NetworkEstimate:
    """Estimate all kernels of a network. calls: of each kernel in an inference.

    Raises StageError for a loop of unknown length.
    """
    return NetworkEstimate(tuple(_estimate_kernel(name, count, program.kernels[name]) for name, count in calls.items()))


def _estimate_kernel(name: str, calls: int, kernel: DeviceKernel) -> KernelEstimate:
    sizes: dict[int, int] = {}
    launches = []
    for launch in kernel.launches:
        counter = _AccessCounter(launch)
        launches.append(
            LaunchEstimate(launch.name, counter.asked_bytes, counter.registers, launch.groups, launch.group_size)
        )
        for argument, size in zip(launch.arguments, counter.parameter_bytes, strict=True):
            if argument.kind == "parameter":
                sizes[argument.index] = size
    return KernelEstimate(name, calls, tuple(launches), sum(sizes.values()))


class _AccessCounter:
    """Count loads, stores and arrays of a launch's function, and the bytes of its parameters."""

    def __init__(self, launch: Launch) -> None:
        parameters = [parameter.name for parameter in launch.function.params]
        self._positions = {name: at for at, name in enumerate(parameters)}
        self._global: set[Any] = set()
        self.parameter_bytes = [0] * len(parameters)
        self.asked_bytes = 0
        self.registers = 0
        self._walk(launch.function.body, math.prod(launch.groups) * launch.threads)

    def _walk(self, node: Any, times: int) -> None:
        """Count the accesses of a statement that all threads together execute `times` times."""
        from tvm import tirx
        from tvm_ffi import WalkResult, structural_walk

        loops: list[Any] = []  # collected first: TVM would replace an exception raised during the walk

        def loop(found: Any) -> Any:
            loops.append(found)
            return WalkResult.SKIP

        def access(buffer: Any, value: Any) -> None:
            if buffer in self._global:
                self.asked_bytes += times * _bytes((), dtype_of(value))

        callbacks = (
            (tirx.For, loop),
            (tirx.DeclBuffer, self._declare),
            (tirx.AllocBuffer, self._allocate),
            (load_class(), lambda load: access(region_buffer(load), load)),
            (tirx.BufferStore, lambda store: access(store.buffer, store.value)),
        )
        structural_walk(node, callbacks, order="pre")
        for found in loops:
            if not hasattr(found.extent, "value"):
                raise StageError(f"a kernel has a loop over {found.extent}", "loops of constant length")
            self._walk(found.body, times * int(found.extent.value))

    def _declare(self, statement: Any) -> None:
        buffer = statement.buffer
        if aliased_buffer(statement.data) is not None:  # an alias of thread-local memory
            return
        self._global.add(buffer)
        self.parameter_bytes[self._positions[statement.data.name]] = _bytes(buffer.shape, str(buffer.dtype))

    def _allocate(self, statement: Any) -> None:
        buffer = statement.buffer
        self.registers += math.ceil(_bytes(buffer.shape, str(buffer.dtype)) / _REGISTER_BYTES)


def _bytes(shape: Iterable[Any], dtype: str) -> int:
    scalar, _, lanes = dtype.partition("x")  # as float32x4
    return bytes_of((*shape, int(lanes or 1)), scalar)
