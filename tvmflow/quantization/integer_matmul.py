"""Compute the integer convolutions of a graph by a C library, bit-exact to the numpy interpreter.

The library is several times as fast. The interpreter computes all other steps, and all steps if there is no compiler.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import threading
import weakref
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Array, Graph, Step
from tvmflow.ir.relax.numpy_interpreter import Compute, Watch, run_all, run_step
from tvmflow.quantization.fused_layers import Fused, fuse_steps
from tvmflow.support.errors import ToolchainError
from tvmflow.support.temporary import temporary_folder
from tvmflow.targets.cpu_features import features_of
from tvmflow.targets.resolve import host_target

SOURCE = Path(__file__).with_name("integer_matmul.c")
INSTRUCTIONS: tuple[tuple[str, ...], ...] = (
    ("avx512f", "avx512bw", "avx512vnni"),
    ("avx2",),
    (),
)  # variants in integer_matmul.c, the fastest first
_COMPILE = tuple(
    """
    -x c -std=c11 -O3 -ffp-contract=off -fno-trapping-math -fwrapv -Wall -Wextra -Werror -fPIC -shared
    """.split()
)
_MOST = 1 << 16  # 8-bit products whose sum fits 32 bits


class IntegerLibrary:
    """The C library of this process, compiled in the background. instructions: of INSTRUCTIONS, None for the best."""

    def __init__(self, instructions: tuple[str, ...] | None = None) -> None:
        self._instructions = instructions
        self._library: Future[ctypes.CDLL | None] = Future()
        self._packed: dict[int, tuple[Array, Array]] = {}
        threading.Thread(target=self._compile, daemon=True).start()

    def _compile(self) -> None:
        try:
            self._library.set_result(_compile_library(self._instructions))
        except BaseException as error:
            self._library.set_exception(error)

    @property
    def is_there(self) -> bool:
        return self._library.result() is not None

    def run_step(self, step: Step, arguments: list[Any]) -> Any:
        """Compute one step, as `numpy_interpreter.run_step` does."""
        library = self._library.result() if isinstance(step, Fused) or step.op == "relax.nn.conv2d" else None
        found = None
        if library is not None and isinstance(step, Fused) and step.op == "fused.add":
            found = self._add(library, step, *arguments)
        elif library is not None:
            found = self._convolve(library, step, *arguments[:2])
        if found is not None:
            return found
        return step.run(arguments) if isinstance(step, Fused) else run_step(step, arguments)

    def _add(self, library: ctypes.CDLL, step: Fused, a: Array, b: Array) -> Array | None:
        if a.shape != b.shape or a.dtype.itemsize != 1 or b.dtype.itemsize != 1:
            return None
        a, b, result = np.ascontiguousarray(a), np.ascontiguousarray(b), np.empty(a.shape, step.dtype)
        signs = (a.dtype == np.int8) + 2 * (b.dtype == np.int8)
        library.integer_add(
            _pointer(a),
            _pointer(b),
            _pointer(result),
            ctypes.c_int64(result.size),
            *step.factor,
            step.offset,
            step.shift,
            step.low,
            step.high,
            signs,
        )
        return result

    def _convolve(self, library: ctypes.CDLL, step: Step, x: Array, weight: Array) -> Array | None:
        attrs = step.call.attrs
        groups, outputs, per_group = int(attrs.groups), int(weight.shape[0]), int(weight.shape[1])
        layouts = str(attrs.data_layout), str(attrs.kernel_layout)
        is_bytes = x.dtype in (np.uint8, np.int8) and weight.dtype == np.int8 and layouts == ("NCHW", "OIHW")
        is_each = per_group == 1 and outputs == x.shape[1] == groups
        if not is_bytes or not (is_each or groups == 1) or weight[0].size > _MOST:
            return None
        top, left = (int(size) for size in list(attrs.padding)[:2])
        height, width = step.shape[2:]
        shapes = (ctypes.c_int64 * 14)(
            *x.shape[1:],
            outputs,
            height,
            width,
            *weight.shape[2:],
            *map(int, attrs.strides),
            *map(int, attrs.dilation),
            top,
            left,
        )
        x, result = np.ascontiguousarray(x), np.empty((len(x), outputs, height, width), step.dtype)
        is_signed = x.dtype == np.int8
        packed, sums = self._packed_weight(library, weight, is_each)
        scratch = np.empty(result.shape[1:], np.int32) if isinstance(step, Fused) else None
        for image, out in zip(x, result, strict=True):
            total = out if scratch is None else scratch
            if is_each:
                library.integer_depthwise(_pointer(image), _pointer(packed), _pointer(total), shapes, int(is_signed))
            elif library.integer_convolve(
                _pointer(image), _pointer(packed), _pointer(sums), _pointer(total), shapes, 128 * is_signed
            ):
                raise MemoryError
            if isinstance(step, Fused):
                _finish(library, step, total, out)
        return result

    def active_means(
        self, values: Array, zero: float, factor: Array, correction: Array, limits: tuple[Array, Array]
    ) -> Array | None:
        """Return, for each channel of (value - zero) * factor + correction, the share between the limits and the
        clipped mean.
        """
        library = self._library.result()
        if library is None or values.dtype != np.float32:
            return None
        values, channels = np.ascontiguousarray(values), values.shape[1]
        given = [
            np.ascontiguousarray(np.broadcast_to(x, (channels,)), np.float32) for x in (factor, correction, *limits)
        ]
        found, total = np.empty((2, channels)), np.zeros((2, channels))
        sizes = ctypes.c_int64(channels), ctypes.c_int64(values[0, 0].size)
        for sample in values:
            library.integer_means(
                _pointer(sample), *sizes, ctypes.c_float(zero), *map(_pointer, given), *map(_pointer, found)
            )
            total += found
        return np.asarray(total / (values.size / channels))

    def _packed_weight(self, library: ctypes.CDLL, weight: Array, is_each: bool) -> tuple[Array, Array]:
        """Return a packed weight and the sum of each output's weights, cached as long as the weight exists."""
        if is_each:
            return np.ascontiguousarray(weight), np.empty(0, np.int32)
        key = id(weight)
        if key not in self._packed:
            outputs, channels, *kernel = weight.shape
            taps = int(np.prod(kernel))
            sizes = (ctypes.c_int64(outputs), ctypes.c_int64(channels), ctypes.c_int64(taps))
            packed, sums = np.empty(library.integer_packed_bytes(*sizes), np.int8), np.empty(outputs, np.int32)
            library.integer_pack(_pointer(np.ascontiguousarray(weight)), _pointer(packed), _pointer(sums), *sizes)
            weakref.finalize(weight, self._packed.pop, key, None)
            self._packed[key] = packed, sums
        return self._packed[key]


