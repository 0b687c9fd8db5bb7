"""The passes that every imported model goes through, in order: afterwards nothing tells where it came from."""

from __future__ import annotations

from typing import Any

from tvmflow.passes import run_pass
from tvmflow.passes.channels_first import ChannelsFirst
from tvmflow.passes.clip_lookups import ClipLookups
from tvmflow.passes.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.fold_constants import FoldConstants


def canonicalize(mod: Any) -> Any:
    """Return the module with constants folded, lookups clipped, channels first, and batch norms in the convolutions."""
    for step in (FoldConstants(), ClipLookups(), ChannelsFirst(), FoldBatchNorm()):
        mod = run_pass(step, mod)
    return mod
