"""Run a network that tvmflow compiled to one shared object, on numpy arrays.

Needs this file, the shared object and numpy.

network = Network("network.so")
scores = network(x)              # one array per input; returns an array, or a tuple where there are several outputs
scores = network({"ids": ids, "mask": mask})   # or a dictionary by the names of the inputs
best = network.classify(frame)   # an image (height, width, 3) of uint8: [Guess(probability, number, label), ...]
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

ABI_VERSION = 1
ALIGNMENT = 64
_DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")
_FORMATS = ("RGB", "BGR", "RGBA", "gray")
_STATUS = ("ok", "bad argument", "no memory", "no threads", "a kernel failed", "the device failed")


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


class _Options(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_uint32),
        ("cpu_mask", ctypes.c_uint64),
        ("spin_us", ctypes.c_uint32),
        ("allocate", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class _Image(ctypes.Structure):
    _fields_ = (
        ("pixels", ctypes.c_void_p),
        ("width", ctypes.c_uint32),
        ("height", ctypes.c_uint32),
        ("stride", ctypes.c_size_t),
        ("format", ctypes.c_int),
    )


class Memory(ctypes.Structure):
    """Memory of a driver that CPU and accelerator share."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_size_t),
        ("handle", ctypes.c_void_p),
    )


class Driver(ctypes.Structure):
    """The driver of a network's accelerator, see tvmflow.h; its creator sets `size` and `context`."""

    Allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Memory))
    Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Memory))
    Touch = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Memory), ctypes.c_size_t, ctypes.c_size_t)
    Launch = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Memory), ctypes.c_size_t, ctypes.c_uint32, ctypes.POINTER(Memory)
    )
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("allocate", Allocate),
        ("release", Release),
        ("flush", Touch),
        ("invalidate", Touch),
        ("launch", Launch),
    )


class Gpu(ctypes.Structure):
    """The options of a network that was compiled for a GPU, see tvmflow.h. device: a part of its name; cache: a folder
    for compiled programs.
    """

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("library", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("cache", ctypes.c_char_p),
    )

    def __init__(
        self,
        library: str | os.PathLike[str] | None = None,
        device: str | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        named = (None if given is None else os.fsencode(given) for given in (library, device, cache))
        super().__init__(ctypes.sizeof(Gpu), *named)


class _Size(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("buckets", ctypes.POINTER(ctypes.c_int64)), ("count", ctypes.c_uint32))


class _Processor(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_char_p) for name in ("kind", "reason", "device", "driver", "version"))


class _Profile(ctypes.Structure):
    _fields_ = (("kernel", ctypes.c_char_p), ("calls", ctypes.c_uint64), ("nanoseconds", ctypes.c_uint64))


_Info = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Tensor))
_Pointers = ctypes.POINTER(ctypes.c_void_p)
_Numbers = ctypes.POINTER(ctypes.c_int64)
_Number = ctypes.POINTER(ctypes.c_uint32)


class _Api(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("network", ctypes.c_char_p),
        ("inputs", ctypes.c_uint32),
        ("outputs", ctypes.c_uint32),
        ("kernels", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("arena_size", ctypes.c_size_t),
        ("constant_size", ctypes.c_size_t),
        ("input", _Info),
        ("output", _Info),
        ("create", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Options), _Pointers)),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Pointers, _Pointers)),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("last_error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("set_profiling", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)),
        ("profile", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(_Profile))),
        ("labels", ctypes.POINTER(ctypes.c_char_p)),
        ("label_count", ctypes.c_uint32),
        ("top_k", ctypes.c_void_p),
        ("images", ctypes.c_uint32),
        ("run_image", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Image), _Pointers)),
        (
            "classify",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.POINTER(_Image),
                ctypes.c_uint32,
                ctypes.POINTER(ctypes.c_uint32),
                ctypes.POINTER(ctypes.c_float),
            ),
        ),
        ("device", ctypes.c_char_p),
        ("create_on", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Options), ctypes.c_void_p, _Pointers)),
        ("gpu", ctypes.c_char_p),
        ("create_on_gpu", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Options), ctypes.POINTER(Gpu), _Pointers)),
        ("processor", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Processor))),
        ("tolerance", ctypes.c_double),
        (
            "create_with_gpu",
            ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.POINTER(_Options), ctypes.c_void_p, ctypes.POINTER(Gpu), _Pointers, _Pointers
            ),
        ),
        ("sizes", ctypes.c_uint32),
        ("size_of", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Size))),
        ("sizes_of", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Numbers), _Numbers)),
        ("shape_of", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint32, _Numbers, _Numbers)),
        ("run_sized", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Numbers, _Pointers, _Pointers)),
        ("threads_of", ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)),
        ("states", ctypes.c_uint32),
        ("state_of", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, _Number, _Number)),
        ("state_reset", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
    )


