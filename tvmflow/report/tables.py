"""Read scorecards from a workspace and print them as tables."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

from tvmflow.config.params import STAGE_NAMES, Cell
from tvmflow.config.workspace import Workspace
from tvmflow.devices.session import Executed
from tvmflow.evaluation.agreement import Agreement
from tvmflow.evaluation.latency_summary import Latency
from tvmflow.evaluation.roofline import Bounds, NoBounds
from tvmflow.evaluation.scorecard import AcceleratorPart, GpuAgreement, GpuNumbers, Scorecard
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.report.console import Grid, grid
from tvmflow.support.errors import StoreError

FORMS = ("source", "imported", "quantized", "built")
_LARGE = 100.0  # times faster, from where on digits behind the point say nothing
STEPS = tuple(f"{before}-{after}" for before, after in itertools.pairwise(FORMS))


def trusted_json(folder: Path, name: str) -> Any:
    """Return the content of a stage's JSON file, None if it is missing or differs from the folder's record."""
    data = trusted_bytes(folder, name)
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None


def trusted_bytes(folder: Path, name: str) -> bytes | None:
    """Return the content of a stage's file, None if it is missing or differs from the folder's record."""
    try:
        data = (folder / name).read_bytes()
        expected = read_record(folder / RECORD_NAME).outputs[name].sha256
    except (OSError, KeyError, StoreError):
        return None
    return data if hashlib.sha256(data).hexdigest() == expected else None


def known_cells(workspace: Workspace) -> list[Cell]:
    """Return the listed cells, then every other that has a scorecard."""
    params = workspace.params
    cells = list(params.cells.values())
    for folder in sorted((workspace.artifacts / "evaluate").glob("*.*.*")):
        try:
            model, target, precision = folder.name.split(".")
            cell = params.cell(f"{model}@{target}:{precision}")
        except Exception:  # a cell of a model that params.yaml no longer has  # noqa: S112
            continue
        if cell not in cells:
            cells.append(cell)
    return cells


def scorecard(workspace: Workspace, cell: Cell) -> Scorecard | None:
    """Return the cell's scorecard, None if it is missing, damaged, or too old."""
    try:
        return Scorecard.from_json(trusted_json(workspace.folder("evaluate", cell), "scorecard.json"))
    except StoreError:
        return None


def stage_times(workspace: Workspace, cell: Cell) -> dict[str, float]:
    """Return stage -> seconds that making it took, for the stages that are there."""
    times = {}
    for stage in STAGE_NAMES:
        try:
            times[stage] = read_record(workspace.folder(stage, cell) / RECORD_NAME).elapsed_s
        except StoreError:
            continue
    return times


def shown_top1(agreement: Agreement) -> str:
    """Return the share of equal top-1; a model with one output has none."""
    share = agreement.top1_agreement
    return "-" if share is None else f"{share:.2%}"


def shown_error(agreement: Agreement) -> str:
    """Return the largest error relative to the spread of the outputs, and the SQNR."""
    return f"{agreement.max_relative_error:.1e} ({agreement.sqnr_db:.0f} dB)"


def shown_latency(latency: Latency) -> str:
    """Return a median in ms with its interval and disturbances."""
    if not latency.is_time:
        return ", ".join(latency.badges)
    interval = "" if latency.low_ms is None else f" ({latency.low_ms:.3g} to {latency.high_ms:.3g})"
    return ", ".join([f"{latency.median_ms:.3g} ms{interval}", *latency.badges])


def shown_states(latency: Latency) -> str:
    """Return the machine states of a latency, by the distance of the cores; "" if unknown."""
    if latency.round_trip_ns is None:
        return ""
    others = [
        f"{one.value:.3g} ms with cores {one.round_trip_ns:.0f} ns apart ({one.share:.0%} of the turns)"
        for one in latency.elsewhere
    ]
    return "; ".join([f"cores {latency.round_trip_ns:.0f} ns apart", *others])


def shown_executed(executed: Executed) -> str:
    """Return the counters of a run on an emulated device, which has no time."""
    share = executed.multiply_add_instructions / executed.instructions
    return f"{executed.instructions / 1e6:.4g} M instructions, {share:.0%} multiply-adds (emulated: not a time)"


def shown_compute(card: Scorecard) -> str:
    """Return the latency of a cell's library, or the counters of a simulated or emulated device."""
    if card.executed:
        return shown_executed(card.executed)
    if card.part and card.part.simulated:
        return f"≈ {card.part.estimated_ms:.3g} ms, simulated"
    return shown_latency(card.latency.compute)


