"""Put a model's cells on a CPU and on an accelerator side by side: each number with its unit, measured or estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tvmflow.backends.manifest import MANIFEST_NAME, read_manifest
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.roofline import Work
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.report.console import Grid, grid
from tvmflow.report.tables import trusted_bytes
from tvmflow.support.errors import StoreError

How = Literal["measured", "estimated"]
NUMBERS = (
    ("latency", "ms"),
    ("cycles of the accelerator", "cycles"),
    ("time of these at its clock", "ms"),
    ("bytes that the accelerator moves", "bytes"),
    ("bytes of constants that the CPU reads", "bytes"),
    ("operations of the accelerator", "operations"),
    ("operations of the CPU", "operations"),
)
"""The rows of the table, with their units."""


@dataclass(frozen=True)
class Value:
    """A number of a cell and how it is known; measured: a time, or what the device counted itself."""

    value: float
    how: How

    @property
    def text(self) -> str:
        shown = f"{self.value:,.0f}" if self.value >= 1e4 else f"{self.value:.4g}"
        return f"{shown}, {self.how}"


@dataclass(frozen=True)
class SideBySide:
    """The cells of a model; values: for each of NUMBERS, one of each cell, None where a cell has none."""

    model: str
    cells: tuple[str, ...]
    values: tuple[tuple[Value | None, ...], ...]

    def to_json(self) -> dict[str, Any]:
        rows = [
            {"what": what, "unit": unit, "values": [None if value is None else asdict(value) for value in values]}
            for (what, unit), values in zip(NUMBERS, self.values, strict=True)
        ]
        return {"model": self.model, "cells": list(self.cells), "rows": rows}

    def table(self) -> Grid:
        rows = [
            [what, unit, *("-" if value is None else value.text for value in values)]
            for (what, unit), values in zip(NUMBERS, self.values, strict=True)
        ]
        return grid(f"{self.model}: CPU and accelerator", ("", "unit", *self.cells), rows, ("",))


def side_by_side(cards: Iterable[Scorecard], work_of: Callable[[str], Work | None]) -> list[SideBySide]:
    """Return each model that has a cell with an accelerator and one without. work_of: cell -> of its CPU's kernels."""
    models: dict[str, list[Scorecard]] = {}
    for card in cards:
        if card.executed is None and card.device.gpu is None:
            models.setdefault(card.cell.partition("@")[0], []).append(card)
    return [
        SideBySide(
            model,
            tuple(card.cell for card in own),
            tuple(zip(*(numbers_of(card, work_of(card.cell)) for card in own), strict=True)),
        )
        for model, own in models.items()
        if {_has_part(card) for card in own} == {True, False}
    ]


def _has_part(card: Scorecard) -> bool:
    return card.part is not None and "counters" in card.part.details


def numbers_of(card: Scorecard, work: Work | None) -> tuple[Value | None, ...]:
    """Return the values of a cell, in the order of NUMBERS."""
    compute = card.latency.compute
    latency = Value(compute.median_ms, "measured") if card.has_time and compute.is_time else None
    constants = Value(work.constant_bytes, "estimated") if work else None
    operations = Value(sum(work.operations.values()), "estimated") if work else None
    if card.part is None or not _has_part(card):
        return latency, None, None, None, constants, None, operations
    details = card.part.details
    counted: How = "measured" if details.get("counted") else "estimated"
    return (
        latency,
        Value(details["cycles"], "estimated"),
        Value(card.part.estimated_ms, "estimated"),
        Value(details["counters"]["dram_nbytes"], counted),
        constants,
        Value(details["operations"], counted),
        operations,
    )


def processors_of(workspace: Workspace, cards: Sequence[Scorecard]) -> list[SideBySide]:
    """Return the models among cells of a workspace, with the kernels of their newest builds."""
    return side_by_side(cards, lambda cell: _work(workspace, cell))


def _work(workspace: Workspace, name: str) -> Work | None:
    """Return the work of a cell's kernels, None if its manifest is missing or damaged."""
    folder = workspace.folder("build", workspace.params.cell(name))
    try:
        return Work.of(read_manifest(folder).kernels) if trusted_bytes(folder, MANIFEST_NAME) else None
    except StoreError:
        return None
