"""Run a network that tvmflow compiled to one shared object: numpy in, numpy out. Needs this file, that one and numpy.

network = Network("network.so")
scores = network(image)          # one array per input; returns an array, or a tuple where there are several outputs
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

ABI_VERSION = 1
ALIGNMENT = 64
_DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
_STATUS = ("ok", "bad argument", "no memory", "no threads", "a kernel failed")


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_int64)), ("ndim", ctypes.c_int32), ("dtype", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )  # fmt: skip


class _Options(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_uint32), ("cpu_mask", ctypes.c_uint64), ("spin_us", ctypes.c_uint32), ("allocate", ctypes.c_void_p),
        ("release", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


class _Profile(ctypes.Structure):
    _fields_ = (("kernel", ctypes.c_char_p), ("calls", ctypes.c_uint64), ("nanoseconds", ctypes.c_uint64))


_Info = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Tensor))
_Pointers = ctypes.POINTER(ctypes.c_void_p)


class _Api(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32), ("network", ctypes.c_char_p), ("inputs", ctypes.c_uint32), ("outputs", ctypes.c_uint32),
        ("kernels", ctypes.c_uint32), ("threads", ctypes.c_uint32), ("arena_size", ctypes.c_size_t), ("constant_size", ctypes.c_size_t),
        ("input", _Info), ("output", _Info),
        ("create", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Options), _Pointers)),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Pointers, _Pointers)),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("last_error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("set_profiling", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)),
        ("profile", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(_Profile))),
        ("labels", ctypes.POINTER(ctypes.c_char_p)), ("label_count", ctypes.c_uint32), ("top_k", ctypes.c_void_p),
    )  # fmt: skip


class NetworkError(RuntimeError):
    """What the library says went wrong."""


class Tensor(NamedTuple):
    """An input or output: shape with the batch first. dtype: of numpy; bfloat16 comes as uint16, its upper half of a float32."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Network:
    """An instance of a network. threads: 0 for as many as it was tuned for; cpu_mask: bit i allows CPU i, 0 leaves it open."""

    def __init__(self, path: str | os.PathLike[str], threads: int = 0, cpu_mask: int = 0) -> None:
        library = ctypes.CDLL(str(Path(path).resolve()), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        library.tvmflow_network.restype = ctypes.POINTER(_Api)
        self._handle = ctypes.c_void_p()
        self._api = library.tvmflow_network().contents
        if self._api.abi_version != ABI_VERSION:
            raise NetworkError(f"{path} has ABI version {self._api.abi_version}, this module has {ABI_VERSION}")
        self.name = str(self._api.network.decode())
        self.inputs = tuple(self._tensor(self._api.input, i) for i in range(self._api.inputs))
        self.outputs = tuple(self._tensor(self._api.output, i) for i in range(self._api.outputs))
        self.labels = tuple(self._api.labels[i].decode() for i in range(self._api.label_count))
        options = _Options(threads=threads, cpu_mask=cpu_mask)
        self._check(self._api.create(ctypes.byref(options), ctypes.byref(self._handle)))

    def __call__(self, *arrays: Any) -> Any:
        """Run once. arrays: one per input, exactly of its shape; numbers are converted to its dtype."""
        if len(arrays) != len(self.inputs):
            raise ValueError(
                f"{len(arrays)} arrays for {len(self.inputs)} inputs: {', '.join(x.name for x in self.inputs)}"
            )
        given = [self._input(array, spec) for array, spec in zip(arrays, self.inputs, strict=True)]
        found = [_aligned(spec) for spec in self.outputs]
        self._check(self._api.run(self._handle, _pointers(given), _pointers(found)))
        return found[0] if len(found) == 1 else tuple(found)

    def profile(self, on: bool = True) -> list[tuple[str, int, int]]:
        """Return (kernel, calls, nanoseconds) of every call since profiling was turned on, then turn it on again, or off."""
        found, row = [], _Profile()
        for i in range(self._api.kernels):
            if self._api.profile(self._handle, i, ctypes.byref(row)) == 0:
                found.append((row.kernel.decode(), row.calls, row.nanoseconds))
        self._check(self._api.set_profiling(self._handle, int(on)))
        return found

    def close(self) -> None:
        """Free the instance; safe to repeat."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        self._api.destroy(handle)

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _tensor(self, ask: Any, i: int) -> Tensor:
        info = _Tensor()
        self._check(ask(i, ctypes.byref(info)))
        dtype = _DTYPES[info.dtype]
        return Tensor(info.name.decode(), tuple(info.shape[: info.ndim]), "uint16" if dtype == "bfloat16" else dtype)

    def _input(self, array: Any, spec: Tensor) -> np.ndarray[Any, Any]:
        found = np.asarray(array)
        if found.shape != spec.shape:
            raise ValueError(f"input {spec.name} got an array of shape {found.shape}, not {spec.shape}")
        if not np.can_cast(found.dtype, spec.dtype, "same_kind"):
            raise TypeError(f"input {spec.name} got an array of {found.dtype}, not of {spec.dtype}")
        return np.ascontiguousarray(found, spec.dtype)

    def _check(self, status: int) -> None:
        if status:
            said = self._api.last_error().decode(errors="replace")
            raise NetworkError(
                ": ".join(filter(None, (_STATUS[status] if status < len(_STATUS) else str(status), said)))
            )


def _aligned(spec: Tensor) -> np.ndarray[Any, Any]:
    """Return an empty array that the library writes without a copy."""
    size = int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(spec.dtype).reshape(spec.shape)


def _pointers(arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
