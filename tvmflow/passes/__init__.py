"""Our Relax and TensorIR passes, one per file."""

from __future__ import annotations

from typing import Any


def run_pass(step: Any, mod: Any) -> Any:
    """Apply a pass; module_pass makes ours callable in a way that type checkers cannot see."""
    return step(mod)
