"""Run a built library in this process, with numpy arrays, for notebooks, services and MLflow pyfunc models.

Needs only a folder with library.so and manifest.json, no workspace. The library is native code, so its bytes are
compared with the manifest's sha256, and its target with this machine, before it is loaded.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from tvmflow.backends.manifest import Manifest, read_manifest
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import set_threads
from tvmflow.config.buckets import Sizes
from tvmflow.evaluation.buckets import at_sizes, sizes_of_samples
from tvmflow.frontends.source_model import Runner, TensorSpec, dynamic_axes, run_in_batches
from tvmflow.support.errors import StoreError, TvmflowError, UsageError
from tvmflow.support.files import sha256_of
from tvmflow.support.samples import batch_of, sample_shape
from tvmflow.targets.cpu_features import features_of
from tvmflow.toolchain.versions import missing_features

if TYPE_CHECKING:
    from tvmflow.targets.resolve import ResolvedTarget

Array = NDArray[Any]
Outputs = Array | tuple[Array, ...]


class LoadedLibrary:
    """A library in this process; call it with arrays, and close it or use it as a context manager.

    inputs: its inputs in order; threads: number of compute threads. Calls from several threads are serialized.
    """

    def __init__(self, folder: Path) -> None:
        manifest = _manifest(folder)

        target = manifest.target
        self.cell = str(manifest.cell)
        self.inputs = manifest.inputs
        self.sizes = manifest.sizes
        self._axes = dynamic_axes(manifest.outputs)
        backend = backend_of(target)
        if not backend.has_machine:
            raise UsageError(
                f"the library of {self.cell} runs on a GPU, not in this process",
                "a cell of a CPU or of VTA",
                "tvmflow.api.predict runs it on its device, and tvmflow_network.Network opens its network.so",
            )
        _request_threads(target.threads)
        _check_runs_here(target, self.cell)
        self.threads = _use_threads(target.threads, self.cell)
        backend.provide()

        self._device: Any = backend.tvm_device(tvm)  # defines the same device names as a session
        self._lock = threading.Lock()
        self._main: Callable[..., Any] | None = self._start(folder / "library.so")

    def _start(self, library: Path) -> Callable[..., Any]:
        machine: Callable[..., Any] = relax.VirtualMachine(tvm.runtime.load_module(str(library)), self._device)["main"]
        return machine

    def __call__(self, *arrays: Any, **named: Any) -> Outputs:
        """Run the library. arrays: one per input, in order or by name, each (N, ...) with the same N.

        Numbers are converted to the input's dtype if only precision can be lost. N samples run in batches of the size
        that the library was built for; the last batch is padded. Where the model has `sizes`, inputs may be smaller in
        these: they are padded to the largest, and outputs are cut. Returns an array (N, ...), or a tuple for several
        outputs.
        """
        samples = _check_inputs(self.inputs, arrays, named, self.cell, self.sizes)
        model: Runner = self
        if self.sizes:
            at = sizes_of_samples(self.sizes, [spec.name for spec in self.inputs], samples)
            model = at_sizes(self, self.sizes, at, self._axes)
        outputs = run_in_batches(model, samples, batch_of_specs(self.inputs))
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        """Run one batch: arrays of exactly the shapes and dtypes of `inputs`, in order. Returns all outputs."""
        with self._lock:
            if self._main is None:
                raise UsageError(f"the library of {self.cell} is closed", "an open one", "load it again")
            result = self._main(*(tvm.runtime.tensor(array, self._device) for array in inputs))
            return tuple(np.asarray(x.numpy()) for x in ([result] if hasattr(result, "numpy") else result))

    def close(self) -> None:
        """Release the library; safe to repeat."""
        with self._lock:
            self._main = None

    def __enter__(self) -> LoadedLibrary:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{x.name}: {x.dtype}{list(x.shape)}" for x in self.inputs)
        return f"LoadedLibrary({self.cell}, {inputs}, threads={self.threads})"


def batch_of_specs(specs: Sequence[TensorSpec]) -> int:
    """Return how many samples a run of these inputs takes, or WHOLE."""
    return batch_of([spec.shape for spec in specs])


def order_inputs(specs: tuple[TensorSpec, ...], inputs: Any, cell: str, sizes: Sizes | None = None) -> list[Array]:
    """Return an array, a tuple or list of arrays, or a dictionary by name as checked inputs in order. sizes: in which
    they may be smaller. Raises UsageError.
    """
    if isinstance(inputs, Mapping):
        return _check_inputs(specs, (), dict(inputs), cell, sizes)
    arrays = tuple(inputs) if isinstance(inputs, tuple) or len(specs) > 1 else (inputs,)
    return _check_inputs(specs, arrays, {}, cell, sizes)


def _check_inputs(
    specs: tuple[TensorSpec, ...], arrays: tuple[Any, ...], named: dict[str, Any], cell: str, sizes: Sizes | None
) -> list[Array]:
    names = [spec.name for spec in specs]
    given = dict(zip(names, arrays, strict=False)) | named
    if len(arrays) + len(named) != len(names) or set(given) != set(names):
        raise UsageError(
            f"{cell} was called with {len(arrays)} arrays" + (f" and {', '.join(named)}" if named else ""),
            f"{len(names)}: {', '.join(names)}",
        )
    batch = batch_of_specs(specs)
    inputs = [
        _convert_input(spec, given[spec.name], cell, batch, _open_axes(sizes, at)) for at, spec in enumerate(specs)
    ]
    if len({len(array) for array in inputs}) > 1:
        raise UsageError(f"{cell} was called with {[len(a) for a in inputs]} samples", "as many of every input")
    return inputs


def _open_axes(sizes: Sizes | None, tensor: int) -> set[int]:
    """Return the axes in which an input may be smaller."""
    return {axis.axis for axis in sizes.axes if axis.tensor == tensor} if sizes else set()


def _convert_input(spec: TensorSpec, value: Any, cell: str, batch: int, open_axes: set[int]) -> Array:
    """Return a value as an array (N, ...) for this input. Raises UsageError."""
    array, shape = np.asarray(value), sample_shape(spec.shape, batch)
    is_number = array.dtype.kind in "biuf" or array.dtype == np.dtype(spec.dtype)
    extents = enumerate(zip(array.shape[1:], shape, strict=False), start=1)
    fits = len(array.shape[1:]) == len(shape) and all(
        have == want or axis in open_axes for axis, (have, want) in extents
    )
    if not array.ndim or not fits or not len(array):
        shown = (f"up to {size}" if axis in open_axes else str(size) for axis, size in enumerate(shape, start=1))
        raise UsageError(
            f"input {spec.name} of {cell} got an array of shape {array.shape}",
            f"(N, {', '.join(shown)}), any N from 1",
            _hint_for_axes(array.ndim - len(shape), cell, bool(open_axes)),
        )
    if not is_number or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        raise UsageError(f"input {spec.name} of {cell} got an array of {array.dtype}", f"{spec.dtype}, or what fits it")
    return np.asarray(array, spec.dtype, order="C")


def _hint_for_axes(more: int, cell: str, has_open: bool) -> str:
    """Return what to do about an array of another shape, with so many axes more than a sample."""
    if not more:
        return "for one sample add the first axis: x[None]"
    if more > 1 or has_open:
        return ""
    model = cell.partition("@")[0]
    return f"sizes that the file of models.{model} leaves open stay open with buckets ('tvmflow add --buckets')"


def _manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder after checking the library's digest. Raises StoreError."""
    manifest = read_manifest(folder)
    try:
        actual = sha256_of(folder / "library.so")
    except OSError as error:
        raise StoreError(f"no library in {folder}: {error}", "library.so and its manifest.json") from None
    if actual != manifest.library.sha256:
        raise StoreError(
            f"{folder / 'library.so'} was altered", "the bytes with the digest in its manifest", "build it again"
        )
    return manifest


