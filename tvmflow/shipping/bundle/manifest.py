"""Define manifest.json of a bundle: its content and how an app uses it.

manifest.schema.json is generated from these classes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from tvmflow.config.stage_params import Frozen
from tvmflow.config.value_types import Line, Name, Sha256
from tvmflow.shipping.bundle.archive import MAX_BYTES, is_name
from tvmflow.support.errors import BundleError

MANIFEST, ENVELOPE, SBOM, README = "manifest.json", "provenance.dsse.json", "sbom.cdx.json", "README.md"
SCHEMA_FILE = Path(__file__).with_name("manifest.schema.json")
SCHEMA = 1
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _check_file_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"the name of a file in the bundle; found {name!r}")
    return name


FileName = Annotated[str, Field(max_length=500), AfterValidator(_check_file_name)]
Symbol = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,250}$")]
Bytes = Annotated[int, Field(ge=0, le=MAX_BYTES)]
Count = Annotated[int, Field(ge=0, le=10_000_000)]
Dtype = Literal["float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"]
Number = Annotated[float, Field(strict=False, ge=-1e30, le=1e30)]


Sizes = Annotated[tuple[Annotated[int, Field(ge=0, le=1 << 31)], ...], Field(max_length=16)]


class File(Frozen):
    """A file of the bundle, by its bytes."""

    sha256: Sha256
    size: Bytes


class Tensor(Frozen):
    """An input or output. shape: the batch first."""

    name: Annotated[str, Field(max_length=4000)]
    shape: Sizes
    dtype: Dtype


class Preprocessing(Frozen):
    """The preprocessing of the image input: x = (pixels / 255 * white * scale - mean) / std, channels in this order,
    (N, C, H, W).
    """

    scale: Number
    mean: tuple[Number, ...]
    std: tuple[Number, ...]
    white: Number
    channels: Literal["RGB", "BGR"]
    fit: Literal["crop", "stretch"]
    resize: Count | None
    interpolation: Literal["nearest", "bilinear", "bicubic"]


class StoredArray(Frozen):
    """An .npy file. shape: the samples first; dtype: of its numbers, uint16 where a network has bfloat16."""

    file: FileName
    shape: Sizes
    dtype: Dtype | Literal["uint16"]


class Golden(Frozen):
    """Inputs whose outputs are known.

    max_relative_error: how far outputs may be from these, relative to how they vary over inputs and classes.
    """

    inputs: tuple[StoredArray, ...]
    outputs: tuple[StoredArray, ...]
    max_relative_error: Annotated[float, Field(ge=0, le=1e9)]


class Made(Frozen):
    """The provenance of a library. version: in the model registry; library_sha256: of library.so, by which MLflow knows
    it.

    recipe: stage -> recipe key; toolchain: tool -> version; system: required versions of system libraries; flags: of
    the processor in /proc/cpuinfo, without which the code does not run.
    """

    version: Annotated[str, Field(max_length=100)] | None
    library_sha256: Sha256
    recipe: dict[Name, Sha256]
    toolchain: dict[Line, Line]
    runtime: Sha256
    mcpu: Line
    mattr: tuple[Line, ...]
    mtriple: Line
    system: tuple[Line, ...]
    flags: Annotated[tuple[Line, ...], Field(max_length=100)] = ()


class Library(Frozen):
    """A network as one shared object. symbol: the function that an app calls, declared in tvmflow.h.

    device: the design of the accelerator that computes a part of it, for which an app brings a driver; None for none.
    gpu: the API by which a GPU computes all of it, opencl or vulkan; None where the CPU does. sizes: that a run
    chooses, by name its buckets, of which inputs and outputs have the largest; the library says the shapes at others.
    measured: on a device; a library that was not has no scorecard.
    """

    cell: Line
    abi: Name
    file: FileName
    soname: FileName
    symbol: Symbol
    abi_version: Count
    threads: Count
    arena_bytes: Annotated[int, Field(ge=0, le=1 << 50)]
    constant_bytes: Bytes
    kernel_calls: Count
    device: Line | None = None
    gpu: Name | None = None
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sizes: dict[Name, Sizes] = Field(default_factory=dict)
    preprocessing: Preprocessing | None
    task: Line | None
    labels: Annotated[tuple[Annotated[str, Field(max_length=4000)], ...], Field(max_length=1_000_000)]
    golden: Golden
    measured: bool = True
    scorecard: FileName | None
    card: FileName
    made: Made

    @model_validator(mode="after")
    def _has_what_was_measured(self) -> Self:
        if self.measured != (self.scorecard is not None):
            raise ValueError("a scorecard for a measured library, and none for another")
        return self


class Choice(Frozen):
    """A network as an app opens it on one ABI: by its cell for the CPU, that for a GPU, or both, of which the runtime
    takes the GPU while it can be trusted. faster: cells of it for processors that have more instructions than `cpu`
    needs, the most demanding first; the runtime takes the first whose `made.flags` the processor has.
    """

    name: Line
    abi: Name
    cpu: Line | None = None
    gpu: Line | None = None
    faster: Annotated[tuple[Line, ...], Field(max_length=20)] = ()


class Manifest(Frozen):
    """app: the release's, with its version; None for a bundle that was made by hand. networks: what an app opens;
    files: every other file but the envelope.
    """

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    version: Annotated[int, Field(ge=1, le=10_000_000)] | None
    tvmflow: Line
    libraries: Annotated[tuple[Library, ...], Field(min_length=1, max_length=1000)]
    networks: Annotated[tuple[Choice, ...], Field(max_length=1000)] = ()
    files: dict[FileName, File]

    @model_validator(mode="after")
    def _names_its_libraries(self) -> Manifest:
        known = {(one.cell, one.abi, one.gpu is not None) for one in self.libraries}
        for one in self.networks:
            cells = [
                (cell, one.abi, is_gpu) for cell, is_gpu in ((one.cpu, False), (one.gpu, True)) if cell is not None
            ] + [(cell, one.abi, False) for cell in one.faster]
            if not cells or (one.faster and one.cpu is None) or not known.issuperset(cells):
                raise ValueError(f"network {one.name} of {one.abi} is of no library")
        return self

    @property
    def abis(self) -> tuple[str, ...]:
        return tuple(sorted({library.abi for library in self.libraries}))

    def library(self, cell: str) -> Library:
        return next(one for one in self.libraries if one.cell == cell)

    def to_bytes(self) -> bytes:
        return json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, indent=1).encode() + b"\n"


def read_manifest(data: bytes) -> Manifest:
    """Return a manifest. Raises BundleError with all errors in it."""
    try:
        return Manifest.model_validate_json(data)
    except (ValidationError, RecursionError) as error:
        lines = (
            [f"{'.'.join(map(str, one['loc']))}: {one['msg']}"[:200] for one in error.errors()[:5]]
            if isinstance(error, ValidationError)
            else []
        )
        raise BundleError(
            "manifest.json is not valid: " + ("; ".join(lines) or "too deep"), "what manifest.schema.json describes"
        ) from None


def manifest_schema() -> dict[str, Any]:
    """Return the JSON schema of manifest.json."""
    return {
        "$schema": DIALECT,
        "title": "manifest.json of a bundle of tvmflow",
        **_without_titles(Manifest.model_json_schema()),
    }


def _without_titles(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_titles(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
    return [_without_titles(v) for v in node] if isinstance(node, list) else node