def shown_bound(bounds: Bounds | NoBounds | None) -> str:
    """Return the roofline bound of a run and the share of it that is reached, or the reason without a bound."""
    if not isinstance(bounds, Bounds):
        return bounds.reason if bounds else "-"
    share = "" if bounds.share is None else f" ({bounds.share:.0%} reached)"
    return f"{bounds.least_ms:.3g} ms{share}"


def shown_advantage(card: Scorecard, peer: str) -> str:
    """Return the speedup over a baseline with its interval, or why it is unknown."""
    advantage = card.advantages.get(peer)
    if advantage is None:
        return "-"
    if advantage.times_faster is None:
        return str(advantage.reason)
    low, high = advantage.low, advantage.high
    interval = "" if low is None or high is None else f", {_times(low)} to {_times(high)}"
    text = f"{_times(advantage.times_faster)}x{interval}"
    return text if advantage.is_shown else f"{text}: no difference shown"


def best_baseline(card: Scorecard) -> str | None:
    """Return the fastest baseline, None if none was measured."""
    known = {name: one.times_faster for name, one in card.advantages.items() if one.times_faster is not None}
    return min(known, key=lambda name: known[name]) if known else None


def shown_best(card: Scorecard) -> str:
    """Return the ratio to the fastest baseline with its interval."""
    peer = best_baseline(card)
    return "-" if peer is None else f"{shown_advantage(card, peer)} ({peer})"


def _shown_beside(card: Scorecard, peer: str) -> str:
    """Return the ratio to a baseline, and its latency."""
    return f"{shown_advantage(card, peer)} ({card.peers[peer].median_ms:.3g} ms)"


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < _LARGE else f"{factor:,.0f}"


def shown_slowest(bounds: Bounds | NoBounds | None) -> str:
    """Return the kernels that keep a network below a third of its bound, with the reasons; "" if there are none."""
    kernels = bounds.slowest if isinstance(bounds, Bounds) else ()
    return ", ".join(f"{one.name} {one.ms:.3g} ms ({one.share:.0%} of its bound; {one.why})" for one in kernels)


def scorecard_table(cards: list[Scorecard]) -> Grid:
    """Return a row per cell, with columns for the accuracy after every stage, agreement, latency and every baseline."""
    peers = sorted({name for card in cards for name in card.peers})
    beside = [f"vs {peer}" for peer in peers]
    bound = ["at least"] if any(card.bounds for card in cards) else []
    columns = (
        "cell",
        "device",
        "vs best peer",
        "latency",
        *bound,
        *beside,
        *FORMS,
        "top-1 agreement",
        "error",
        "library",
    )
    rows = []
    for card in cards:
        cells = [
            ", ".join([card.cell, *(one.badge for one in card.warnings)]),
            card.device.kind,
            shown_best(card),
            shown_compute(card),
        ]
        cells += [shown_bound(card.bounds) for _ in bound]
        cells += [_shown_beside(card, peer) if peer in card.peers else "-" for peer in peers]
        cells += [f"{share:.2%}" for share in card.accuracy.by_form.values()] if card.accuracy else ["-"] * len(FORMS)
        cells += [shown_top1(card.agreement), shown_error(card.agreement)]
        rows.append([*cells, f"{card.library_bytes / 1e6:.2f} MB"])
    wide = ("cell", "device", "vs best peer", "latency", *bound, *beside)
    return grid("scorecards", columns, rows, wide, "; ".join(dict.fromkeys(map(shown_warnings, cards))).strip("; "))


def shown_warnings(card: Scorecard) -> str:
    """Return what makes the quality of a cell doubtful; "" without a doubt."""
    return "; ".join(f"{card.cell}: {one.text}" for one in card.warnings)