class NetworkError(RuntimeError):
    """An error that the library reported."""


class Tensor(NamedTuple):
    """An input or output: shape with the batch first; size in bytes. dtype: of numpy; bfloat16 comes as uint16, its
    upper half of a float32.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int


class Size(NamedTuple):
    """A dynamic size of inputs, 1 to buckets[-1]; inputs are padded to the smallest bucket that holds it."""

    name: str
    buckets: tuple[int, ...]


class Processor(NamedTuple):
    """The processor that runs a network: kind "cpu" or "gpu"; reason: why the CPU replaces a GPU; device, driver,
    version: from the GPU's driver.
    """

    kind: str
    reason: str
    device: str
    driver: str
    version: str


class Guess(NamedTuple):
    """A class of an image; label: "" if the network has no names."""

    probability: float
    number: int
    label: str


class Network:
    """An instance of a network. threads: at most, 0 for as many as it was tuned for, and no more than there are CPUs
    for; cpu_mask: bit i allows CPU i, 0 leaves it open.

    driver: of the accelerator that computes a part of it, a Driver, or a function that returns one for the
    accelerator's design. gpu: which GPU runs it, of a network that was compiled for one; None for the first.
    gpu_library: the same network's for a GPU, which computes while it can be trusted, see create_with_gpu; `processor`
    says who does. sample: arrays for its self-test, None for numbers that are the same each time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: int = 0,
        cpu_mask: int = 0,
        driver: Any = None,
        gpu: Gpu | None = None,
        gpu_library: str | os.PathLike[str] | None = None,
        sample: Sequence[Any] | None = None,
    ) -> None:
        self._handle = ctypes.c_void_p()
        self._api = _api_of(path)
        self.name = str(self._api.network.decode())
        self.inputs = tuple(self._tensor(self._api.input, i) for i in range(self._api.inputs))
        self.outputs = tuple(self._tensor(self._api.output, i) for i in range(self._api.outputs))
        self.sizes = self._open_sizes()
        self.states = self._open_states()
        self.labels = tuple(self._api.labels[i].decode() for i in range(self._api.label_count))
        options = _Options(threads=threads, cpu_mask=cpu_mask)
        self._driver = driver(self.device) if callable(driver) and self.device else None if callable(driver) else driver
        if gpu is not None and not self.gpu and gpu_library is None:
            raise NetworkError(f"{path} was compiled for the CPU, not for a GPU")
        if gpu_library is not None:
            self._create_with_gpu(options, gpu_library, gpu, sample)
        elif gpu is not None:
            self._check(self._api.create_on_gpu(ctypes.byref(options), ctypes.byref(gpu), ctypes.byref(self._handle)))
        elif self._driver is None:
            self._check(self._api.create(ctypes.byref(options), ctypes.byref(self._handle)))
        else:
            pointer = ctypes.addressof(self._driver)
            self._check(self._api.create_on(ctypes.byref(options), pointer, ctypes.byref(self._handle)))
        self._warn_of_threads(threads or self._api.threads)

    def _create_with_gpu(
        self, options: _Options, path: str | os.PathLike[str], gpu: Gpu | None, sample: Sequence[Any] | None
    ) -> None:
        if self._api.size <= _Api.create_with_gpu.offset:
            raise NetworkError("the library for the CPU is of an earlier version, which knows none for a GPU")
        try:
            other = ctypes.addressof(_api_of(path))
        except (OSError, AttributeError):  # not there, not for this processor, or no network: as an app that has none
            other = None
        held = (
            None
            if sample is None
            else [self._input(array, spec) for array, spec in zip(sample, self.inputs, strict=True)]
        )
        given = None if held is None else _pointers(held)
        self._check(
            self._api.create_with_gpu(
                ctypes.byref(options), other, gpu and ctypes.byref(gpu), given, ctypes.byref(self._handle)
            )
        )

    def _warn_of_threads(self, asked: int) -> None:
        found = asked if self.gpu or self._api.size <= _Api.threads_of.offset else self.threads
        if found < asked:  # Python shows each text once
            warnings.warn(
                f"{found} threads instead of {asked}: as many as there are CPUs", RuntimeWarning, stacklevel=3
            )

    def __call__(self, *arrays: Any) -> Any:
        """Run once. arrays: one per input, exactly of its shape, or one dictionary of them by name.

        Numbers are converted to the dtype of their input.

        The instance carries an input of `states` that is None; without an array for any of them, it carries all. Where
        the network has `sizes`, inputs may be smaller in these, and outputs are what they make of it.
        """
        arrays = self._with_states(self._in_order(arrays))
        if len(arrays) != len(self.inputs):
            raise ValueError(
                f"{len(arrays)} arrays for {len(self.inputs)} inputs: {', '.join(x.name for x in self.inputs)}"
            )
        if self.sizes:
            return self._run_sized(arrays)
        given = [
            None if array is None and spec.name in self.states else self._input(array, spec)
            for array, spec in zip(arrays, self.inputs, strict=True)
        ]
        found = [_aligned(spec) for spec in self.outputs]
        self._check(self._api.run(self._handle, _pointers(given), _pointers(found)))
        return found[0] if len(found) == 1 else tuple(found)

    def reset_states(self) -> None:
        """Set all states that the instance carries to what they are at first, for the beginning of another stream."""
        if self.states:
            self._check(self._api.state_reset(self._handle))

    def _in_order(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arrays of a dictionary in the order of the inputs; a state that it lacks is carried."""
        if len(arrays) != 1 or not isinstance(arrays[0], Mapping):
            return arrays
        given, names = arrays[0], [spec.name for spec in self.inputs]
        missing = [name for name in names if name not in given and name not in self.states]
        unknown = [str(name) for name in given if name not in names]
        if missing or unknown:
            wrong = [f"no {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(unknown)
            raise ValueError(f"{' and '.join(wrong)} in a dictionary for the inputs {', '.join(names)}")
        return tuple(given.get(name) for name in names)

    def _with_states(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arrays with None for each state if there are arrays for all other inputs only."""
        if not self.states or len(arrays) != len(self.inputs) - len(self.states):
            return arrays
        others = iter(arrays)
        return tuple(None if spec.name in self.states else next(others) for spec in self.inputs)

    def _run_sized(self, arrays: Sequence[Any]) -> Any:
        sizes = self._sizes_of(arrays)
        given = [
            self._input(array, self._sized(spec, False, i, sizes))
            for i, (array, spec) in enumerate(zip(arrays, self.inputs, strict=True))
        ]
        found = [_aligned(self._sized(spec, True, i, sizes)) for i, spec in enumerate(self.outputs)]
        self._check(self._api.run_sized(self._handle, sizes, _pointers(given), _pointers(found)))
        return found[0] if len(found) == 1 else tuple(found)

    def _sizes_of(self, arrays: Sequence[Any]) -> Any:
        """Return the sizes that inputs have. Raises ValueError for those that do not fit together, or are too large."""
        shapes = [np.shape(array) for array in arrays]
        for shape, spec in zip(shapes, self.inputs, strict=True):
            if len(shape) != len(spec.shape):
                raise ValueError(f"input {spec.name} got an array of shape {shape}, not of {len(spec.shape)} axes")
        held = [(ctypes.c_int64 * len(shape))(*shape) for shape in shapes]
        sizes = (ctypes.c_int64 * len(self.sizes))()
        if self._api.sizes_of((_Numbers * len(held))(*(ctypes.cast(one, _Numbers) for one in held)), sizes):
            raise ValueError(self._api.last_error().decode(errors="replace"))
        return sizes

    def _sized(self, spec: Tensor, is_output: bool, i: int, sizes: Any) -> Tensor:
        """Return an input or output of a run with these sizes."""
        shape = (ctypes.c_int64 * len(spec.shape))()
        self._check(self._api.shape_of(is_output, i, sizes, shape))
        return Tensor(spec.name, tuple(shape), spec.dtype, int(np.prod(shape)) * np.dtype(spec.dtype).itemsize)

    def _open_sizes(self) -> tuple[Size, ...]:
        found = []
        for i in range(self._api.sizes if self._api.size > _Api.sizes.offset else 0):
            one = _Size()
            self._check(self._api.size_of(i, ctypes.byref(one)))
            found.append(Size(one.name.decode(), tuple(one.buckets[: one.count])))
        return tuple(found)

    def _open_states(self) -> dict[str, str]:
        """Return the inputs that the instance carries from run to run, with the outputs that they are."""
        found, given, made = {}, ctypes.c_uint32(), ctypes.c_uint32()
        for i in range(self._api.states if self._api.size > _Api.states.offset else 0):
            self._check(self._api.state_of(i, ctypes.byref(given), ctypes.byref(made)))
            found[self.inputs[given.value].name] = self.outputs[made.value].name
        return found

    @property
    def device(self) -> str:
        """Return the design of the accelerator that computes a part of the network, "" if there is none."""
        named = self._api.device if self._api.size > _Api.device.offset else None
        return named.decode() if named else ""

    @property
    def gpu(self) -> str:
        """Return "opencl" or "vulkan" if a GPU runs the network, else ""."""
        named = self._api.gpu if self._api.size > _Api.gpu.offset else None
        return named.decode() if named else ""

    @property
    def processor(self) -> Processor:
        """Return the processor of the next run. Raises NetworkError for a library of an earlier version."""
        if self._api.size <= _Api.processor.offset:
            raise NetworkError("the library is of an earlier version, which does not say who computes it")
        found = _Processor()
        self._check(self._api.processor(self._handle, ctypes.byref(found)))
        return Processor(*(getattr(found, name).decode(errors="replace") for name in Processor._fields))

    @property
    def threads(self) -> int:
        """Return the number of threads of the next run, chosen for the lowest latency. Raises NetworkError for a
        library of an earlier version.
        """
        if self._api.size <= _Api.threads_of.offset:
            raise NetworkError("the library is of an earlier version, which does not say how many threads it uses")
        return int(self._api.threads_of(self._handle))

    @property
    def images(self) -> int:
        """Return the batch size of `on_images`; 0 if the network takes no images."""
        return int(self._api.images) if self._api.size > _Api.images.offset else 0

    def on_images(self, *frames: Any, format: str | None = None) -> Any:
        """Run on images, preprocessed as in training: resized, cropped, normalized.

        frames: arrays of uint8, (height, width, 3) RGB, (height, width, 4) RGBA, (height, width) gray; format: BGR for
        other colors. Rows may lie apart, so that a part of a frame is not copied.
        """
        if not self.images or len(frames) != self.images:
            raise ValueError(f"{len(frames)} images for a network that takes {self.images or 'none'}")
        held, given = self._frames(frames, format)
        found = [_aligned(spec) for spec in self.outputs]
        self._check(self._api.run_image(self._handle, given, _pointers(found)))
        del held
        return found[0] if len(found) == 1 else tuple(found)

    def classify(self, frame: Any, k: int = 5, format: str | None = None) -> list[Guess]:
        """Return the k likeliest classes of an image, the first output's; frame and format as of `on_images`."""
        if self.images != 1:
            raise ValueError(f"one image for a network that takes {self.images or 'none'}")
        if not 1 <= k < 1 << 31:
            raise ValueError(f"{k} classes")
        held, given = self._frames((frame,), format)
        numbers, probabilities = (ctypes.c_uint32 * k)(), (ctypes.c_float * k)()
        self._check(self._api.classify(self._handle, given, k, numbers, probabilities))
        del held
        names = self.labels
        return [Guess(p, n, names[n] if n < len(names) else "") for p, n in zip(probabilities, numbers, strict=True)]

    @staticmethod
    def _frames(frames: Sequence[Any], format: str | None) -> tuple[list[np.ndarray[Any, Any]], Any]:
        """Return arrays, to be held as long as the images that point into them are used, and those."""
        held, given = [], (_Image * len(frames))()
        for image, frame in zip(given, frames, strict=True):
            array = np.asarray(frame)
            channels = array.shape[2] if array.ndim == 3 else 1
            expected = {1: "gray", 3: "RGB", 4: "RGBA"}.get(channels)
            shown = format or expected
            if array.ndim not in (2, 3) or array.dtype != np.uint8 or not array.size or expected is None:
                raise ValueError(
                    f"an image is an array of {array.dtype} {array.shape}, not of uint8 (height, width, channels)"
                )
            if shown not in _FORMATS or (shown if shown != "BGR" else "RGB") != expected:
                raise ValueError(f"an image of {channels} channels is no {shown}")
            if array.strides[1] != channels or array.strides[-1] != 1 or array.strides[0] < array.shape[1] * channels:
                array = np.ascontiguousarray(array)
            held.append(array)
            stride = array.strides[0] if array.shape[0] > 1 else 0
            image.pixels, image.stride, image.format = array.ctypes.data, stride, _FORMATS.index(shown)
            image.height, image.width = array.shape[:2]
        return held, given

    def profile(self, on: bool = True) -> list[tuple[str, int, int]]:
        """Return (kernel, calls, nanoseconds) of every call since profiling was turned on, then turn it on again, or
        off.
        """
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
        shape = tuple(info.shape[: info.ndim])
        return Tensor(info.name.decode(), shape, "uint16" if dtype == "bfloat16" else dtype, info.size)

    def _input(self, array: Any, spec: Tensor) -> np.ndarray[Any, Any]:
        found = np.asarray(array)
        if found.shape == spec.shape and found.dtype == spec.dtype and found.flags.c_contiguous:
            return found
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


def _api_of(path: str | os.PathLike[str]) -> Any:
    """Return the functions of a library. Raises OSError, AttributeError where it is none."""
    library = ctypes.CDLL(os.path.realpath(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    library.tvmflow_network.restype = ctypes.POINTER(_Api)
    found = library.tvmflow_network().contents
    if found.abi_version != ABI_VERSION:
        raise NetworkError(f"{path} has ABI version {found.abi_version}, this module has {ABI_VERSION}")
    return found


def _aligned(spec: Tensor) -> np.ndarray[Any, Any]:
    """Return an empty array that the library writes without a copy."""
    memory = np.empty(spec.size + ALIGNMENT, np.uint8)
    return np.ndarray(spec.shape, spec.dtype, memory, -_address(memory) % ALIGNMENT)


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])  # a fifth of the time of array.ctypes.data


def _pointers(arrays: Sequence[np.ndarray[Any, Any] | None]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(None if array is None else _address(array) for array in arrays))
