"""Print results on stdout: tables as wide as the terminal, whole rows into a pipe; hints on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_PIPE_WIDTH = 200


def show(value: object) -> None:
    """Print a rich table or text."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(value)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under named columns; long cells are folded, never cut."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    show(table)


def show_json(value: Any) -> None:
    """Print a value as JSON, its keys sorted."""
    sys.stdout.write(json.dumps(value, indent=1, sort_keys=True) + "\n")


def suggest(text: str) -> None:
    """Say on stderr which command comes next."""
    sys.stderr.write(f"next: {text}\n")
