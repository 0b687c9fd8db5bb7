"""The manifest of a library: what it is, for whom, and made of what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.config.params import Cell
from tvmflow.frontends.source_model import SourceDescription
from tvmflow.passes.kernel.apply_schedules import Choice, coverage
from tvmflow.support.files import describe_file
from tvmflow.targets.resolve import ResolvedTarget

MANIFEST_SCHEMA = 2


def covered(choices: list[Choice]) -> dict[str, Any]:
    """Return how many kernels have measured schedules, and the share of the operations that is theirs."""
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
    """Return a row per kernel, by name: its schedule, and what all its calls compute and read."""
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
