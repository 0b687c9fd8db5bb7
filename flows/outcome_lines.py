"""Say in one line what a stage of a cell did, for the log of its run in Prefect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.report.tables import scorecard, shown_best, shown_compute
from tvmflow.support.errors import StoreError


def outcome_line(workspace: Workspace, stage: str, cell: Cell, outcome: str) -> str:
    """Return stage, cell, outcome, seconds and the stage's figures. outcome: hit, restored, done, or how it failed."""
    try:
        record = read_record(workspace.folder(stage, cell) / RECORD_NAME)
    except StoreError:
        return f"{stage} {cell}: {outcome}"
    if outcome.startswith("failed"):
        return f"{stage} {cell}: {outcome}"
    took = f"{record.elapsed_s:.1f} s"
    made = took if outcome == "done" else f"made {record.created[:16].replace('T', ' ')} in {took}"
    figures = _of_card(workspace, cell) if stage == "evaluate" else _figures(record.facts)
    return ", ".join([f"{stage} {cell}: {outcome}", made, *figures])


def _of_card(workspace: Workspace, cell: Cell) -> list[str]:
    card = scorecard(workspace, cell)
    if card is None:
        return []
    accuracy = [f"accuracy {card.accuracy.built:.2%}"] if card.accuracy else []
    return [shown_compute(card), f"beside the best baseline {shown_best(card)}", *accuracy]


def _figures(facts: Mapping[str, Any]) -> list[str]:
    """Return the facts of a record that say how well it went."""
    golden, found = facts.get("golden") or {}, []
    if golden.get("max_relative_error") is not None:
        found.append(f"largest error {golden['max_relative_error']:.1e}")
    if facts.get("output_sqnr_db") is not None:
        found.append(f"SQNR {facts['output_sqnr_db']:.1f} dB")
    if facts.get("measured") is not None:
        before, after = facts.get("default_kernels_ms"), facts.get("best_kernels_ms")
        kernels = f", kernels {before:.4g} to {after:.4g} ms" if before and after else ""
        found.append(f"{facts['measured']} candidates measured{kernels}")
    if facts.get("library_bytes") is not None:
        found.append(f"library {facts['library_bytes'] / 1e6:.2f} MB")
    return found
