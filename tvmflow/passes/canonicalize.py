"""The passes that every imported model goes through, in order: afterwards its form does not tell where it came from."""

from __future__ import annotations

from typing import Any

from tvmflow.building.library import run_pass
from tvmflow.passes.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.fold_constants import FoldConstants


def canonicalize(mod: Any) -> Any:
    """Return the module with constants folded and batch norms in the convolutions."""
    return run_pass(FoldBatchNorm(), run_pass(FoldConstants(), mod))