def _check_runs_here(target: ResolvedTarget, cell: str) -> None:
    """Raise UsageError if this processor cannot run code of the target, which would crash the process."""
    missing: list[str] = []
    if target.runs_here:
        try:
            missing = missing_features(set(features_of(target.mcpu, target.mtriple, target.mattr)))
        except Exception as error:  # TVM's own types
            raise TvmflowError(f"TVM does not know the processor {target.mcpu}: {error}") from error
    if not target.runs_here or missing:
        why = f"which lacks {', '.join(missing)}" if missing else "a processor of another kind"
        raise UsageError(
            f"the library of {cell} is for {target.mtriple} {target.mcpu}, and this is a machine {why}",
            "a target whose code this machine runs",
            "use predict(), which runs it on the cell's device",
        )


def _request_threads(requested: int) -> None:
    """Set the size of TVM's thread pool, unless TVM is already loaded: its pool then has half of the CPUs and cannot
    grow.
    """
    if "tvm" not in sys.modules:
        os.environ["TVM_NUM_THREADS"] = str(requested)


def _use_threads(requested: int, cell: str) -> int:
    """Set the number of threads of the runtime to the target's; return the actual number."""
    set_threads(requested)
    threads = int(tvm.get_global_func("runtime.NumThreads")())
    if threads < requested:
        warnings.warn(
            f"{cell} computes on {threads} of the {requested} threads that it was built for, because TVM "
            f"was loaded before: "
            f"set TVM_NUM_THREADS={requested} before the first import of tvm",
            stacklevel=4,
        )
    return threads
