"""Add or replace an entry of a hand-written YAML file by its lines, leaving all other characters unchanged."""

from __future__ import annotations

from typing import Any

import yaml

from tvmflow.support.errors import UsageError


def add_entry(text: str, block: str, name: str, entry: dict[str, Any], compact: bool = False) -> str:
    """Return the text with `name: entry` at the end of a top-level block, which is created if missing.

    compact: on one line. Raises UsageError if the style of the block does not allow adding lines.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    pair = next(((key, value) for key, value in pairs if key.value == block), None)
    if isinstance(root, yaml.MappingNode) and root.flow_style:
        raise _not_a_block("params.yaml", name, entry)
    if pair is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"{block}:", *_lines(name, entry, 2, compact)]
    elif isinstance(pair[1], yaml.MappingNode) and not pair[1].flow_style:
        indent = pair[1].value[0][0].start_mark.column
        line = _last_line(pair[1]) + 1
        lines[line:line] = _lines(name, entry, indent, compact)
    elif pair[1].tag.endswith(":null") or (isinstance(pair[1], yaml.MappingNode) and not pair[1].value):
        key = pair[0]
        line = key.end_mark.line
        start, end = pair[1].start_mark, pair[1].end_mark
        if end.line == line and end.column > start.column:  # {}, null or ~
            lines[line] = (lines[line][: start.column].rstrip() + lines[line][end.column :]).rstrip()
        lines[line + 1 : line + 1] = _lines(name, entry, 2, compact)
    else:
        raise _not_a_block(f"{block}: in params.yaml", name, entry)
    return newline.join(lines) + newline


def set_entry(text: str, block: str, name: str, entry: dict[str, Any]) -> str:
    """Return the text with `name: entry` on one line of a top-level block, in place of an entry of that name."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    inside = next((value for key, value in pairs if key.value == block), None)
    if isinstance(root, yaml.MappingNode) and isinstance(inside, yaml.MappingNode):
        for key, value in inside.value:
            if key.value != name:
                continue
            if inside.flow_style or root.flow_style:
                raise _not_a_block(f"{block}: in params.yaml", name, entry)
            newline = "\r\n" if "\r\n" in text else "\n"
            lines, first = text.splitlines(), key.start_mark
            lines[first.line : max(first.line, _last_line(value)) + 1] = _lines(name, entry, first.column, True)
            return newline.join(lines) + newline
    return add_entry(text, block, name, entry, compact=True)


def _not_a_block(what: str, name: str, entry: dict[str, Any]) -> UsageError:
    return UsageError(
        f"{what} is not in block style, one name per line",
        "lines of 'name: ...' under it",
        "add this by hand: " + " ".join(line.strip() for line in _lines(name, entry, 0, True)),
    )


def _lines(name: str, entry: dict[str, Any], indent: int, compact: bool) -> list[str]:
    if compact:
        return [f"{' ' * indent}{name}: {_flow(entry)}"]
    return [f"{' ' * indent}{name}:", *(f"{' ' * (indent + 2)}{key}: {_flow(value)}" for key, value in entry.items())]


def _flow(value: Any) -> str:
    """Return a value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _last_line(node: yaml.Node) -> int:
    """Return the line of the last value of a block, without the comments after it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
        if isinstance(last, tuple) and node.tag.endswith(":null") and node.start_mark.index == node.end_mark.index:
            node = last[0]  # nothing is written there; its mark is that of what follows
    mark = node.end_mark
    # Text in several lines (| and >) ends at the start of the next line.
    return mark.line - 1 if mark.column == 0 and mark.line > node.start_mark.line else mark.line