def _finish(library: ctypes.CDLL, step: Fused, sums: Array, out: Array) -> None:
    channels, pixels = len(sums), sums[0].size
    nothing = np.zeros(channels, np.float32)
    low, high = (nothing if limit is None else limit for limit in (step.low, step.high))
    library.integer_requantize(
        _pointer(sums),
        _pointer(out),
        ctypes.c_int64(channels),
        ctypes.c_int64(pixels),
        _pointer(step.offset),
        _pointer(step.factor),
        ctypes.c_float(step.zero),
        _pointer(low),
        _pointer(high),
        int(step.low is None),
    )


@functools.cache
def _shared_library() -> IntegerLibrary:
    return IntegerLibrary()


def start_compiling() -> None:
    """Start to compile the library of this process in the background."""
    _shared_library()


def run_fast(graph: Graph, inputs: Sequence[Any], watch: Watch | None = None) -> tuple[Any, ...]:
    """Run a graph that `fuse_for_library` returned, as `numpy_interpreter.run_all` does."""
    return run_all(graph, inputs, watch, _shared_library().run_step)


def fast_step() -> Compute:
    """Return the function that computes steps of a graph that `fuse_for_library` returned."""
    return _shared_library().run_step


def active_means(
    values: Array, zero: float, factor: Array, correction: Array, limits: tuple[Array, Array]
) -> Array | None:
    """Call `IntegerLibrary.active_means`; return None without the library or for values other than float32."""
    return _shared_library().active_means(values, zero, factor, correction, limits)


def fuse_for_library(graph: Graph, seen: Collection[str] = ()) -> Graph:
    """Return a graph with equal outputs, in which steps may be fused. seen: names of values that a watch needs."""
    return fuse_steps(graph, seen) if _shared_library().is_there else graph


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def known_instructions() -> list[tuple[str, ...]]:
    """Return the INSTRUCTIONS that this machine supports, the fastest first."""
    target = host_target()
    known = features_of(target.mcpu, target.mtriple, target.mattr)
    return [names for names in INSTRUCTIONS if known.issuperset(names)]


def _compile_library(instructions: tuple[str, ...] | None) -> ctypes.CDLL | None:
    """Return the library for this machine, None without a compiler."""
    used = known_instructions()[0] if instructions is None else instructions
    with temporary_folder("products") as folder:
        path = Path(folder) / "products.so"
        flags = (f"-m{name}" for name in used)
        try:
            command = host_target().compiler.line(*_COMPILE, *flags, "-o", str(path), str(SOURCE), "-lm")
            subprocess.run(command, capture_output=True, timeout=300, check=True)
        except (OSError, subprocess.SubprocessError, ToolchainError):
            return None
        library = ctypes.CDLL(str(path))
    library.integer_packed_bytes.restype = ctypes.c_int64
    return library
