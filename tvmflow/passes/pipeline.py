"""The passes that every imported model goes through, in order: afterwards nothing tells where it came from."""

from __future__ import annotations

from typing import Any

from tvmflow.passes import run_pass
from tvmflow.passes.canonicalize.canonical_norms import CanonicalNorms
from tvmflow.passes.canonicalize.channels_first import ChannelsFirst
from tvmflow.passes.canonicalize.clamp_gather_indices import ClipLookups
from tvmflow.passes.canonicalize.conv1d_to_conv2d import SignalsAsImages
from tvmflow.passes.canonicalize.flatten_dense import FlattenRows
from tvmflow.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.canonicalize.fold_constants import FoldConstants
from tvmflow.passes.canonicalize.fold_known_steps import FoldKnownSteps
from tvmflow.passes.canonicalize.simplify_arithmetic import SimplifyArithmetic
from tvmflow.passes.canonicalize.sink_concat import DivideJoined
from tvmflow.passes.canonicalize.trim_dilated_kernels import TrimWindows


def canonicalize(mod: Any) -> Any:
    """Return the module with constants folded, lookups clipped, norms in one form, channels first, signals as images, convolutions joined as late as can be, batch norms in the convolutions, windows no larger than what they see, dense
    layers over rows, and less arithmetic."""
    for step in (
        FoldConstants(), FoldKnownSteps(), ClipLookups(), SimplifyArithmetic(), CanonicalNorms(), ChannelsFirst(), SignalsAsImages(), DivideJoined(), FoldBatchNorm(), TrimWindows(), FlattenRows(),
    ):  # fmt: skip
        mod = run_pass(step, mod)
    return mod
