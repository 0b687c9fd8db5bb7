"""Describe a built library in manifest.json: its cell, target, files, kernels and toolchain."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tvmflow.config.buckets import Sizes
from tvmflow.config.params import Cell
from tvmflow.frontends.source_model import OutputSpec, TensorSpec
from tvmflow.ir.tir.kernel_schedules import KernelSchedule
from tvmflow.support.errors import StoreError, first_line
from tvmflow.support.json_values import OPTIONAL, read_json
from tvmflow.targets.resolve import ResolvedTarget

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class LibraryFile:
    """library.so, for TVM's virtual machine. entry: its function."""

    file: str
    sha256: str
    size: int
    entry: str


@dataclass(frozen=True)
class NetworkFile:
    """network.so, the library for apps. symbol: its function; device: the design of its accelerator, gpu: the API of
    its GPU, None without one.
    """

    file: str
    sha256: str
    size: int
    abi_version: int
    symbol: str
    soname: str
    arena_bytes: int
    constant_bytes: int
    kernel_calls: int
    device: str | None
    gpu: str | None
    textures: int


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json. coverage, coverage_estimated: shares of operations whose schedules are measured and
    estimated; kernels: by name; part: what an accelerator computes, as its backend describes it.
    """

    cell: Cell
    library: LibraryFile
    network: NetworkFile
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[OutputSpec, ...]
    target: ResolvedTarget
    coverage: float
    coverage_estimated: float
    toolchain: dict[str, str]
    kernels: tuple[KernelSchedule, ...]
    part: dict[str, Any] | None
    sizes: Sizes | None = field(default=None, metadata=OPTIONAL)
    schema: Literal[2] = 2


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a build folder. Raises StoreError."""
    try:
        return read_json(Manifest, folder / MANIFEST_NAME)
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(
            f"no library in {folder}: {first_line(error)}",
            f"library.so and its {MANIFEST_NAME}, of this version of tvmflow",
            "build it again",
        ) from None
