"""Add to the MLflow run of a measurement what people look at: a description, the report of the cell, and pictures; to
the version of its library the description, and to the registered model what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.report.layers import layers_of
from tvmflow.report.page import collect_cell, page_text
from tvmflow.report.tables import scorecard, scorecard_markdown, shown_best, shown_compute
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking.mlflow.history import measurements
from tvmflow.tracking.mlflow.recorded import recorded_run
from tvmflow.tracking.mlflow.registry import registry_name
from tvmflow.tracking.mlflow.store import open_mlflow

NOTE = "mlflow.note.content"  # the description of a run in MLflow's UI
_ROW, _LEFT, _RIGHT, _WIDTH, _MOST = 26, 260, 90, 800, 20


def describe_run(workspace: Workspace, cell: Cell) -> None:
    """Describe the run of the cell's newest measurement unless it has a description. Raises StoreError."""
    run_id, card = recorded_run(workspace, cell), scorecard(workspace, cell)
    if run_id is None or card is None:
        return
    client = open_mlflow(workspace)
    if client.get_run(run_id).data.tags.get(NOTE):
        return
    with temporary_folder("mlflow-page") as name:
        folder = Path(name)
        data = collect_cell(workspace, cell, card, measurements(workspace, cell))
        (folder / "report.html").write_text(page_text(data), encoding="utf-8")
        for title, rows in _charts(workspace, cell, card).items():
            if rows:
                (folder / f"{title}.svg").write_text(bars_svg(f"{title} of {cell}, ms", rows), encoding="utf-8")
        client.log_artifacts(run_id, str(folder))
    text = scorecard_markdown(card)
    for version in client.search_model_versions(f"run_id = '{run_id}'"):
        if not version.description:
            client.update_model_version(version.name, version.version, f"{_first_line(card)}\n\n{text}")
    registered = registry_name(cell)
    if not client.get_registered_model(registered).description:
        client.update_registered_model(registered, _model_text(workspace, cell))
    client.set_tag(run_id, NOTE, text)


def _first_line(card: Scorecard) -> str:
    """Return a version in a line of plain text: MLflow's list of versions shows its start, and no Markdown."""
    best = shown_best(card)
    parts = [shown_compute(card), "" if best == "-" else f"best peer {best}", f"on {card.device.kind}"]
    return "; ".join(part for part in parts if part)


def _model_text(workspace: Workspace, cell: Cell) -> str:
    """Return what a registered model is, of what source, and where its records are."""
    model = workspace.params.models[cell.model]
    network = f", network {model.network}" if model.network else ""
    return "\n".join(
        [
            f"{cell.model} compiled for {cell.target} in {cell.precision}: each version is a library.",
            "",
            f"- Source of the first version: {model.framework}{network}, weights of kind {model.weights.kind}.",
            f"- Records: the run of a version, in the experiment {cell.model}, has its measurement and report.html; "
            f"`tvmflow history {cell}` lists them.",
            "- Aliases: champion is released, challenger is the newest candidate, previous is what "
            f"`tvmflow rollback {cell}` restores.",
        ]
    )


def _charts(workspace: Workspace, cell: Cell, card: Scorecard) -> dict[str, list[tuple[str, float]]]:
    compute = card.latency.compute
    times = [("tvmflow", compute.median_ms)] if card.has_time and compute.is_time else []
    times += [(name, peer.median_ms) for name, peer in sorted(card.peers.items()) if peer.is_time]
    layers = [(one.layer.name, one.ms) for one in layers_of(workspace, cell, card).layers if one.ms is not None]
    return {"latency": times if len(times) > 1 else [], "layers": sorted(layers, key=lambda row: -row[1])[:_MOST]}


def bars_svg(title: str, rows: Sequence[tuple[str, float]]) -> str:
    """Return named numbers as an image of bars, readable on light and on dark pages."""
    most = max(value for _, value in rows) or 1.0
    height, scale = 40 + _ROW * len(rows), (_WIDTH - _LEFT - _RIGHT) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" fill="#1c2530">{escape(title)}</text>',
    ]
    for at, (name, value) in enumerate(rows):
        y, long = 38 + _ROW * at, max(1.0, scale * value)
        shown = name if len(name) <= 34 else f"{name[:16]}…{name[-17:]}"
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end" fill="#1c2530">{escape(shown)}</text>',
            f'<rect x="{_LEFT}" y="{y + 3}" width="{long:.1f}" height="{_ROW - 10}" fill="#2463a6"/>',
            f'<text x="{_LEFT + long + 6:.1f}" y="{y + 14}" fill="#1c2530">{value:.4g}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])
