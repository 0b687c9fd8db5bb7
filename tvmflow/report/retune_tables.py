"""Print what a re-tune would do and what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmflow.pipeline.results import RetunePlan, RetuneResult
from tvmflow.report.console import Grid, grid
from tvmflow.tuning.records.origins import ORIGINS

_FEW = 3  # changes that are named
_CAUSES = ("toolchain.", "params.")  # of a key, before the digests of code and inputs


def retune_table(results: Sequence[RetuneResult]) -> Grid:
    """Return what a re-tune did with the kernels of each cell, and its verdict."""
    columns = ("cell", "TVM", *ORIGINS, "latency beside the champion", "verdict")
    rows = []
    for result in results:
        toolchains = (toolchain for toolchain in (result.before, result.now) if toolchain)
        tvm = " -> ".join(dict.fromkeys(toolchain["tvm"] for toolchain in toolchains)) or "-"
        kernels, ratio = result.tuning.get("kernels", {}), result.comparison
        shown = f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "-"
        counts = [kernels.get(origin, "-") for origin in ORIGINS]
        rows.append([result.cell, tvm, *counts, shown, result.verdict])
    caption = (
        "kernels: reused or re-measured as they were; re-tuned because they got slower, or their schedule was lost"
    )
    return grid("re-tune", columns, rows, ("cell", "verdict"), caption)


def retune_plan_table(plans: Sequence[RetunePlan], workers: int) -> Grid:
    """Return what a re-tune would do with each cell, and how long it takes. workers: devices at a time."""
    columns = ("cell", "device", "champion", "reused", "re-measured", "re-tuned", "minutes", "why")
    rows = []
    for plan in plans:
        counts, minutes = ["-", "-", "-"], "-"
        if plan.changes:
            retuned = f"0 to {plan.retuned}" if plan.retuned else "0"
            counts, minutes = [str(plan.reused), str(plan.remeasured), retuned], _range(*plan.minutes)
        why = plan.verdict or shown_changes(plan.changes)
        rows.append([plan.cell, plan.device or "-", plan.champion or "-", *counts, minutes, why])
    caption = f"by the records of the champions: about {_range(*_all_minutes(plans, workers))} minutes in all"
    return grid("re-tune, planned", columns, rows, ("cell", "why"), caption)


def _range(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _all_minutes(plans: Sequence[RetunePlan], workers: int) -> tuple[float, float]:
    """Return the minutes of all cells: those of a device one after the other, some devices at a time."""
    devices: dict[str, tuple[float, float]] = {}
    for plan in plans:
        low, high = devices.get(plan.group, (0.0, 0.0))
        devices[plan.group] = (low + plan.minutes[0], high + plan.minutes[1])
    shortest = (round(_wall([device[at] for device in devices.values()], workers), 1) for at in (0, 1))
    low, high = shortest
    return low, high


def _wall(minutes: Sequence[float], workers: int) -> float:
    """Return how long work takes that workers take in this order."""
    lanes = [0.0] * workers
    for one in minutes:
        lanes[lanes.index(min(lanes))] += one
    return max(lanes)


def shown_changes(changes: Mapping[str, Sequence[str]]) -> str:
    """Return what changed, tools and parameters first, each once."""
    lines = dict.fromkeys(line for of_stage in changes.values() for line in of_stage)
    causes = [line for line in lines if line.startswith(_CAUSES)]
    others = [line for line in lines if not line.startswith(_CAUSES)]
    shown = [*causes, *others]
    left = len(shown) - _FEW
    return "; ".join(shown[:_FEW]) + (f"; and {left} more" if left > 0 else "")
