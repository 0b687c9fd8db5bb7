"""Measure one schedule of one kernel on a device: compile, upload, check the answer, time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.building.ir_files import numpy_dtype
from tvmflow.building.library import export
from tvmflow.building.tvm_names import buffer_of
from tvmflow.devices.session import DeviceSession, translated
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.records import COMPILE_ERROR, OK, WRONG_ANSWER
from tvmflow.tuning.workloads import Workload

Array = np.ndarray[Any, Any]
_TOLERANCE = 1e-4  # float32 sums in another order; relative to the largest answer
_LOW_TOLERANCE = 2e-2  # float16


@dataclass(frozen=True)
class MeasureRules:
    repeats: int
    min_repeat_ms: float


class KernelBench:
    """One workload on one device: its inputs and the answer of the unscheduled kernel are made once."""

    def __init__(
        self, workload: Workload, session: DeviceSession, target: ResolvedTarget, rules: MeasureRules, folder: Path
    ) -> None:
        self.workload, self.session, self.target, self.rules, self.folder = workload, session, target, rules, folder
        self._count = itertools.count()
        generator = np.random.default_rng(0)
        self.arrays = [self._array(parameter, generator) for parameter in workload.function.params]
        self._arguments = [session.tensor(array) for array in self.arrays]
        self.reference = self._answer(self._load(self._compile(workload.function)))

    def _array(self, parameter: Any, generator: np.random.Generator) -> Array:
        buffer = buffer_of(self.workload.function, parameter)
        assert buffer is not None, "a kernel of a network takes buffers only"
        shape = [int(extent) for extent in buffer.shape]
        dtype = numpy_dtype(str(buffer.dtype))
        if dtype.kind in "iu":
            low, high = (-128, 128) if dtype.kind == "i" else (0, 256)
            return generator.integers(low, high, shape).astype(dtype)
        return (generator.standard_normal(shape) * 0.5).astype(dtype)

    def measure(self, function: Any) -> tuple[str, tuple[float, ...]]:
        """Return (status, seconds per repeat) of a scheduled kernel. Raises DeviceLostError when the device goes away."""
        try:
            library = self._compile(function)
        except Exception:  # whatever the compiler raises: this schedule cannot be built, and that is the result
            return COMPILE_ERROR, ()
        kernel = self._load(library)
        if not self._is_right(self._answer(kernel)):
            return WRONG_ANSWER, ()
        with translated(self.session.name, f"timing {self.workload.name}"):
            timer = kernel.time_evaluator(
                "main", self.session.device, number=1, repeat=self.rules.repeats,
                min_repeat_ms=int(self.rules.min_repeat_ms),
            )  # fmt: skip
            return OK, tuple(float(seconds) for seconds in timer(*self._arguments).results)

    def _compile(self, function: Any) -> Path:
        import tvm

        target = self.target.tvm_target()
        with target:
            built = tvm.compile(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), target)
        path = self.folder / f"kernel-{self.workload.key[:12]}-{next(self._count)}.so"
        export(built, path, self.target)
        return path

    def _load(self, library: Path) -> Any:
        module = self.session.load(library)
        library.unlink()
        return module

    def _answer(self, kernel: Any) -> Array:
        with translated(self.session.name, f"running {self.workload.name}"):
            kernel["main"](*self._arguments)
            return np.asarray(self._arguments[-1].numpy())

    def _is_right(self, answer: Array) -> bool:
        if self.reference.dtype.kind in "iub":
            return bool(np.array_equal(answer, self.reference))
        tolerance = _LOW_TOLERANCE if self.reference.dtype.itemsize < 4 else _TOLERANCE
        reference = self.reference.astype(np.float64)
        largest = max(float(np.abs(reference).max(initial=0.0)), 1e-6)
        return bool(np.abs(answer.astype(np.float64) - reference).max(initial=0.0) <= tolerance * largest)
