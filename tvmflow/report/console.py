"""Print results on stdout: tables that fit the terminal, whole rows into a pipe; hints on stderr.

A table that is too wide for the terminal has its words folded; where that is not enough it is turned, columns as rows; where that
is not either, every row becomes a block of its own. What is printed may come from models and logs of anybody: no markup, no
control characters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_LEAST_WORDS = 24  # a column of words that is narrower than this reads badly
_BORDER = 3  # of each column, and one more


@dataclass(frozen=True)
class Grid:
    """A table before its form is chosen. words: names of the columns that may be folded, at the left; others hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[str] = frozenset()
    caption: str = ""


def grid(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], words: Iterable[str] = (), caption: str = ""
) -> Grid:
    """Return a table of what can be printed on one line each. words: see Grid."""
    lines = tuple(tuple(printable(cell) for cell in row) for row in rows)
    return Grid(printable(title), tuple(columns), lines, frozenset(words), caption)


def printable(value: object) -> str:
    """Return a value's text without line breaks, escapes and other characters that a terminal acts on."""
    return "".join(c if c.isprintable() else " " for c in str(value))


def show(value: Grid) -> None:
    """Print a table in the form that fits."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(width=max(_natural(value), 80), markup=False, highlight=False, emoji=False)
    for table in fitting(value, console.width):
        console.print(table)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], words: Iterable[str] = ()) -> None:
    """Print rows under named columns. words: the columns that may be folded; default: all."""
    show(grid(title, columns, rows, words or columns))


def fitting(value: Grid, width: int) -> list[Table]:
    """Return the tables, one below the other, that show a grid in a terminal of this width."""
    if _natural(value) <= width or _least(value) <= width:
        return [_table(value)]
    turned = _turned(value)
    if len(value.rows) > 1 and _natural(turned) <= width:
        return [_table(turned)]
    blocks = [_block(value, at) for at in range(len(value.rows))]
    return [_table(block) for block in blocks] or [_table(value)]


def _widths(value: Grid) -> list[int]:
    return [max(cell_len(row[at]) for row in (value.columns, *value.rows)) for at in range(len(value.columns))]


def _natural(value: Grid) -> int:
    return sum(_widths(value)) + _BORDER * len(value.columns) + 1


def _least(value: Grid) -> int:
    """Return how narrow a table may get by folding its words at spaces."""
    found = _BORDER * len(value.columns) + 1
    for name, wide, at in zip(value.columns, _widths(value), range(len(value.columns)), strict=True):
        longest = max((cell_len(word) for row in value.rows for word in row[at].split()), default=0)
        found += min(wide, max(_LEAST_WORDS, longest, cell_len(name))) if name in value.words else wide
    return found


def _turned(value: Grid) -> Grid:
    """Return the table with its columns as rows; the first of them is the head."""
    first, *rest = value.columns
    heads = (first, *(row[0] for row in value.rows))
    rows = tuple((name, *(row[at + 1] for row in value.rows)) for at, name in enumerate(rest))
    return Grid(value.title, heads, rows, frozenset({first}), value.caption)


def _block(value: Grid, at: int) -> Grid:
    """Return one row as a table of names and values; titled once, at the first, and with the caption at the last."""
    row = value.rows[at]
    pairs = tuple(zip(value.columns[1:], row[1:], strict=True))
    title, caption = (value.title if at == 0 else ""), (value.caption if at == len(value.rows) - 1 else "")
    return Grid(title, (value.columns[0], row[0]), pairs, frozenset({value.columns[0], row[0]}), caption)


def _table(value: Grid) -> Table:
    table = Table(
        title=Text(value.title) if value.title else None, caption=Text(value.caption) if value.caption else None
    )
    for at, name in enumerate(value.columns):
        left = at == 0 or name in value.words
        table.add_column(
            Text(name), justify="left" if left else "right", overflow="fold", no_wrap=name not in value.words
        )
    for row in value.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def show_json(value: Any) -> None:
    """Print a value as JSON, its keys sorted."""
    sys.stdout.write(json.dumps(value, indent=1, sort_keys=True) + "\n")


def suggest(text: str) -> None:
    """Say on stderr which command comes next."""
    sys.stderr.write(f"next: {text}\n")
