"""Print results on stdout: tables that fit the terminal, whole rows into a pipe; hints on stderr.

Text in a table that is too wide for the terminal is wrapped; if that is not enough, the table is transposed; if that
is not enough, every row becomes a block of its own. Printed values may come from untrusted models and logs: markup
and control characters are removed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tvmflow.support.secrets import mask, mask_of_now

_LEAST_WORDS = 14  # a column of words that is narrower than this reads badly
_MOST_BLOCKS = 4  # more of them are no overview
_BORDER = 3  # of each column, and one more


@dataclass(frozen=True)
class Grid:
    """A table before its layout is chosen. words: columns at the left whose text may be wrapped; others hold
    numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[str] = frozenset()
    caption: str = ""


def grid(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], words: Iterable[str] = (), caption: str = ""
) -> Grid:
    """Return a table of what can be printed on one line each. words: see Grid."""
    hide = mask_of_now()
    lines = tuple(tuple(printable(cell, hide) for cell in row) for row in rows)
    return Grid(printable(title), tuple(columns), lines, frozenset(words), caption)


def printable(value: object, hide: Callable[[str], str] = mask) -> str:
    """Return a value's text without secrets, line breaks, escapes and other terminal control characters."""
    return "".join(c if c.isprintable() else " " for c in hide(str(value)))


def show(value: Grid) -> None:
    """Print a table in a layout that fits the terminal."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(
            width=max(_natural_width(value), cell_len(value.title), 80), markup=False, highlight=False, emoji=False
        )
    print_to(console, value)


def print_to(console: Console, value: Grid) -> None:
    """Print a table in a layout that fits a console."""
    if value.title:
        console.print(Text(value.title, style="bold"))
    for table in fit_to_width(value, console.width):
        console.print(table)
    if value.caption:
        console.print(Text(value.caption))


def show_text(text: str) -> None:
    """Print a line, wrapped on a terminal, unchanged into a pipe."""
    console = Console(markup=False, highlight=False, emoji=False)
    console.print(Text(printable(text)), soft_wrap=not console.is_terminal)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], words: Iterable[str] = ()) -> None:
    """Print rows under named columns. words: the columns that may be wrapped; default: all."""
    show(grid(title, columns, rows, words or columns))


def fit_to_width(value: Grid, width: int) -> list[Table]:
    """Return the tables, one below the other, that show a grid in a terminal of this width."""
    if _least_width(value) <= width:
        return [_table(value, width)]
    turned = _transpose(value)
    if len(value.rows) > 1 and _least_width(turned) <= width:
        return [_table(turned, width)]
    if len(value.rows) > _MOST_BLOCKS and _least_width(value, break_words=True) <= width:
        return [_table(value, width, break_words=True)]
    return [_table(_block(value, index), width, break_words=True) for index in range(len(value.rows))] or [
        _table(value, width)
    ]


def _widths(value: Grid) -> list[int]:
    """Return the width of each column without wrapping."""
    return [max(cell_len(row[index]) for row in (value.columns, *value.rows)) for index in range(len(value.columns))]


def _least_widths(value: Grid, break_words: bool) -> list[int]:
    """Return the smallest width of each column, wrapping text at spaces or anywhere."""
    least = []
    for index, (name, wide) in enumerate(zip(value.columns, _widths(value), strict=True)):
        words = [] if break_words else [word for row in (value.columns, *value.rows) for word in row[index].split()]
        longest = max((cell_len(word) for word in words), default=0)
        least.append(min(wide, max(_LEAST_WORDS, longest)) if name in value.words else wide)
    return least


def _total_width(widths: list[int]) -> int:
    return sum(widths) + _BORDER * len(widths) + 1


def _natural_width(value: Grid) -> int:
    return _total_width(_widths(value))


def _least_width(value: Grid, break_words: bool = False) -> int:
    return _total_width(_least_widths(value, break_words))


def _fit_widths(value: Grid, width: int, break_words: bool) -> list[int]:
    """Return column widths that fit, narrowing the widest text column first."""
    widths, least = _widths(value), _least_widths(value, break_words)
    while _total_width(widths) > width:
        wide = [(current, index) for index, current in enumerate(widths) if current > least[index]]
        if not wide:
            break
        widths[max(wide)[1]] -= 1
    return widths


def _transpose(value: Grid) -> Grid:
    """Return the transposed table; the first column becomes the head. All columns hold text."""
    first, *rest = value.columns
    heads = (first, *(row[0] for row in value.rows))
    rows = tuple((name, *(row[index + 1] for row in value.rows)) for index, name in enumerate(rest))
    return Grid("", heads, rows, frozenset(heads))


def _block(value: Grid, index: int) -> Grid:
    """Return one row as a table of names and values."""
    row = value.rows[index]
    pairs = tuple(zip(value.columns[1:], row[1:], strict=True))
    return Grid("", (value.columns[0], row[0]), pairs, frozenset({value.columns[0], row[0]}))


def _table(value: Grid, width: int, break_words: bool = False) -> Table:
    table = Table()
    for index, (name, wide) in enumerate(zip(value.columns, _fit_widths(value, width, break_words), strict=True)):
        words = name in value.words
        side: Literal["left", "right"] = "left" if index == 0 or words else "right"
        table.add_column(Text(name), justify=side, overflow="fold", no_wrap=not words, width=wide)
    for row in value.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def show_json(value: Any) -> None:
    """Print a value as JSON, its keys sorted."""
    sys.stdout.write(mask(json.dumps(value, indent=1, sort_keys=True)) + "\n")


def suggest(text: str) -> None:
    """Print the next command on stderr."""
    sys.stderr.write(f"next: {text}\n")
