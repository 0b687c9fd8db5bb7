"""List the backends: the legal values of `kind:` of a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmflow.backends.apple import AppleBackend
from tvmflow.backends.backend import Backend
from tvmflow.backends.cpu import CpuBackend
from tvmflow.backends.gpu import OpenClBackend, VulkanBackend
from tvmflow.backends.vta import VtaBackend
from tvmflow.backends.wasm import WasmBackend
from tvmflow.config.plugins import Table
from tvmflow.support.errors import StageError, UnknownNameError
from tvmflow.targets.resolve import ResolvedTarget

if TYPE_CHECKING:
    from tvmflow.config.params import TargetEntry

BACKENDS: Table[type[Backend]] = Table(
    "backends",
    {
        "llvm": CpuBackend,
        "vta": VtaBackend,
        "opencl": OpenClBackend,
        "vulkan": VulkanBackend,
        "wasm": WasmBackend,
        "apple": AppleBackend,
    },
)


def backend_named(kind: str) -> type[Backend]:
    """Return the backend class of a kind of target. Raises UnknownNameError."""
    if kind not in BACKENDS:
        raise UnknownNameError(f"no backend {kind!r}", legal=BACKENDS)
    return BACKENDS[kind]


def backend_of(target: ResolvedTarget) -> Backend:
    """Return the backend of a target."""
    return backend_named(target.kind)(target)


def resolve(entry: TargetEntry) -> ResolvedTarget:
    """Return the resolved target of an entry of params.yaml. Raises UsageError."""
    return backend_named(entry.kind).resolve(entry)


def backend_for(entry: TargetEntry) -> Backend:
    """Return the backend of an entry of params.yaml. Raises UsageError."""
    return backend_of(resolve(entry))


def simulated_driver(design: str) -> Any:
    """Return a simulated driver for an accelerator by its design's name. Raises StageError."""
    for row in BACKENDS.values():
        if driver := row.simulated_driver(design):
            return driver
    raise StageError(f"no simulator for the accelerator {design!a}", "a design as sim_1x16_i8w8a32_15_15_18_17")
