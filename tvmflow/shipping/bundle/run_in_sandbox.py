"""Check one library of a bundle inside a sandbox, and run its golden inputs if it is for this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.shipping.bundle.abis import abi_named
from tvmflow.shipping.bundle.arrays import array_of
from tvmflow.shipping.bundle.elf import check_shared_object
from tvmflow.shipping.bundle.manifest import Library, StoredArray
from tvmflow.support.errors import AgreementError, BundleError, first_line
from tvmflow.support.samples import batch_of

Arrays = tuple[np.ndarray[Any, Any], ...]


def try_library(library: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return what a library needs, and the result of running it. Raises BundleError. folder: with the library and its
    arrays.
    """
    parsed = Library.model_validate_json(json.dumps(library))
    abi, place = abi_named(parsed.abi), Path(folder) / parsed.soname
    needed = check_shared_object(place, abi.with_gpu if parsed.gpu else abi, parsed.soname, parsed.symbol)["needed"]
    return {
        "needed": needed,
        "ran": _run(parsed, Path(folder)) if abi.runs_here else f"not run here: it is for {abi.name}",
    }


def _run(library: Library, folder: Path) -> str:
    from tvmflow.codegen.network.opened_network import OpenedNetwork
    from tvmflow.frontends.source_model import run_in_batches

    if missing := _missing_here(library):
        return f"not run here: this machine's processor lacks {', '.join(missing[:4])}"
    if library.gpu:
        return f"not run here: it needs a GPU with {library.gpu}; --device runs it on one"
    inputs, outputs = golden_arrays(library, folder)
    try:
        network = OpenedNetwork(folder / library.soname, library.threads)
        _check_description(library, network.network)
        results = run_in_batches(network, inputs, batch_of([one.shape for one in library.inputs]))
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise BundleError(
            f"{library.soname} does not run: {first_line(error)}", "a library that runs its golden inputs"
        ) from None
    return outcome(library, results, outputs)


def _missing_here(library: Library) -> list[str]:
    """Return what this machine's processor lacks for a library: by LLVM, or without TVM by what the manifest says."""
    from tvmflow.toolchain.versions import installed_version, missing_features, missing_flags

    if installed_version("apache-tvm") == "absent":
        return missing_flags(library.made.flags)
    return missing_features(_features(library))


def golden_arrays(library: Library, folder: Path) -> tuple[Arrays, Arrays]:
    """Return the golden inputs and outputs of a library, each (N, ...). Raises BundleError for another shape or
    dtype.
    """
    inputs, outputs = (_arrays(group, folder) for group in (library.golden.inputs, library.golden.outputs))
    return inputs, outputs


def outcome(library: Library, results: Arrays, outputs: Arrays) -> str:
    """Return how outputs agree with the golden ones. Raises BundleError if they do not."""
    from tvmflow.evaluation.agreement import check_outputs

    bound = library.golden.max_relative_error
    try:
        agreement = check_outputs("this library", "golden", results, outputs, bound, library.task)
    except AgreementError as error:
        raise BundleError(f"{library.soname}: {error.found}", error.expected) from None
    count = len(outputs[0])
    if all(a.tobytes() == b.tobytes() for a, b in zip(results, outputs, strict=True)):
        return f"{count} golden inputs, outputs equal bit for bit"
    return f"{count} golden inputs, largest error {agreement.max_relative_error:.2g}, at most {bound:g}"


def missing_features_of(library: Library, has: Iterable[str]) -> list[str]:
    """Return the features of the library's processor that another processor lacks. Raises BundleError."""
    return sorted(_features(library) - set(has))


def _features(library: Library) -> set[str]:
    """Return the features of a library's processor. Raises BundleError for an unknown processor."""
    from tvmflow.targets.cpu_features import features_of

    made = library.made
    try:
        return set(features_of(made.mcpu, made.mtriple, made.mattr))
    except Exception as error:  # TVM's own types
        raise BundleError(
            f"{library.soname} is for {made.mcpu}: {first_line(error)}", "a processor that LLVM knows"
        ) from None


def _arrays(group: tuple[StoredArray, ...], folder: Path) -> tuple[Any, ...]:
    return tuple(array_of((folder / one.file).read_bytes(), one.file, one.dtype, one.shape) for one in group)


def _check_description(library: Library, network: Any) -> None:
    """Raise BundleError if the library's own description differs from the manifest."""
    for what, ours, theirs in (
        ("network", library.cell, network.name),
        (
            "inputs",
            [(one.name, one.shape) for one in library.inputs],
            [(one.name, one.shape) for one in network.inputs],
        ),
        (
            "outputs",
            [(one.name, one.shape) for one in library.outputs],
            [(one.name, one.shape) for one in network.outputs],
        ),
        ("sizes", library.sizes, {one.name: one.buckets for one in network.sizes}),
        ("labels", library.labels, network.labels),
        ("device", library.device or "", network.device),
    ):
        if ours != theirs:
            raise BundleError(
                f"{library.soname} reports {what} {str(theirs)[:200]}",
                f"{str(ours)[:200]}, as in the manifest",
            )
