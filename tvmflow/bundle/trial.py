"""Inside a sandbox: look into one library of a bundle, and run its golden inputs where it is for this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tvmflow.bundle.abis import abi_named
from tvmflow.bundle.arrays import array_of
from tvmflow.bundle.elf import check_shared_object
from tvmflow.bundle.manifest import Library, StoredArray
from tvmflow.errors import AgreementError, BundleError, first_line


def try_library(library: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return what a library needs, and what running it gave. Raises BundleError. folder: with the library and its arrays."""
    parsed = Library.model_validate_json(json.dumps(library))
    abi, place = abi_named(parsed.abi), Path(folder) / parsed.soname
    needed = check_shared_object(place, abi, parsed.soname, parsed.symbol)["needed"]
    return {
        "needed": needed,
        "ran": _run(parsed, Path(folder)) if abi.runs_here else f"not run here: it is for {abi.name}",
    }


def _run(library: Library, folder: Path) -> str:
    from tvmflow.building.self_contained import OpenedNetwork
    from tvmflow.evaluation.agreement import check_outputs
    from tvmflow.frontends.source_model import run_in_batches

    if missing := _missing_features(library):
        return f"not run here: this machine's processor lacks {', '.join(missing[:4])}"
    inputs, outputs = (_arrays(group, folder) for group in (library.golden.inputs, library.golden.outputs))
    try:
        network = OpenedNetwork(folder / library.soname, library.threads)
        _check_described(library, network.network)
        results = run_in_batches(network, inputs, library.inputs[0].shape[0])
        agreement = check_outputs(
            "this library", "golden", results, outputs, library.golden.max_relative_error, library.task
        )
    except AgreementError as error:
        raise BundleError(f"{library.soname}: {error.found}", error.expected) from None
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise BundleError(
            f"{library.soname} does not run: {first_line(error)}", "a library that runs its golden inputs"
        ) from None
    if all(a.tobytes() == b.tobytes() for a, b in zip(results, outputs, strict=True)):
        return f"{len(inputs[0])} golden inputs, outputs equal bit for bit"
    return f"{len(inputs[0])} golden inputs, largest error {agreement.max_relative_error:.2g}, at most {library.golden.max_relative_error:g}"


def _missing_features(library: Library) -> list[str]:
    """Return the features of the library's processor that this machine's lacks. Raises BundleError for a processor that nobody knows."""
    from tvmflow.targets.cpu_features import features_of
    from tvmflow.toolchain import lacking

    made = library.made
    try:
        return lacking(set(features_of(made.mcpu, made.mtriple, made.mattr)))
    except Exception as error:  # TVM's own types
        raise BundleError(
            f"{library.soname} is for {made.mcpu}: {first_line(error)}", "a processor that LLVM knows"
        ) from None


def _arrays(group: tuple[StoredArray, ...], folder: Path) -> tuple[Any, ...]:
    return tuple(array_of((folder / one.file).read_bytes(), one.file, one.dtype, one.shape) for one in group)


def _check_described(library: Library, network: Any) -> None:
    """Refuse a library that says of itself what the manifest does not."""
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
        ("labels", library.labels, network.labels),
    ):
        if ours != theirs:
            raise BundleError(
                f"{library.soname} says of its {what}: {str(theirs)[:200]}",
                f"{str(ours)[:200]}, as the manifest has it",
            )
