"""Complete cells, targets and precisions in the shell. Imports nothing heavy, since it runs at every key press."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from tvmflow.support.errors import TvmflowError

_BREAKS = ("@", ":")  # bash splits words here, so a cell arrives in parts


def complete_cell(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names under `cells:` and every model@target:precision that begin with what was typed."""
    before = _pieces_before_the_cursor()
    return [name.removeprefix(before) for name in _names(ctx, "cell") if name.startswith(before + incomplete)]


def complete_target(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names under `targets:` that begin with what was typed."""
    return [name for name in _names(ctx, "target") if name.startswith(incomplete)]


def complete_precision(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the precisions that begin with what was typed."""
    return [name for name in _names(ctx, "precision") if name.startswith(incomplete)]


def _names(ctx: typer.Context, kind: str) -> list[str]:
    from tvmflow import api

    root = ctx.find_root().params.get("root")
    try:
        return api.names(Path(root) if root else None)[kind]
    except (TvmflowError, OSError):
        return []  # no workspace here: nothing to complete


def _pieces_before_the_cursor() -> str:
    """Return the part of a cell that bash has split off the word at the cursor; other shells split nothing."""
    if "bash" not in os.environ.get("_TVMFLOW_COMPLETE", ""):
        return ""
    words, cursor = os.environ.get("COMP_WORDS", "").split(), int(os.environ.get("COMP_CWORD", "0"))
    pieces: list[str] = []
    following = words[cursor] if cursor < len(words) else ""
    for piece in reversed(words[:cursor]):
        if piece not in _BREAKS and following not in _BREAKS:
            break
        pieces.insert(0, piece)
        following = piece
    return "".join(pieces)
