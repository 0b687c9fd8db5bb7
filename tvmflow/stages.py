"""What a stage is: a row that says what it reads, and a function that fills an empty folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmflow.params import Cell
from tvmflow.workspace import Workspace

Progress = Callable[[str, int, int], None]


def silent(_text: str, _done: int, _total: int) -> None:
    """A progress listener that hears nothing."""


@dataclass(frozen=True)
class StageContext:
    """All that a stage function gets to see.

    `settings` holds only the parameters that the stage declared and that can change its outputs (they are in the recipe
    key); `limits` those that cannot: timeouts, sizes, retries. `inputs` maps a stage name to its checked folder.
    """

    cell: Cell
    settings: dict[str, Any]
    limits: dict[str, Any]
    inputs: Mapping[str, Path]
    out: Path
    root: Path
    tuning_log: Path
    progress: Progress = silent


@dataclass(frozen=True)
class Stage:
    """A row of the stage table in `tasks/`.

    inputs: stage name -> the output files that are read (None: all of them).
    settings: (workspace, cell) -> the JSON-able parameters that the stage reads; they are its part of the recipe key.
    limits: (workspace, cell) -> what it reads and what cannot change its outputs.
    toolchain: settings -> names in `toolchain.version` whose versions can change the outputs.
    run: fills `context.out` and returns facts worth showing (never needed by a later stage).
    """

    name: str
    module: str
    settings: Callable[[Workspace, Cell], dict[str, Any]]
    toolchain: Callable[[dict[str, Any]], tuple[str, ...]]
    run: Callable[[StageContext], dict[str, Any]]
    inputs: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    limits: Callable[[Workspace, Cell], dict[str, Any]] = lambda _workspace, _cell: {}
    is_cached: bool = True
