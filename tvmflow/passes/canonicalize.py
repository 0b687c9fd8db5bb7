"""The passes that every imported model goes through, in order: afterwards nothing tells where it came from."""

from __future__ import annotations

from typing import Any

from tvmflow.passes import run_pass
from tvmflow.passes.canonical_norms import CanonicalNorms
from tvmflow.passes.channels_first import ChannelsFirst
from tvmflow.passes.clip_lookups import ClipLookups
from tvmflow.passes.divide_joined import DivideJoined
from tvmflow.passes.flatten_rows import FlattenRows
from tvmflow.passes.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.fold_constants import FoldConstants
from tvmflow.passes.fold_known_steps import FoldKnownSteps
from tvmflow.passes.signals_as_images import SignalsAsImages
from tvmflow.passes.simplify_arithmetic import SimplifyArithmetic
from tvmflow.passes.trim_windows import TrimWindows


def canonicalize(mod: Any) -> Any:
    """Return the module with constants folded, lookups clipped, norms in one form, channels first, signals as images, convolutions joined as late as can be, batch norms in the convolutions, windows no larger than what they see, dense
    layers over rows, and less arithmetic."""
    for step in (
        FoldConstants(), FoldKnownSteps(), ClipLookups(), SimplifyArithmetic(), CanonicalNorms(), ChannelsFirst(), SignalsAsImages(), DivideJoined(), FoldBatchNorm(), TrimWindows(), FlattenRows(),
    ):  # fmt: skip
        mod = run_pass(step, mod)
    return mod