_COUNTED = ("dram_nbytes", "gemm_counter", "alu_counter", "insn_count")
_PART_COLUMNS = (
    "",
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


def part_table(part: AcceleratorPart) -> Grid:
    """Return the cost of the accelerator's part of a library, per region and in total; the part has counters."""
    total, rows = part.details, []
    regions = total.get("regions", [])
    for whole in (*(regions if len(regions) > 1 else []), total):
        counters, cycles = whole["counters"], whole["cycles"]
        sizes = [counters[f"{name}_nbytes"] for name in ("inp_load", "wgt_load", "acc_load", "uop_load", "out_store")]
        numbers = [*sizes, sum(sizes), *(counters[name] for name in _COUNTED), cycles]
        busy = f"{counters['gemm_counter'] / cycles:.0%}" if cycles else "-"
        rows.append([whole["name"] if whole is not total else "all", *(f"{n:,}" for n in numbers), busy])
    return grid(f"{part.name}, {total['mode']} schedules, {total['launches']} launches", _PART_COLUMNS, rows)


def latency_table(card: Scorecard) -> Grid:
    """Return the latency summary of one cell, with cold start and copies apart."""
    measured = {name.replace("_", " "): latency for name, latency in vars(card.latency).items()}
    if card.machine:
        measured["compute in TVM's machine"] = card.machine.latency
    measured |= {**{f"compute at {label}": latency for label, latency in card.sizes.items()}, **card.peers}
    steps = ("mean", "median", "p90", "max", "min", "std")
    rows = []
    for name, latency in measured.items():
        numbers = [f"{getattr(latency, f'{step}_ms'):.4g}" if latency.is_time else "-" for step in steps]
        rows.append([name, *numbers, str(latency.runs)])
    columns = ["", *(f"{step} (ms)" for step in steps), "runs"]
    title = f"execution time of {card.cell}, batch {card.batch}, {card.device.threads} threads"
    if card.part and card.part.simulated:
        title += ", of the simulator"
    if card.executed:
        title = f"{card.cell}: {shown_executed(card.executed)}"
    count = len(card.cold_start_ms)
    caption = f"cold start (load and first run): {card.median_cold_start_ms:.2f} ms, median of {count}"
    if card.bounds:
        caption += f"; at least: {shown_bound(card.bounds)}"
    if isinstance(card.bounds, Bounds):
        caption += f", arithmetic {card.bounds.arithmetic_ms:.3g} ms, constants {card.bounds.memory_ms:.3g} ms"
        caption += f"; slowest kernels: {slowest}" if (slowest := shown_slowest(card.bounds)) else ""
    if card.gpu:
        caption += f", first run {card.median_first_run_ms:.2f} ms; GPU: {shown_gpu(card.gpu)}"
    badges = [one.text for one in card.warnings]
    badges += [f"{name}: {', '.join(latency.badges)}" for name, latency in measured.items() if latency.badges]
    states = shown_states(card.latency.compute)
    return grid(
        title, columns, rows, (), "; ".join([caption, *([states] if states else []), *badges, *_baseline_notes(card)])
    )


def _baseline_notes(card: Scorecard) -> list[str]:
    """Return the execution variant of each baseline, and why others were left out."""
    ways = [f"{name} ran as {way}" for name, way in sorted(card.peer_variants.items()) if way]
    return ways + [f"{name} left out: {why}" for name, why in sorted(card.peers_left_out.items())]


def shown_gpu(numbers: GpuNumbers) -> str:
    """Return a GPU library's times to open and to copy, as text."""
    opening = f"opened in {numbers.open_ms:.3g} ms, {numbers.compile_ms:.3g} ms without cached programs"
    return f"{opening}; inputs copied in {numbers.copy_in_ms:.3g} ms, outputs in {numbers.copy_out_ms:.3g} ms"


def shown_kernels(agreement: GpuAgreement) -> str:
    """Return the agreement of a GPU's kernels with the CPU's, as text."""
    if agreement.first:
        return f"{agreement.first.kernel} is the first of {agreement.kernels} that differs"
    return f"{agreement.kernels} agree, largest error {agreement.largest_error:.2g}"


def scorecard_markdown(card: Scorecard) -> str:
    """Return a scorecard as Markdown: accuracy of every stage, agreement, latency beside the baselines."""
    rows = [("device", card.device.kind), ("vs best peer", shown_best(card)), ("latency", shown_compute(card))]
    rows += [("warning", one.text) for one in card.warnings]
    rows += [("at least", shown_bound(card.bounds))] if card.bounds else []
    rows += [("slowest kernels", slowest)] if (slowest := shown_slowest(card.bounds)) else []
    shares = card.accuracy.by_form if card.accuracy else {}
    rows += [(f"{card.metric or 'accuracy'}, {form}", f"{share:.2%}") for form, share in shares.items()]
    rows += [("top-1 agreement", shown_top1(card.agreement)), ("error", shown_error(card.agreement))]
    if gpu := card.device.gpu:
        rows.append(("GPU", f"{gpu.device}, {gpu.driver} {gpu.version}, {gpu.api}"))
    if card.gpu:
        rows.append(("GPU, start and copies", shown_gpu(card.gpu)))
    if card.kernel_agreement:
        rows.append(("kernels beside the CPU's", shown_kernels(card.kernel_agreement)))
    rows += [(f"latency at {label}", shown_latency(latency)) for label, latency in card.sizes.items()]
    rows += [(name, _shown_beside(card, name)) for name in sorted(card.peers)]
    rows.append(("library", f"{card.library_bytes / 1e6:.2f} MB"))
    lines = [f"**{card.cell}**", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)
