"""Relax and TensorIR passes, one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule


def run_pass(step: Any, mod: IRModule) -> Any:
    """Apply a pass to a module. module_pass makes our classes callable, which type checkers cannot see."""
    return step(mod)
