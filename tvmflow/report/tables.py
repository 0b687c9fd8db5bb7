"""Read scorecards from a workspace and print them as tables."""

from __future__ import annotations

import itertools
import json
from typing import Any

from rich.table import Table

from tvmflow.artifacts import RECORD_NAME, read_record
from tvmflow.errors import StoreError
from tvmflow.params import STAGE_NAMES, Cell
from tvmflow.workspace import Workspace

FORMS = ("source", "imported", "quantized", "built")
STEPS = tuple(f"{before}-{after}" for before, after in itertools.pairwise(FORMS))


def scorecard(workspace: Workspace, cell: Cell) -> dict[str, Any] | None:
    """Return the cell's scorecard, None where it was never measured."""
    try:
        text = (workspace.folder("evaluate", cell) / "scorecard.json").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
        return {"agreement_by_step": {}, "quantization": {}, "vta": None, **found}  # older ones lack them
    except (OSError, ValueError):
        return None


def stage_times(workspace: Workspace, cell: Cell) -> dict[str, float]:
    """Return stage -> seconds that making it took, for the stages that are there."""
    found = {}
    for stage in STAGE_NAMES:
        try:
            found[stage] = read_record(workspace.folder(stage, cell) / RECORD_NAME).elapsed_s
        except StoreError:
            continue
    return found


def shown_latency(latency: dict[str, Any]) -> str:
    """Return a median in ms, or 'unsteady' where the spread was too wide for a number to be trusted."""
    return f"{latency['median_ms']:.3g} ms" if latency["steady"] else f"unsteady (±{latency['spread']:.0%})"


def shown_compute(card: dict[str, Any]) -> str:
    """Return the latency of a cell's library; of a simulated accelerator the estimate, since the simulator's time says nothing."""
    vta = card["vta"]
    if vta and vta["simulated"]:
        return f"≈ {vta['estimated_ms']:.3g} ms on VTA"
    return shown_latency(card["latency"]["compute"])


def ratio(card: dict[str, Any], peer: str) -> float | None:
    """Return latency of the library / latency of a peer; None where one of them is missing or unsteady."""
    ours, theirs = card["latency"]["compute"], card["peers"].get(peer)
    if theirs is None or not (ours["steady"] and theirs["steady"]):
        return None
    return float(ours["median_ms"] / theirs["median_ms"])


def scorecard_table(cards: list[dict[str, Any]]) -> Table:
    """Return a rich table: a row per cell; a column each for the accuracy of every form, agreement, latency and every peer."""
    peers = sorted({name for card in cards for name in card["peers"]})
    table = Table(title="scorecards")
    for column in ("cell", "device", *FORMS, "top-1 agreement", "latency", *peers, "library"):
        table.add_column(column, justify="left" if column in ("cell", "device") else "right", overflow="fold")
    for card in cards:
        accuracy = card["accuracy"]
        cells = [card["cell"], f"{card['device']['kind']}"]
        cells += [f"{accuracy[k]:.2%}" if accuracy and k in accuracy else "-" for k in FORMS]
        cells += [f"{card['agreement']['top1_agreement']:.2%}", shown_compute(card)]
        for peer in peers:
            theirs, factor = card["peers"].get(peer), ratio(card, peer)
            text = "-" if theirs is None else shown_latency(theirs)
            cells.append(text if factor is None else f"{text} ({1 / factor:.2f}x)")
        table.add_row(*cells, f"{card['library_bytes'] / 1e6:.2f} MB")
    return table


def vta_table(card: dict[str, Any]) -> Table:
    """Return what the accelerator's program costs, beside the limits of the design."""
    vta = card["vta"]
    table = Table(title=f"{vta['name']}, {vta['mode']} schedules, {vta['launches']} launches")
    names = (
        "inp",
        "wgt",
        "acc",
        "uop",
        "out",
        "sum of these",
        "DRAM",
        "GEMM",
        "ALU",
        "instructions",
        "cycles",
        "GEMM core busy",
    )
    for name in names:
        table.add_column(name, justify="right")
    counters = vta["counters"]
    sizes = [
        counters[k]
        for k in ("inp_load_nbytes", "wgt_load_nbytes", "acc_load_nbytes", "uop_load_nbytes", "out_store_nbytes")
    ]
    numbers = [*sizes, vta["five_nbytes"], counters["dram_nbytes"], counters["gemm_counter"], counters["alu_counter"]]
    table.add_row(
        *(f"{n:,}" for n in (*numbers, counters["insn_count"], vta["cycles"])), f"{vta['gemm_utilization']:.0%}"
    )
    return table


def latency_table(card: dict[str, Any]) -> Table:
    """Return the latency summary of one cell, as TVM's users know it, with cold start and copies apart."""
    table = Table(title=f"execution time of {card['cell']}, batch {card['batch']}, {card['device']['threads']} threads")
    for column in ("", "mean (ms)", "median (ms)", "p90 (ms)", "max (ms)", "min (ms)", "std (ms)", "runs"):
        table.add_column(column, justify="right" if column else "left")
    rows = {
        "compute": card["latency"]["compute"],
        "copy in": card["latency"]["copy_in"],
        "copy out": card["latency"]["copy_out"],
    }
    for name, latency in {**rows, **card["peers"]}.items():
        if latency["steady"]:
            numbers = [f"{latency[f'{k}_ms']:.4f}" for k in ("mean", "median", "p90", "max", "min", "std")]
        else:
            numbers = ["unsteady", f"±{latency['spread']:.0%}", "-", "-", "-", "-"]
        table.add_row(name, *numbers, str(latency["runs"]))
    if card["vta"] and card["vta"]["simulated"]:
        table.title = f"{table.title}, of the simulator"
    cold = sorted(card["cold_start_ms"])
    table.caption = f"cold start (load and first run): {cold[len(cold) // 2]:.2f} ms, median of {len(cold)}"
    return table
