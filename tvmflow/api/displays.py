"""Show values as HTML tables in notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any


class Shown:
    """A value that notebooks show as a table of its members, or of the rows that `_shown` returns."""

    def _shown(self) -> Sequence[Mapping[str, Any]]:
        members = vars(self).items()
        return [{"": name, "value": value} for name, value in members if not name.startswith("_")]

    def _repr_html_(self) -> str:
        return html_table(self._shown())


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as an HTML table; everything in it is text."""
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = ("".join(f"<td>{html.escape(_text(row[name]))}</td>" for name in names) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(item)}" for name, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)
