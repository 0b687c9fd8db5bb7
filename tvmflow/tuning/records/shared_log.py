"""Give a variant of a workspace the tuning logs of its cell."""

from __future__ import annotations

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, searches
from tvmflow.support.files import write_atomic


def share_log(variant: Workspace, cell: Cell) -> None:
    """Give a variant that was not tuned yet the logs of its workspace and of the other variants."""
    log = variant.tuning_log(cell)
    if log.exists():
        return
    name = f"{log.parent.name}/{log.name}"
    places = [variant.common / name, *sorted(searches(variant).glob(f"{cell.slug}.*/{name}"))]
    lines = dict.fromkeys(
        line for place in places if place.is_file() for line in _complete_lines(place.read_text(encoding="utf-8"))
    )
    write_atomic(log, "".join(f"{line}\n" for line in lines))


def _complete_lines(text: str) -> list[str]:
    return text.split("\n")[:-1]  # a line without an end was cut off
