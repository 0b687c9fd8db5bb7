"""Relax and TensorIR passes, one per file."""

from __future__ import annotations

from typing import Any


def run_pass(step: Any, mod: Any) -> Any:
    """Apply a pass to a module. module_pass makes our classes callable, which type checkers cannot see."""
    return step(mod)
