"""Locate our own sources: the Python packages and the C runtime."""

from __future__ import annotations

from pathlib import Path

CODE_ROOT = Path(__file__).resolve().parents[2]
RUNTIME = next(  # the sources in C: in a clone, and in an installed package
    (place for place in (CODE_ROOT / "runtime", CODE_ROOT / "tvmflow" / "_runtime") if (place / "include").is_dir()),
    CODE_ROOT / "runtime",
)
