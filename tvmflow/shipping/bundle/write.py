"""Write a bundle from the parts of its cells. Equal parts give equal bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tvmflow.codegen.network.runtime_sources import ABI_VERSION, RUNTIME
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.shipping.bundle import texts
from tvmflow.shipping.bundle.abis import abi_named, abi_of
from tvmflow.shipping.bundle.archive import write_archive
from tvmflow.shipping.bundle.arrays import STORED, npy_bytes
from tvmflow.shipping.bundle.choices import choices
from tvmflow.shipping.bundle.elf import check_shared_object, versions_of
from tvmflow.shipping.bundle.manifest import (
    ENVELOPE,
    MANIFEST,
    README,
    SBOM,
    File,
    Golden,
    Library,
    Made,
    Manifest,
    Preprocessing,
    StoredArray,
    Tensor,
)
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.sbom import sbom
from tvmflow.shipping.bundle.signing import envelope
from tvmflow.shipping.bundle.statement import statement
from tvmflow.sources.data.labels import class_names
from tvmflow.support.errors import BundleError
from tvmflow.support.files import describe_file, load_arrays
from tvmflow.support.version import __version__
from tvmflow.targets.processor_flags import required_flags

Content = dict[str, bytes | Path]
SWIFT = "swift/Network.swift"


@dataclass(frozen=True)
class BundleRequest:
    """The requested bundle. name: of the app; version: of its release, None outside of a release; abis: required ABIs,
    by default all of its cells'.
    """

    name: str
    version: int | None = None
    abis: tuple[str, ...] | None = None


def write_bundle(path: Path, parts: Sequence[Part], request: BundleRequest, key: Ed25519PrivateKey | None) -> Manifest:
    """Write a bundle and return its manifest. Raises BundleError for a cell that cannot be in it."""
    manifest, files = contents(parts, request, key)
    write_archive(path, files)
    return manifest


def contents(parts: Sequence[Part], request: BundleRequest, key: Ed25519PrivateKey | None) -> tuple[Manifest, Content]:
    """Return the files of a bundle by name, and its manifest. Raises BundleError for a cell that cannot be in it."""
    _check_abis(parts, request)
    files: Content = {
        "include/tvmflow.h": RUNTIME / "include" / "tvmflow.h",
        "include/tvmflow.hpp": RUNTIME / "include" / "tvmflow.hpp",
        "python/tvmflow_network.py": RUNTIME / "python" / "tvmflow_network.py",
        "java/tvmflow/Network.java": RUNTIME / "java" / "tvmflow" / "Network.java",
        "java/tvmflow/Model.java": RUNTIME / "java" / "tvmflow" / "Model.java",
        "kotlin/tvmflow/Coroutines.kt": RUNTIME / "kotlin" / "tvmflow" / "Coroutines.kt",
        "java/tvmflow_jni.c": RUNTIME / "jni" / "tvmflow_jni.c",
    }
    libraries = tuple(_add(part, files) for part in parts)
    manifest = _manifest(request, libraries, files)
    for library, part in zip(libraries, parts, strict=True):
        files[library.card] = texts.card(library, part)
    files[README], files["examples/app.c"] = texts.readme(manifest), texts.example(libraries[0])
    files[SBOM] = sbom(_manifest(request, libraries, files), parts)
    manifest = _manifest(request, libraries, files)
    files[MANIFEST] = manifest.to_bytes()
    every = {name: describe_content(content) for name, content in files.items()}
    files[ENVELOPE] = envelope(statement(manifest, every, parts), key)
    return manifest, files


def _manifest(request: BundleRequest, libraries: tuple[Library, ...], files: Content) -> Manifest:
    every = {name: describe_content(content) for name, content in sorted(files.items())}
    return Manifest(
        schema=1,
        name=request.name,
        version=request.version,
        tvmflow=__version__,
        libraries=libraries,
        networks=choices(libraries),
        files=every,
    )


def content_of(files: Content, name: str) -> bytes:
    """Return the bytes of a file of a bundle."""
    content = files[name]
    return content if isinstance(content, bytes) else content.read_bytes()


def describe_content(content: bytes | Path) -> File:
    """Return digest and size of a file of a bundle."""
    if isinstance(content, Path):
        found = describe_file(content)
        return File(sha256=found.sha256, size=found.size)
    return File(sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def _check_abis(parts: Sequence[Part], request: BundleRequest) -> None:
    """Raise BundleError for duplicate cells, and ABIs other than the requested ones."""
    cells = [part.cell for part in parts]
    if len(set(cells)) < len(cells):
        raise BundleError(f"a duplicate cell in {', '.join(cells)}", "each cell once")
    found = {part.cell: abi_of(part.manifest.target.mtriple).name for part in parts}
    if request.abis is None:
        return
    for name in request.abis:
        abi_named(name)
    odd = [f"{cell} is for {abi}" for cell, abi in found.items() if abi not in request.abis]
    missing = sorted(set(request.abis) - set(found.values()))
    if odd or missing:
        raise BundleError(
            "; ".join([*odd, *(f"no cell is for {abi}" for abi in missing)]),
            f"a library for each of {', '.join(request.abis)}, and no other",
        )


def _add(part: Part, files: Content) -> Library:
    """Add a cell's files; return its entry in the manifest."""
    built, network, target = part.manifest, part.manifest.network, part.manifest.target
    abi = abi_of(target.mtriple)
    library, folder = part.path("build", "network.so"), f"cells/{part.slug}"
    check_shared_object(library, abi.with_gpu if network.gpu else abi, network.soname, network.symbol)
    files[f"lib/{abi.name}/{network.soname}"] = library
    if abi.is_wasm:
        files["javascript/tvmflow.mjs"] = RUNTIME / "javascript" / "tvmflow.mjs"
    if abi.is_apple:
        files[SWIFT] = RUNTIME / "swift" / "Network.swift"
    scorecard = f"{folder}/scorecard.json" if part.is_measured else None
    if scorecard:
        files[scorecard] = part.path("evaluate", "scorecard.json")
    outputs = tuple(_tensor(one) for one in built.outputs)
    build = part.records["build"]
    made = Made(
        version=part.version,
        library_sha256=build.outputs["library.so"].sha256,
        recipe={stage: record.key for stage, record in part.records.items()},
        toolchain=built.toolchain,
        runtime=build.recipe["params"]["runtime"],
        mcpu=target.mcpu,
        mattr=target.mattr,
        mtriple=target.mtriple,
        system=() if abi.is_wasm or abi.is_apple else versions_of(library),
        flags=() if network.gpu else required_flags(target),
    )
    return Library(
        cell=part.cell,
        abi=abi.name,
        file=f"lib/{abi.name}/{network.soname}",
        soname=network.soname,
        symbol=network.symbol,
        abi_version=ABI_VERSION,
        threads=target.threads,
        arena_bytes=network.arena_bytes,
        constant_bytes=network.constant_bytes,
        kernel_calls=network.kernel_calls,
        device=network.device,
        gpu=network.gpu,
        inputs=tuple(_tensor(one) for one in built.inputs),
        outputs=outputs,
        sizes=dict(zip(built.sizes.names, built.sizes.buckets, strict=True)) if built.sizes else {},
        preprocessing=_preprocessing(part),
        task=part.source.task,
        labels=_labels(part, outputs[0]),
        golden=_golden(part, files),
        measured=part.is_measured,
        scorecard=scorecard,
        card=f"{folder}/card.md",
        made=made,
    )


