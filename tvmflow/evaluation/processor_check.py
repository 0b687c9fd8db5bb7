"""Check each processor of a device with one small kernel: what it is, right or wrong, and why, in seconds.

The CPU computes a product of matrices that is compiled for the target as networks are; GPUs compute the kernels of the
probe (runtime/gpu), which need no compiler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.backends.backend import Backend
from tvmflow.devices.gpu_facts import NEEDED, Gpu, Probed
from tvmflow.devices.session import DeviceSession
from tvmflow.support.errors import DeviceBusyError, DeviceError, DeviceLostError, StageError, TvmflowError
from tvmflow.support.temporary import temporary_folder

CPU = "cpu"
_ROWS, _COLUMNS, _SUMS = 16, 64, 32
_MOST_ERROR = 1e-4  # relative to the largest output, for sums in another order


@dataclass(frozen=True)
class CheckedProcessor:
    """One processor of a device. kind: cpu, opencl or vulkan; name: of a GPU with its `kind:` behind it; reason: "" if
    it computes correctly; seconds: of its check, None for one that was not checked.
    """

    kind: str
    name: str
    reason: str
    seconds: float | None

    @property
    def works(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class CheckedDevice:
    """The processors of a device, and what the probe of its GPUs said of them."""

    processors: tuple[CheckedProcessor, ...]
    gpus: tuple[Gpu, ...]


def check_processors(session: DeviceSession, backend: Backend, self_contained: bool) -> CheckedDevice:
    """Check the CPU and the GPUs of a device. self_contained: it runs libraries without TVM.

    Raises DeviceLostError, DeviceBusyError, and ToolchainError if nothing can be compiled for the CPU.
    """
    with temporary_folder("check") as folder:
        library = _build(Path(folder) / "kernel.so", backend.plain, self_contained)
        begin = time.monotonic()
        reason = _cpu_reason(session, library)
        cpu = CheckedProcessor(CPU, backend.target.mcpu, reason, time.monotonic() - begin)
    begin = time.monotonic()
    try:
        probed = session.gpus()
    except (DeviceLostError, DeviceBusyError):
        raise
    except DeviceError as error:
        unchecked = (CheckedProcessor(api, "", f"not checked: {error.found}", None) for api in NEEDED)
        return CheckedDevice((cpu, *unchecked), ())
    return CheckedDevice((cpu, *of_probe(probed, time.monotonic() - begin)), tuple(probed.gpus))


def _build(path: Path, backend: Backend, self_contained: bool) -> Path:
    import tvm
    from tvm import te

    from tvmflow.codegen.compile import compile_module
    from tvmflow.codegen.network.kernel_library import write_kernel

    x, w = (te.placeholder((rows, _SUMS), "float32", name) for rows, name in ((_ROWS, "x"), (_COLUMNS, "w")))
    k = te.reduce_axis((0, _SUMS))
    y = te.compute((_ROWS, _COLUMNS), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="y")
    function = te.create_prim_func([x, w, y])
    built = compile_module(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), backend)
    if self_contained:
        write_kernel(path, built, function, backend.target)
    else:
        backend.export(built, path)
    return path


def _cpu_reason(session: DeviceSession, library: Path) -> str:
    """Return why the CPU does not compute the product, "" if it does."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((_ROWS, _SUMS), dtype=np.float32)
    w = generator.standard_normal((_COLUMNS, _SUMS), dtype=np.float32)
    try:
        found: np.ndarray[Any, Any] = (
            session.bench([x, w, np.zeros((_ROWS, _COLUMNS), np.float32)]).load(library).output()
        )
    except (DeviceLostError, DeviceBusyError):
        raise
    except (DeviceError, StageError) as error:
        return error.found
    expected = x @ w.T
    error_of = float(np.abs(found - expected).max() / np.abs(expected).max()) if found.shape == expected.shape else 1.0
    return "" if error_of <= _MOST_ERROR else f"it computes wrong values: error {error_of:.2g} of the largest output"


def of_probe(probed: Probed, seconds: float | None) -> Iterator[CheckedProcessor]:
    """Return what a probe found of each API: its GPUs, or why there is none."""
    for api in NEEDED:
        gpus = [gpu for gpu in probed.gpus if gpu.api == api]
        for gpu in gpus:
            name = f"{gpu.name} ({gpu.kind})" if gpu.kind else gpu.name
            yield CheckedProcessor(api, name, "; ".join(gpu.reasons), seconds)
        if not gpus:
            reason = probed.missing.get(api) or probed.ended or "its library lists no device"
            yield CheckedProcessor(api, "", reason, seconds)


def first_failure(found: tuple[CheckedProcessor, ...], kind: str) -> TvmflowError | None:
    """Return the error of a device on which a target's own kind of processor does not compute, else None."""
    own = [one for one in found if one.kind == kind]
    if any(one.works for one in own):
        return None
    reasons = "; ".join(f"{one.name or one.kind}: {one.reason}" for one in own) or f"no processor of kind {kind}"
    return DeviceError(
        f"this target's own processor ({kind}) does not compute: {reasons}",
        "one that computes a small kernel correctly",
        "choose a target of another kind of processor, or another driver",
    )
