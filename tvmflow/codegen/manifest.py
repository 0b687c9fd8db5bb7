"""Write the manifest of a library: its cell, target, kernels and toolchain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.config.params import Cell
from tvmflow.frontends.source_model import SourceDescription
from tvmflow.passes.kernel.apply_schedules import Choice, coverage
from tvmflow.support.files import describe_file
from tvmflow.targets.resolve import ResolvedTarget

MANIFEST_SCHEMA = 2


def count_coverage(choices: list[Choice]) -> dict[str, Any]:
    """Return the number of kernels by the source of their schedules, and the measured share of operations."""
    counts = {how: sum(choice.how == how for choice in choices) for how in ("record", "estimate", "default", "none")}
    return {
        "kernels": len(choices),
        "coverage": coverage(choices),
        "kernels_tuned": counts["record"],
        "kernels_default": counts["default"],
        "kernels_estimated": counts["estimate"],
        "kernels_unscheduled": counts["none"],
    }


def manifest_of(
    cell: Cell,
    library: Path,
    description: SourceDescription,
    target: ResolvedTarget,
    choices: list[Choice],
    outputs: list[dict[str, Any]],
    toolchain: dict[str, str],
) -> dict[str, Any]:
    """Return the manifest of a library file as a JSON-able value."""
    file = describe_file(library)
    return {
        "schema": MANIFEST_SCHEMA,
        "cell": {"model": cell.model, "target": cell.target, "precision": cell.precision},
        "library": {"file": library.name, "sha256": file.sha256, "size": file.size, "entry": "main"},
        "inputs": [{"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype} for spec in description.inputs],
        "outputs": outputs,
        "target": target.to_json(),
        "coverage": coverage(choices),
        "coverage_estimated": coverage(choices, "estimate"),
        "toolchain": toolchain,
        "kernels": kernels_of(choices),
    }


def kernels_of(choices: list[Choice]) -> list[dict[str, Any]]:
    """Return a row per kernel, by name: its schedule, and the operations and constants of all its calls."""
    rows = (
        {
            "name": c.kernel,
            "workload": c.workload,
            "schedule": c.how,
            "template": c.template,
            "operations": c.work,
            "dtype": c.dtype,
            "constant_bytes": c.constant_bytes,
        }
        for c in choices
    )
    return sorted(rows, key=lambda row: str(row["name"]))