def _tensor(spec: TensorSpec) -> Tensor:
    return Tensor.model_validate({"name": spec.name, "shape": spec.shape, "dtype": spec.dtype})


def _preprocessing(part: Part) -> Preprocessing | None:
    """Return the preprocessing of the image input, None for other inputs."""
    inputs = part.manifest.inputs
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[1] not in (1, 3):
        return None
    how = part.entry["preprocess"]
    names = ("scale", "white", "channels", "fit", "resize", "interpolation")
    return Preprocessing(mean=tuple(how["mean"]), std=tuple(how["std"]), **{name: how[name] for name in names})


def _labels(part: Part, output: Tensor) -> tuple[str, ...]:
    if len(output.shape) != 2:
        return ()
    return tuple(class_names(part.folder / "fetch", output.shape[-1]) or ())


def _golden(part: Part, files: Content) -> Golden:
    """Add the golden inputs, the quantized module's outputs, and the error bound of build."""
    folder, bound = f"cells/{part.slug}/golden", float(part.records["build"].recipe["params"]["max_relative_error"])
    found: dict[str, list[StoredArray]] = {"input": [], "output": []}
    for kind, arrays in (
        ("input", load_arrays(part.path("fetch", "golden.npz"), "x")),
        ("output", load_arrays(part.path("quantize", "reference.npz"), "golden")),
    ):
        for at, array in enumerate(map(_to_stored_type, arrays)):
            name = f"{folder}/{kind}{at}.npy"
            files[name] = npy_bytes(array)
            found[kind].append(
                StoredArray.model_validate({"file": name, "shape": array.shape, "dtype": str(array.dtype)})
            )
    return Golden(inputs=tuple(found["input"]), outputs=tuple(found["output"]), max_relative_error=bound)


def _to_stored_type(array: Any) -> Any:
    """Return numbers of a type that numpy lacks as raw bits."""
    kind = STORED.get(str(array.dtype))
    return np.asarray(array) if kind is None else array.view(kind)
