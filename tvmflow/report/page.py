"""Write the report: one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import csv
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tvmflow import __version__
from tvmflow.artifacts import RECORD_NAME, read_record, write_atomic
from tvmflow.errors import StoreError
from tvmflow.params import STAGE_NAMES, Cell
from tvmflow.report.tables import (
    FORMS,
    STEPS,
    has_counters,
    scorecard,
    shown_advantage,
    shown_compute,
    shown_error,
    shown_latency,
    shown_top1,
    stage_times,
    times_faster,
    trusted_bytes,
    trusted_json,
)
from tvmflow.workspace import Workspace

_COLORS = ["#2563a8", "#d97a1e", "#3a8f4d", "#a23b72", "#7a6a53", "#4a4e9a", "#c04a3a", "#2a8f8f"]


def collect(workspace: Workspace, history: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Gather what the page shows, as plain values: scorecards, stage times, tuning curves, history."""
    cells = []
    for cell in _known_cells(workspace):
        card = scorecard(workspace, cell)
        if card is not None:
            manifest = trusted_json(workspace.folder("build", cell), "manifest.json") or {}
            cells.append({
                "card": card, "stage_s": stage_times(workspace, cell), "curve": _curve(workspace, cell),
                "kernels": manifest.get("kernels", []), "coverage": manifest.get("coverage"),
                "workloads": trusted_json(workspace.folder("tune", cell), "workloads.json") or [],
                "ledger": _facts(workspace, cell), "toolchain": manifest.get("toolchain", {}),
                "history": history.get(str(cell), []),
            })  # fmt: skip
    if not cells:
        raise StoreError(
            "nothing has been measured in this workspace yet", "at least one scorecard", "run 'tvmflow run digits'"
        )
    return {"cells": cells, "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "version": __version__}


def _known_cells(workspace: Workspace) -> list[Cell]:
    """Return every cell that has a scorecard, listed ones first."""
    params = workspace.params
    found = list(params.cells.values())
    for folder in sorted((workspace.artifacts / "evaluate").glob("*.*.*")):
        try:
            model, target, precision = folder.name.split(".")
            cell = params.cell(f"{model}@{target}:{precision}")
        except Exception:  # a cell of a model that params.yaml no longer has  # noqa: S112
            continue
        if cell not in found:
            found.append(cell)
    return found


def _facts(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    try:
        return read_record(workspace.folder("tune", cell) / RECORD_NAME).facts
    except StoreError:
        return {}


def _curve(workspace: Workspace, cell: Cell) -> list[tuple[int, float]]:
    text = (trusted_bytes(workspace.folder("tune", cell), "curve.csv") or b"").decode()
    return [(int(row["trial"]), float(row["kernels_ms"])) for row in csv.DictReader(text.splitlines())]


def write_page(data: dict[str, Any], path: Path) -> None:
    """Render the page and write it whole or not at all."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["latency"] = shown_latency
    shown = (shown_advantage, shown_compute, shown_error, shown_top1, times_faster)
    environment.globals |= {function.__name__: function for function in shown}
    accelerated = [cell for cell in data["cells"] if has_counters(cell["card"])]
    peers = sorted({name for cell in data["cells"] for name in cell["card"]["peers"]})
    html = environment.get_template("page.html.jinja").render(
        **data, peers=peers, forms=FORMS, steps=STEPS, latency_plot=_latency_plot(data["cells"]), history_plot=_history_plot(data["cells"]),
        curve_plot=_curve_plot(data["cells"]), stage_plot=_stage_plot(data["cells"]),
        accelerated=accelerated, roofline_plot=_roofline_plot(accelerated) if accelerated else "",
    )  # fmt: skip
    write_atomic(path, html)


def _figure(rows: float) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "tvmflow", "font.size": 9, "font.family": "sans-serif", "axes.grid": True,
                         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})  # fmt: skip
    figure, axes = plt.subplots(figsize=(8, rows), layout="constrained")
    return figure, axes


def _as_image(figure: Any) -> str:
    from matplotlib import pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def _latency_plot(cells: list[dict[str, Any]]) -> str:
    """Draw how many times faster than each peer the library is, where that was shown."""
    figure, axes = _figure(0.9 + 0.55 * len(cells))
    names = sorted({name for cell in cells for name in cell["card"]["peers"]})
    height = 0.8 / max(len(names), 1)
    for index, name in enumerate(names):
        places, widths = [], []
        for row, cell in enumerate(cells):
            factor = times_faster(cell["card"], name)
            if factor is not None:
                places.append(row + index * height)
                widths.append(factor)
        bars = axes.barh(places, widths, height * 0.9, label=name, color=_COLORS[index % len(_COLORS)])
        axes.bar_label(bars, fmt="%.2fx", padding=3)
    axes.axvline(1.0, color="#333", linewidth=1.2)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(cells))], [cell["card"]["cell"] for cell in cells])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}x")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.5), max(high, 2.0) * 1.6)
    axes.set_xlabel("latency of the peer / latency of the library (right of 1: the library is faster)")
    if names:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _as_image(figure)


def _history_plot(cells: list[dict[str, Any]]) -> str:
    figure, axes = _figure(3.2)
    for index, cell in enumerate(cells):
        points = [row for row in cell["history"] if row["latency_ms"] is not None]
        times = [datetime.fromtimestamp(row["time_ms"] / 1000, UTC) for row in points]
        values = [row["latency_ms"] for row in points]
        axes.plot(times, values, "o-", label=cell["card"]["cell"], color=_COLORS[index % len(_COLORS)])
        for at, row in enumerate(points):
            if at and points[at - 1]["tvm"] != row["tvm"]:
                axes.annotate(
                    f"TVM {row['tvm']}", (times[at], values[at]), textcoords="offset points", xytext=(4, 6), fontsize=7
                )
    axes.set_ylabel("median latency (ms)")
    shown = [row["latency_ms"] for cell in cells for row in cell["history"] if row["latency_ms"]]
    if shown and max(shown) > 20 * min(shown):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.15 * max(shown, default=1.0))
    axes.tick_params(axis="x", rotation=20)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _as_image(figure)


def _curve_plot(cells: list[dict[str, Any]]) -> str:
    """Draw the summed time of all kernels against trials, each cell relative to its default schedules."""
    figure, axes = _figure(3.0)
    for index, cell in enumerate(cells):
        if cell["curve"]:
            trials, values = zip(*cell["curve"], strict=True)
            axes.step(trials, [v / values[0] for v in values], where="post", label=cell["card"]["cell"],
                      color=_COLORS[index % len(_COLORS)])  # fmt: skip
    axes.set_xlabel("trial")
    axes.set_ylabel("time of all kernels / default schedules")
    axes.set_ylim(0, 1.05)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _as_image(figure)


def _roofline_plot(cells: list[dict[str, Any]]) -> str:
    """Draw each layer on the accelerator: operations per byte of DRAM against GOP/s, under the roof of its design."""
    figure, axes = _figure(3.8)
    roofs = sorted({(cell["card"]["part"]["peak_gops"], cell["card"]["part"]["peak_gbytes"]) for cell in cells})
    shown = [(cell, [row for row in cell["card"]["part"]["layers"] if row["operations"]]) for cell in cells]
    highest = max((row["operations_per_byte"] for _, rows in shown for row in rows), default=100.0)
    for peak, bandwidth in roofs:
        intensity = [1.0, peak / bandwidth, max(highest * 1.5, 2 * peak / bandwidth)]
        axes.plot(intensity, [min(peak, bandwidth * x) for x in intensity], color="#333", linewidth=1.2)
        axes.annotate(
            f"{peak:g} GOP/s, {bandwidth:g} GB/s", (intensity[1], peak), textcoords="offset points", xytext=(4, 4)
        )
    for index, (cell, rows) in enumerate(shown):
        axes.scatter(
            [row["operations_per_byte"] for row in rows], [row["gops"] for row in rows], s=18, alpha=0.75,
            label=cell["card"]["cell"], color=_COLORS[index % len(_COLORS)],
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of DRAM")
    axes.set_ylabel("GOP/s (estimated cycles)")
    axes.legend(fontsize=7, loc="lower right")
    return _as_image(figure)


def _stage_plot(cells: list[dict[str, Any]]) -> str:
    figure, axes = _figure(1.1 + 0.4 * len(cells))
    left = [0.0] * len(cells)
    for index, stage in enumerate(STAGE_NAMES):
        widths = [cell["stage_s"].get(stage, 0.0) for cell in cells]
        axes.barh(range(len(cells)), widths, left=left, label=stage, color=_COLORS[index % len(_COLORS)])
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(cells)), [cell["card"]["cell"] for cell in cells])
    axes.invert_yaxis()
    axes.set_xlabel("seconds, when the stage was last made")
    axes.legend(ncols=4, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _as_image(figure)
